"""The program `mpsd`: its commands, each in a module of its own."""

from mpsd.platform.imports import lasting

with lasting():
    import typer

    from mpsd.platform.verbs import CONTEXT_SETTINGS, Verb, Verbs, Version, help_of, run

# Each in mpsd.cli.<verb>, but for those of _MODULES.
_LINES = {
    "up": "Share this machine's GPUs: supervise the MPS daemons and grant shares, in the foreground.",
    "run": "Run a command with a share of a GPU.",
    "status": "Show GPUs, domains, grants and clients of this machine or of a cluster.",
    "doctor": "Show why MPS does not start or limits are not enforced on this machine, and what to do.",
    "top": "Show GPUs and their users live, sorted by memory, SM use or name.",
    "bundle": "Create a support bundle of this machine, without secrets.",
    "smi": "Show what containers and programs use of the GPUs now, and the free capacity of each.",
    "set": "Change the memory, percentage or weight of a running container or program.",
    "stop": "End programs of `mpsd run` without harm to others on their GPUs.",
    "explain": "Show what the objects in a manifest get of a GPU, or why they are refused.",
    "check": "Check limits files, and show what they put in force.",
    "demo": "Show everything in a simulated cluster or on a simulated machine. Needs no GPU and no Kubernetes.",
    "bench": "Measure MPS and mpsd on this machine's GPU, and compare with what mpsd promises.",
    "install": "Register the runtime mpsd, which gives containers their share, with docker, containerd or podman.",
    "uninstall": "Remove the runtime mpsd from docker, containerd or podman. From a cluster: `kubectl mps uninstall`.",
    "control": "Run only the part of `up` that supervises the MPS daemons.",
    "agent": "Run only the part of `up` that grants shares; it may be killed and restarted at any time.",
    "webhook": "Answer Kubernetes admission reviews: refuse what breaks sharing, with a remedy for each problem.",
    "scheduler": "Extend kube-scheduler: filter nodes by the free capacity of each GPU, and bind pods.",
}
_MODULES = {
    "up": "mpsd.cli.agent",
    "status": "mpsd.status.verbs",
    "doctor": "mpsd.operations.doctor.node",
    "top": "mpsd.status.verbs",
    "bundle": "mpsd.operations.bundle.node",
    "explain": "mpsd.operations.explain.manifest",
    "demo": "mpsd.simulator.demo.demo",
    "bench": "mpsd.bench.verb",
    "install": "mpsd.containers.install",
    "uninstall": "mpsd.containers.install",
}
_VERBS = {  # what is neither of these two needs what a node needs, or nothing
    name: Verb(line, _MODULES.get(name, f"mpsd.cli.{name}"), name if name in {"webhook", "scheduler"} else "agent")
    for name, line in _LINES.items()
}


class _MpsdVerbs(Verbs):
    program = "mpsd"
    verbs = _VERBS


app = typer.Typer(
    cls=_MpsdVerbs,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT_SETTINGS,
)


def _mpsd(version: Version = False) -> None:
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
    """


app.callback(help=help_of(_mpsd))(_mpsd)


def main() -> None:
    """The entry point."""
    run(app, "mpsd")
