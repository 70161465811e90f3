"""The program `mpsd`: its verbs, each in a module of its own."""

from mpsd.platform.imports import lasting

with lasting():
    import typer

    from mpsd.platform.verbs import CONTEXT_SETTINGS, Verb, Verbs, Version, help_of, run

# Each in mpsd.cli.<verb>, but for those of _MODULES.
_LINES = {
    "up": "Share this machine's GPUs: supervise the MPS daemons and grant shares, in the foreground.",
    "run": "Run a command with a share of a GPU.",
    "status": "GPUs, domains, grants and clients, of this machine or of a cluster.",
    "doctor": "Why MPS does not start or limits are not enforced on this machine, and what to do.",
    "top": "GPUs and who uses them, live, sorted by memory, SM use or name.",
    "bundle": "A support archive of this machine, with nothing secret in it.",
    "smi": "Which containers and programs use what of the GPUs now, and what is left of each.",
    "set": "Give a running container or program another size of memory, percentage or weight.",
    "explain": "What the objects in a manifest get of a GPU, or why they are refused.",
    "check": "Whether limits files are sound, and what they put in force.",
    "demo": "The whole way in a simulated cluster, or on a simulated machine. Needs no GPU and no Kubernetes.",
    "bench": "Measure what MPS and mpsd do on this machine's GPU, and hold it against what mpsd promises.",
    "install": "Make docker, containerd or podman know the runtime mpsd, which gives containers their share.",
    "uninstall": "Take the runtime mpsd out of docker, containerd or podman. Of a cluster: `kubectl mps uninstall`.",
    "control": "Only the part of `up` that holds the MPS daemons.",
    "agent": "Only the part of `up` that grants shares; may be killed and restarted at any time.",
    "webhook": "Answer Kubernetes admission reviews: refuse what breaks sharing, in words that help.",
    "scheduler": "Tell kube-scheduler which nodes have one GPU with room, and bind pods to it.",
}
_EXTRAS = {"webhook": "webhook", "scheduler": "scheduler"}  # all others need what a node needs, or nothing
_MODULES = {
    "status": "mpsd.status.verbs",
    "doctor": "mpsd.operations.doctor.node",
    "top": "mpsd.status.top",
    "bundle": "mpsd.operations.bundle.node",
    "explain": "mpsd.operations.explain.manifest",
    "check": "mpsd.operations.check",
    "demo": "mpsd.simulator.demo.demo",
    "bench": "mpsd.bench.verb",
    "install": "mpsd.containers.install",
    "uninstall": "mpsd.containers.install",
}
_VERBS = {
    name: Verb(line, _MODULES.get(name, f"mpsd.cli.{name}"), _EXTRAS.get(name, "agent"))
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

        mpsd up --simulate H200x2              share GPUs; these are played
        mpsd run --gpu-mem 7 -- CMD            a program with 7 GiB of one
        mpsd status                            who has what, and what is wrong
        mpsd doctor                            why nothing starts here, and what to do
        mpsd top                               who uses the GPUs, live
        mpsd bundle                            one file for who helps
        mpsd smi                               what each container uses now
        mpsd set CONTAINER --mem 4GiB          another size for one that runs
        mpsd explain -f job.yaml --gpu H200    what this Job gets, or why not
        mpsd check limits                      whether limits files are sound
        mpsd demo                              all of it, in a simulated cluster
        mpsd bench --save all.json             what this machine's GPU does under it
        mpsd install docker --dry-run          what lets containers have shares

    Every verb has a --help of its own. The exit code is 0 for yes, 1 for no, 2 for a wrong question.
    """


app.callback(help=help_of(_mpsd))(_mpsd)


def main() -> None:
    """The entry point."""
    run(app, "mpsd")
