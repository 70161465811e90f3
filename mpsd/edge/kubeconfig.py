"""A connection to the cluster that kubectl would ask: for the programs of people, not for those of a node.

One rule: the same files and the same context in the same order as kubectl: --kubeconfig, KUBECONFIG, ~/.kube/config,
and in a pod without any of them its service account; the first file that names a current context says which.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from mpsd.core.problem import InvalidInput, Problem, shown
from mpsd.edge.kube import Kube, connect

_DEADLINE_S = 15.0  # of a call: people ask from far away, and of thousands of nodes at once


def open_kube_of_user(kubeconfig: str | None, context: str | None, environment: Mapping[str, str] = os.environ) -> Kube:
    """kubeconfig: a path, or several with colons between them. None: as kubectl finds it.

    InvalidInput where there is no such file or no such context; no request is made yet.
    """
    from kubernetes import config

    variable = environment.get("KUBECONFIG")
    where = "--kubeconfig" if kubeconfig else "KUBECONFIG" if variable else "the kubeconfig"
    named = kubeconfig or variable or "~/.kube/config"
    files = [path for part in named.split(os.pathsep) if part and (path := Path(part).expanduser()).is_file()]
    if not files:
        if not kubeconfig and not variable and "KUBERNETES_SERVICE_HOST" in environment:
            return connect(config.load_incluster_config, _DEADLINE_S)
        raise _wrong(where, named, "is not there", "name one with --kubeconfig, or in KUBECONFIG")
    contexts, current = _contexts(where, files)
    wanted = context or current
    if wanted not in contexts:
        what = ("--context", wanted, "is in no kubeconfig") if context else (where, named, "names no current context")
        raise _wrong(*what, f"name one with --context: {', '.join(contexts) or 'there is none'}")
    merged = os.pathsep.join(map(str, files))
    return connect(partial(config.load_kube_config, merged, wanted), _DEADLINE_S)


def _contexts(where: str, files: Sequence[Path]) -> tuple[list[str], str]:
    """The names of the contexts, and the current one; empty where none is."""
    contexts: list[str] = []
    current = ""
    for file in files:
        read = _read(where, file)
        entries = read.get("contexts")
        names = [entry.get("name") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        contexts += [name for name in names if isinstance(name, str)]
        current = current or str(read.get("current-context") or "")
    return list(dict.fromkeys(contexts)), current


def _read(where: str, file: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise _wrong(where, str(file), f"cannot be read: {why}", "see whether `kubectl config view` can") from None
    if not isinstance(read, dict):
        raise _wrong(where, str(file), "is no kubeconfig", "see what `kubectl config view` says")
    return read


def _wrong(where: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput("kubeconfig", [Problem("kubeconfig", where, shown(value, 200), message, remedy)])
