"""The program `mpsd`: its commands, each in a module of its own."""

import sys

from mpsd.platform.imports import starting

with starting():
    from mpsd.platform.command_line import Program, Verb

_VERBS = (
    Verb("up", "mpsd.cli.agent", "Share this machine's GPUs through MPS, in the foreground."),
    Verb("run", "mpsd.cli.run", "Run a command with a share of a GPU."),
    Verb("status", "mpsd.status.verbs", "Show GPUs, domains, grants and clients."),
    Verb("doctor", "mpsd.operations.doctor.node", "Find what is wrong with MPS, with remedies."),
    Verb("top", "mpsd.status.verbs", "Show GPUs and their users live."),
    Verb("bundle", "mpsd.operations.bundle.node", "Create a support bundle, without secrets."),
    Verb("smi", "mpsd.cli.smi", "Show each container's use of the GPUs, and what is free."),
    Verb("set", "mpsd.cli.set", "Change the memory, percentage or weight of a running container."),
    Verb("stop", "mpsd.cli.stop", "End programs of `mpsd run`, sparing others on their GPUs."),
    Verb("explain", "mpsd.operations.explain.manifest", "Show what a manifest gets, or why not."),
    Verb("check", "mpsd.cli.check", "Check limits files, and show what they put in force."),
    Verb("demo", "mpsd.simulator.demo.demo", "Show everything in simulation. Needs no GPU."),
    Verb("bench", "mpsd.bench.verb", "Measure MPS and mpsd on this machine's GPU."),
    Verb("install", "mpsd.containers.install", "Register the container runtime mpsd."),
    Verb("uninstall", "mpsd.containers.install", "Remove the container runtime mpsd."),
    Verb("control", "mpsd.cli.control", "Run only the part of `up` that supervises the daemons."),
    Verb("agent", "mpsd.cli.agent", "Run only the part of `up` that grants shares."),
    Verb("webhook", "mpsd.cli.webhook", "Answer Kubernetes admission reviews.", "webhook"),
    Verb("scheduler", "mpsd.cli.scheduler", "Extend kube-scheduler with GPU room.", "scheduler"),
)
MPSD = Program(
    "mpsd",
    """Share NVIDIA GPUs through MPS, with limits that hold.

        mpsd up --simulate H200x2              share GPUs, here simulated ones
        mpsd run --gpu-mem 7 -- CMD            run a program with 7 GiB of one
        mpsd status                            grants and problems
        mpsd explain -f job.yaml --gpu H200    what this Job gets, or why not
        mpsd demo                              everything, in a simulated cluster
        mpsd install docker --dry-run          let containers have shares

    Every command has its own --help. Exit codes: 0 success, 1 failure or problem found, 2 usage
    error.
    """,
    _VERBS,
)


def main() -> None:
    """The entry point."""
    if sys.argv[1:2] == ["control"]:  # asyncio does without, and so does it: 7 MiB of OpenSSL
        sys.modules["ssl"] = None  # type: ignore[assignment]
    MPSD.run(sys.argv[1:])
