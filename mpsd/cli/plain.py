"""Plain questions, answered before the library of the command line has loaded: that alone takes longer than kubectl.

A line is plain or it is left to that library, which reads every line; both read a plain one as the same.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from mpsd.platform.imports import starting

STATUS = {"-o": "output", "--output": "output", "--kubeconfig": "kubeconfig", "--context": "context"}
MACHINE = {"-o": "output", "--output": "output", "--run-dir": "run_dir"}
TOP = {"-n": "namespace", "--namespace": "namespace", "--kubeconfig": "kubeconfig", "--context": "context"}
_SERVING = {"control": "agent", "agent": "agent", "webhook": "webhook", "scheduler": "scheduler"}  # what each needs
_FORMATS = frozenset({"text", "wide", "json", "yaml"})


def plain(words: Sequence[str], options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a line that has nothing but these, each with a word of its own; None for any other line."""
    found: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, is_joined, value = word.partition("=")
        if name not in options or (is_joined and not name.startswith("--")):
            return None
        if not is_joined:
            value = left.pop(0) if left else ""
        if not value or value.startswith("-"):
            return None
        found[options[name]] = value
    return found if found.get("output", "text") in _FORMATS else None


def kubectl_mps() -> None:
    """The entry point of `kubectl-mps`."""
    words = sys.argv[1:]
    if not _is_completing("KUBECTL_MPS"):
        once = plain([word for word in words[1:] if word != "--once"], TOP) if words[:1] == ["top"] else None
        if once is not None and words.count("--once") == 1:
            _cluster("kubectl mps top", "kubectl-mps", once, is_top=True)
        if (asked := plain(words[1:] if words[:1] == ["status"] else words, STATUS)) is not None:
            _cluster("kubectl mps", "kubectl-mps", asked)
    with starting():
        from mpsd.cli.kubectl_mps import main
    main()


def mpsd() -> None:
    """The entry point of `mpsd`."""
    words = sys.argv[1:]
    if words[:1] == ["status"] and not _is_completing("MPSD"):
        if (here := plain(words[1:], MACHINE)) is not None:
            with starting():
                from mpsd.platform.console import StatusFormat, ending
                from mpsd.status.machine import show_machine

            with ending("mpsd"):
                show_machine(here.get("run_dir"), StatusFormat(here.get("output", "text")), watch=False)
        asked = plain([word for word in words[1:] if word != "--cluster"], STATUS)
        if asked is not None and words.count("--cluster") == 1:
            _cluster("mpsd status", "mpsd", asked)
    if words[:1] and words[0] in _SERVING and not _is_completing("MPSD"):
        _serve(words[0], words[1:])
    with starting():
        from mpsd.cli.main import main
    main()


def _serve(name: str, words: Sequence[str]) -> None:
    """Runs a process that lasts, where its line has settings alone: the library that reads other lines would stay."""
    from mpsd.platform.console import ending, extra_needed

    if name == "control":  # asyncio does without, and so does a process that opens no connection: 7 MiB of OpenSSL
        sys.modules["ssl"] = None  # type: ignore[assignment]
    with extra_needed(f"mpsd {name}", _SERVING[name]), starting():
        verb = getattr(import_module(f"mpsd.cli.{name}"), name)
    flags = plain(words, {setting.flag: setting_name for setting_name, setting in verb.settings.items()})
    if flags is not None:
        with ending("mpsd"):
            verb(**dict.fromkeys(verb.settings) | flags)
        sys.exit()


def _is_completing(program: str) -> bool:
    return f"_{program}_COMPLETE" in os.environ


def _cluster(verb: str, program: str, asked: Mapping[str, str], *, is_top: bool = False) -> None:
    """Shows the cluster, or one look of `top` at it, and ends the program."""
    from mpsd.status.glance import Glance

    kubeconfig, context = asked.get("kubeconfig"), asked.get("context")
    glance = Glance((), kubeconfig, context)
    with starting():  # while kubectl asks
        from mpsd.platform.console import StatusFormat, ending
        from mpsd.platform.imports import unswept
        from mpsd.status.cluster_answers import ClusterAccess, cluster_tops, show_cluster

        if is_top:
            from mpsd.status.rules.top import Sort
            from mpsd.status.top_show import TopOptions, show_top

    cluster = ClusterAccess(verb, kubeconfig, context)
    with ending(program):
        if is_top:
            once = TopOptions(verb, Sort.MEMORY, interval_s=1.0, iterations=1, as_json=False, plain=True)
            with unswept():
                show_top(once, cluster_tops(cluster, (), asked.get("namespace"), glance))
        output = StatusFormat(asked.get("output", "text"))
        show_cluster(cluster, (), output, watch=False, glance=glance)
