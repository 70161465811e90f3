"""A connection to the cluster that kubectl would ask: for the programs of people, not for those of a node.

One rule: the same files and the same context in the same order as kubectl: --kubeconfig, KUBECONFIG, ~/.kube/config,
and in a pod without any of them its service account; the first file that names a current context says which.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from mpsd.core.problem import InvalidInput, Problem, shown
from mpsd.edge.kube import Kube, connect
from mpsd.edge.kube_access import SERVICE_ACCOUNT

_DEFAULT = "default"
_DEADLINE_S = 15.0  # of a call: people ask from far away, and of thousands of nodes at once


def open_kube_of_user(kubeconfig: str | None, context: str | None, environment: Mapping[str, str] = os.environ) -> Kube:
    """kubeconfig: a path, or several with colons between them. None: as kubectl finds it.

    InvalidInput where there is no such file or no such context; no request is made yet.
    """
    from kubernetes import config

    chosen = _chosen(kubeconfig, context, environment)
    if chosen is None:
        return connect(config.load_incluster_config, _DEADLINE_S)
    merged = os.pathsep.join(map(str, chosen.files))
    return connect(partial(config.load_kube_config, merged, chosen.context), _DEADLINE_S)


def namespace_of_user(kubeconfig: str | None, context: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The one that kubectl would take where none is said: that of the context, or of the pod this runs in. InvalidInput
    as for a connection."""
    chosen = _chosen(kubeconfig, context, environment)
    if chosen is not None:
        return chosen.namespace or _DEFAULT
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or _DEFAULT
    except OSError:
        return _DEFAULT


@dataclass(frozen=True, slots=True)
class _Chosen:
    """namespace: empty where the context names none."""

    files: Sequence[Path]
    context: str
    namespace: str


def _chosen(kubeconfig: str | None, context: str | None, environment: Mapping[str, str]) -> _Chosen | None:
    """None for the service account of the pod this runs in."""
    variable = environment.get("KUBECONFIG")
    where = "--kubeconfig" if kubeconfig else "KUBECONFIG" if variable else "the kubeconfig"
    named = kubeconfig or variable or "~/.kube/config"
    files = [path for part in named.split(os.pathsep) if part and (path := Path(part).expanduser()).is_file()]
    if not files:
        if not kubeconfig and not variable and "KUBERNETES_SERVICE_HOST" in environment:
            return None
        raise _wrong(where, named, "is not there", "name one with --kubeconfig, or in KUBECONFIG")
    contexts, current = _contexts(where, files)
    wanted = context or current
    if wanted not in contexts:
        what = ("--context", wanted, "is in no kubeconfig") if context else (where, named, "names no current context")
        raise _wrong(*what, f"name one with --context: {', '.join(contexts) or 'there is none'}")
    return _Chosen(files, wanted, contexts[wanted])


def _contexts(where: str, files: Sequence[Path]) -> tuple[dict[str, str], str]:
    """The contexts' names with their namespaces, empty where they name none; and the current one, empty where none is.

    Of a name that is there twice the first counts.
    """
    contexts: dict[str, str] = {}
    current = ""
    for file in files:
        read = _read(where, file)
        entries = read.get("contexts")
        found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        for name, inner in ((entry.get("name"), entry.get("context")) for entry in found):
            if isinstance(name, str):
                namespace = inner.get("namespace") if isinstance(inner, dict) else None
                contexts.setdefault(name, namespace if isinstance(namespace, str) else "")
        current = current or str(read.get("current-context") or "")
    return contexts, current


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
