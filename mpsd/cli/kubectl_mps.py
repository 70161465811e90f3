"""The program `kubectl-mps`, which kubectl runs as `kubectl mps`, and `kubectl_complete-mps`, which it asks at Tab.

Options may stand before the command, and no command means status, as people are used to from kubectl.
"""

from collections.abc import Sequence
from typing import Any

from mpsd.platform.imports import lasting

with lasting():
    import typer

    from mpsd.platform.verbs import CONTEXT_SETTINGS, Verb, Verbs, Version, help_of, run
    from mpsd.status.cluster_options import offer

# Options with a word after them.
_VALUED = frozenset(
    {"-o", "--output", "--kubeconfig", "--context", "-n", "--namespace"}
    | {"--gpu", "--timeout", "-l", "--selector", "--image", "--sort", "--interval", "--iterations"}
)
_ALONE = frozenset({"-h", "--help", "--version", "--install-completion", "--show-completion"})  # of the program itself
_CHANGES = "mpsd.operations.lifecycle"
_LINES = {
    "status": ("mpsd.status.cluster_verbs", "Show nodes, GPUs and pods: granted, used, states. The default command."),
    "doctor": (
        "mpsd.operations.doctor.cluster",
        "Show why MPS does not start or limits are not enforced, and what to do.",
    ),
    "top": ("mpsd.status.cluster_verbs", "Show GPUs and the pods that use them, live, sorted."),
    "bundle": ("mpsd.operations.bundle.cluster", "Create a support bundle, without secrets."),
    "explain": ("mpsd.operations.explain.pod", "Show why a pod waits for a GPU, in one sentence."),
    "cordon": (f"{_CHANGES}.drain", "Take GPUs of a node out of use; running programs continue."),
    "uncordon": (f"{_CHANGES}.drain", "Put GPUs of a node back into use."),
    "drain": (f"{_CHANGES}.drain", "Empty GPUs of a node, and wait until no program is left."),
    "undrain": (f"{_CHANGES}.drain", "Put GPUs of a node back into use, and wait until they are ready."),
    "upgrade": (f"{_CHANGES}.upgrade", "Replace the control pods node by node; no program loses its GPU."),
    "uninstall": (f"{_CHANGES}.uninstall", "Remove mpsd from a cluster that does not use it."),
}
_VERBS = {name: Verb(line, module, "kubectl") for name, (module, line) in _LINES.items()}


def with_verb(words: Sequence[str], *, completing: bool = False) -> list[str]:
    """The command line with its verb in front, and `-o=json`, which kubectl takes, in the form that is read here."""
    words = [f"-o{word[3:]}" if word.startswith("-o=") else word for word in words]
    at = _first_word(words)
    if at is not None and words[at] in _VERBS:
        return [words[at], *words[:at], *words[at + 1 :]]
    if words and words[0] in _ALONE:
        return words
    if completing and at is None and not (words and words[-1] in _VALUED):
        return words  # any verb may come
    return ["status", *words]


def _first_word(words: Sequence[str]) -> int | None:
    """Where the first word stands that is no option, nor the value of one."""
    is_value = False
    for position, word in enumerate(words):
        if not is_value and not word.startswith("-"):
            return position
        is_value = not is_value and word in _VALUED
    return None


class _KubectlVerbs(Verbs):
    program = "kubectl mps"
    verbs = _VERBS

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = with_verb(args, completing=ctx.resilient_parsing)
        if ctx.resilient_parsing and words and words[-1] in _VALUED:
            words.pop()  # whose value is asked for: without it the rest would not be read
        rest: list[str] = super().parse_args(ctx, words)
        return rest

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Verbs, and what status without its name would be completed with."""
        status = self.load("status")
        inner = status.make_context("status", [], parent=ctx, resilient_parsing=True)
        nodes = next(parameter for parameter in status.params if parameter.name == "nodes")
        own: list[Any] = super().shell_complete(ctx, incomplete)
        options = status.shell_complete(inner, incomplete)
        offered = [*own, *nodes.shell_complete(inner, incomplete), *options]
        return list({item.value: item for item in offered}.values())


app = typer.Typer(
    cls=_KubectlVerbs, rich_markup_mode="markdown", pretty_exceptions_enable=False, context_settings=CONTEXT_SETTINGS
)


def _kubectl_mps(version: Version = False) -> None:
    """Show and manage the GPUs of a cluster that mpsd shares.

        kubectl mps                            nodes, GPUs and pods
        kubectl mps gpu-a1 -o wide             one node, all columns
        kubectl mps -w                         live, until Ctrl-C
        kubectl mps top                        GPU use, live, sorted
        kubectl mps explain train-0            why a pod waits
        kubectl mps doctor                     problems, with remedies
        kubectl mps bundle                     create a support bundle
        kubectl mps cordon gpu-a1 gpu0         no new pods on it
        kubectl mps uncordon gpu-a1 gpu0
        kubectl mps drain gpu-a1 --evict       empty it; undrain puts it back
        kubectl mps upgrade --dry-run          control daemons that are out of date
        kubectl mps uninstall --dry-run        what belongs to mpsd, and its users

    The cluster is chosen as with kubectl: --kubeconfig, --context, KUBECONFIG. Exit codes: 0 everything is ready, 1
    something is not, 2 usage error, 130 after the Ctrl-C that ends -w. For one line a node: kubectl get mps.
    """


app.callback(help=help_of(_kubectl_mps))(_kubectl_mps)


def main() -> None:
    """The entry point of `kubectl-mps`."""
    run(app, "kubectl-mps")


def complete() -> None:
    """The entry point of `kubectl_complete-mps`."""
    offer(app, "kubectl-mps")
