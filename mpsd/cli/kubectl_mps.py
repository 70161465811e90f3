"""`kubectl mps`, and what kubectl asks at Tab.

Options may stand before the command, and no command means status.
"""

import sys
from collections.abc import Sequence

from mpsd.platform.imports import starting

with starting():
    from mpsd.platform.command_line import TAB, Program, Verb

# Options with a word after them.
_VALUED = frozenset(
    {"-o", "--output", "--kubeconfig", "--context", "-n", "--namespace"}
    | {"--gpu", "--timeout", "-l", "--selector", "--sort", "--interval", "--iterations"}
)
# of the program itself
_ALONE = frozenset({"-h", "--help", "--version", "--show-completion"})
_VERBS = (
    Verb("status", "mpsd.status.cluster_verbs", "Show nodes, GPUs and pods. The default command."),
    Verb("doctor", "mpsd.operations.doctor.cluster", "Find what is wrong, with remedies."),
    Verb("top", "mpsd.status.cluster_verbs", "Show GPUs and the pods that use them, live, sorted."),
    Verb("bundle", "mpsd.operations.bundle.cluster", "Create a support bundle, without secrets."),
    Verb("explain", "mpsd.operations.explain.pod", "Show why a pod waits for a GPU."),
    Verb("cordon", "mpsd.operations.lifecycle.drain", "Take GPUs out of use; programs continue."),
    Verb("uncordon", "mpsd.operations.lifecycle.drain", "Put GPUs of a node back into use."),
    Verb("drain", "mpsd.operations.lifecycle.drain", "Empty GPUs of a node, and wait."),
    Verb("undrain", "mpsd.operations.lifecycle.drain", "Put GPUs back into use, and wait."),
    Verb("upgrade", "mpsd.operations.lifecycle.upgrade", "Replace the control pods node by node."),
    Verb("uninstall", "mpsd.operations.lifecycle.uninstall", "Remove mpsd from the cluster."),
)


def _first_word(words: Sequence[str]) -> int | None:
    """Where the first word is that is no option, nor the value of one."""
    is_value = False
    for position, word in enumerate(words):
        if not is_value and not word.startswith("-"):
            return position
        is_value = not is_value and word in _VALUED
    return None


class _KubectlMps(Program):
    extra = "kubectl"

    def arranged(self, words: Sequence[str]) -> Sequence[str]:
        at = _first_word(words)
        if at is not None and words[at] in self.verbs:
            return [words[at], *words[:at], *words[at + 1 :]]
        if words and words[0] in _ALONE:
            return words
        return ["status", *words]

    def may_name_verb(self, before: Sequence[str]) -> bool:
        return _first_word(before) is None and not (before and before[-1] in _VALUED)


KUBECTL_MPS = _KubectlMps(
    "kubectl mps",
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

    The cluster is chosen as with kubectl: --kubeconfig, --context, KUBECONFIG. Exit codes: 0
    everything is ready, 1 something is not, 2 usage error, 130 after the Ctrl-C that ends -w. For
    one line a node: kubectl get mps.
    """,
    _VERBS,
)


def main() -> None:
    """The entry point of `kubectl-mps`."""
    KUBECTL_MPS.run(sys.argv[1:])


def complete() -> None:
    """The entry point of `kubectl_complete-mps`."""
    KUBECTL_MPS.run([TAB, *sys.argv[1:]])
    print(":4")  # cobra's ShellCompDirectiveNoFileComp
