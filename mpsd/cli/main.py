"""The program `mpsd`: its commands, each in a module of its own."""

import sys

from mpsd.platform.imports import starting

with starting():
    from mpsd.platform.command_line import Program, Verb

_VERBS = (
    Verb(
        "up",
        "mpsd.cli.agent",
        "Share this machine's GPUs: supervise the MPS daemons and grant shares, in the foreground.",
    ),
    Verb("run", "mpsd.cli.run", "Run a command with a share of a GPU."),
    Verb(
        "status",
        "mpsd.status.verbs",
        "Show GPUs, domains, grants and clients of this machine or of a cluster.",
    ),
    Verb(
        "doctor",
        "mpsd.operations.doctor.node",
        "Show why MPS does not start or limits are not enforced on this machine, and what to do.",
    ),
    Verb("top", "mpsd.status.verbs", "Show GPUs and their users live, sorted by memory, SM use or name."),
    Verb(
        "bundle",
        "mpsd.operations.bundle.node",
        "Create a support bundle of this machine, without secrets.",
    ),
    Verb(
        "smi",
        "mpsd.cli.smi",
        "Show what containers and programs use of the GPUs now, and the free capacity of each.",
    ),
    Verb(
        "set",
        "mpsd.cli.set",
        "Change the memory, percentage or weight of a running container or program.",
    ),
    Verb("stop", "mpsd.cli.stop", "End programs of `mpsd run` without harm to others on their GPUs."),
    Verb(
        "explain",
        "mpsd.operations.explain.manifest",
        "Show what the objects in a manifest get of a GPU, or why they are refused.",
    ),
    Verb("check", "mpsd.cli.check", "Check limits files, and show what they put in force."),
    Verb(
        "demo",
        "mpsd.simulator.demo.demo",
        "Show everything in a simulated cluster or on a simulated machine. Needs no GPU and no Kubernetes.",
    ),
    Verb(
        "bench",
        "mpsd.bench.verb",
        "Measure MPS and mpsd on this machine's GPU, and compare with what mpsd promises.",
    ),
    Verb(
        "install",
        "mpsd.containers.install",
        "Register the runtime mpsd, which gives containers their share, with docker, containerd or podman.",
    ),
    Verb(
        "uninstall",
        "mpsd.containers.install",
        "Remove the runtime mpsd from docker, containerd or podman. From a cluster: `kubectl mps uninstall`.",
    ),
    Verb("control", "mpsd.cli.control", "Run only the part of `up` that supervises the MPS daemons."),
    Verb(
        "agent",
        "mpsd.cli.agent",
        "Run only the part of `up` that grants shares; it may be killed and restarted at any time.",
    ),
    Verb(
        "webhook",
        "mpsd.cli.webhook",
        "Answer Kubernetes admission reviews: refuse what breaks sharing, with a remedy for each problem.",
        "webhook",
    ),
    Verb(
        "scheduler",
        "mpsd.cli.scheduler",
        "Extend kube-scheduler: filter nodes by the free capacity of each GPU, and bind pods.",
        "scheduler",
    ),
)
MPSD = Program(
    "mpsd",
    """Share NVIDIA GPUs through MPS, with limits that hold.

        mpsd up --simulate H200x2              share GPUs, here simulated ones
        mpsd run --gpu-mem 7 -- CMD            run a program with 7 GiB of one
        mpsd status                            grants and problems
        mpsd doctor                            why MPS does not start here
        mpsd top                               GPU use, live
        mpsd bundle                            create a support bundle
        mpsd smi                               GPU use of each container
        mpsd set CONTAINER --mem 4GiB          change a running container's share
        mpsd stop GRANT                        end a program
        mpsd explain -f job.yaml --gpu H200    what this Job gets, or why not
        mpsd check limits                      check limits files
        mpsd demo                              everything, in a simulated cluster
        mpsd bench --save all.json             measure this machine's GPU
        mpsd install docker --dry-run          let containers have shares

    Every command has its own --help. Exit codes: 0 success, 1 failure or problem found, 2 usage error.
    """,
    _VERBS,
)


def main() -> None:
    """The entry point."""
    if sys.argv[1:2] == ["control"]:  # asyncio does without, and so does it: 7 MiB of OpenSSL
        sys.modules["ssl"] = None  # type: ignore[assignment]
    MPSD.run(sys.argv[1:])
