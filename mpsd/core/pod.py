"""The parts of a pod that mpsd reads, whichever object the pod was found in.

One rule: reading never raises; what has the wrong shape is noted by `Shape` with its path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mpsd.core.problem import Problem
from mpsd.core.shape import Fields, Shape, at

_CONTAINER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label, as Kubernetes asks


class Role(StrEnum):
    """When a container runs: beside the others, before them, before and beside them, or added while they run."""

    MAIN = "main"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of `env`. value: None when it comes from somewhere else (`valueFrom`)."""

    name: str
    value: str | None
    path: str


@dataclass(frozen=True, slots=True)
class VariableSource:
    """One entry of `envFrom`: every key of a ConfigMap or Secret becomes a variable, behind the prefix."""

    kind: str
    name: str
    prefix: str
    path: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container. path: leads to it from the object's root, with its name in place of its position.

    limits, requests: its resources, as they were written.
    """

    name: str
    role: Role
    path: str
    limits: Fields
    requests: Fields
    variables: tuple[Variable, ...]
    sources: tuple[VariableSource, ...]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or the template of one. path: leads to it from the object's root, empty for a bare pod."""

    path: str
    labels: Fields
    host_ipc: bool
    containers: tuple[Container, ...]


_FIELDS = {"initContainers": Role.INIT, "containers": Role.MAIN, "ephemeralContainers": Role.EPHEMERAL}
_SOURCES = {"configMapRef": "ConfigMap", "secretRef": "Secret"}


def read_pod(shape: Shape, fields: Fields, path: str) -> Pod:
    """The pod whose `metadata` and `spec` are in `fields`."""
    metadata = shape.mapping(fields, "metadata", path)
    spec = shape.needed(fields, "spec", path)
    spec_path = at(path, "spec")
    if spec is None:
        spec = {}
    elif spec.get("containers") in (None, []):
        problem = Problem("field-missing", at(spec_path, "containers"), "", "holds no container", "add a container")
        shape.problems.append(problem)
    containers = [
        _container(shape, entry, entry_path, role)
        for key, role in _FIELDS.items()
        for entry_path, entry in shape.entries(spec, key, spec_path)
    ]
    return Pod(
        path=path,
        labels=shape.mapping(metadata, "labels", at(path, "metadata")),
        host_ipc=shape.flag(spec, "hostIPC", spec_path),
        containers=tuple(containers),
    )


def _container(shape: Shape, fields: Fields, path: str, role: Role) -> Container:
    name = shape.text(fields, "name", path)
    if _CONTAINER_NAME.fullmatch(name):
        path = f"{path.rpartition('[')[0]}[{name}]"
    if role is Role.INIT and shape.text(fields, "restartPolicy", path) == "Always":
        role = Role.SIDECAR
    resources = shape.mapping(fields, "resources", path)
    resources_path = at(path, "resources")
    return Container(
        name=name or "(no name)",
        role=role,
        path=path,
        limits=shape.mapping(resources, "limits", resources_path),
        requests=shape.mapping(resources, "requests", resources_path),
        variables=tuple(_variables(shape, fields, path)),
        sources=tuple(_sources(shape, fields, path)),
    )


def _variables(shape: Shape, container: Fields, path: str) -> Iterator[Variable]:
    for entry_path, entry in shape.entries(container, "env", path):
        value = shape.text(entry, "value", entry_path)
        elsewhere = entry.get("valueFrom") is not None
        yield Variable(shape.text(entry, "name", entry_path), None if elsewhere else value, entry_path)


def _sources(shape: Shape, container: Fields, path: str) -> Iterator[VariableSource]:
    for entry_path, entry in shape.entries(container, "envFrom", path):
        prefix = shape.text(entry, "prefix", entry_path)
        for key, kind in _SOURCES.items():
            reference = shape.mapping(entry, key, entry_path)
            if reference:
                name = shape.text(reference, "name", at(entry_path, key))
                yield VariableSource(kind, name or "(no name)", prefix, entry_path)
