"""The parts of a container that mpsd reads.

One rule: reading never raises; what has the wrong shape is noted by `Shape` with its path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mpsd.model.fields import Fields, Shape, at
from mpsd.model.problem import printable

_CONTAINER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label, as Kubernetes asks


class Role(StrEnum):
    """When a container runs: beside the others, before them, before and beside them, or added while they run."""

    MAIN = "main"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


class Variable(NamedTuple):
    """One entry of `env` of the container at this path. value: None when it comes from elsewhere (`valueFrom`).

    A tuple, since a pod can have thousands, and a frozen dataclass takes twice as long to make.
    """

    name: str
    value: str | None
    container: str

    @property
    def path(self) -> str:
        return f"{self.container}.env[{printable(self.name)}]"


@dataclass(frozen=True, slots=True)
class VariableSource:
    """One entry of `envFrom`: every key of a ConfigMap or Secret becomes a variable, behind the prefix."""

    kind: str
    name: str
    prefix: str
    path: str


@dataclass(frozen=True, slots=True)
class RunAs:
    """Who a container's programs run as. uid: None where the image says."""

    uid: int | None
    non_root: bool


@dataclass(frozen=True, slots=True)
class Mount:
    """A place inside a container where a volume appears, as a folder, a file or a raw device.

    entry, key: lead to it in the object.
    """

    inside: str
    entry: str
    key: str

    @property
    def path(self) -> str:
        return at(self.entry, self.key)


@dataclass(frozen=True, slots=True)
class Container:
    """A container. path: leads to it from the object's root, with its name in place of its position.

    limits, requests: its resources, as they were written. has_claims: whether it uses a resource claim.
    capabilities: those added, as they were written. run_as: what the pod says, where the container does not.
    """

    name: str
    role: Role
    path: str
    limits: Fields
    requests: Fields
    has_claims: bool
    variables: tuple[Variable, ...]
    sources: tuple[VariableSource, ...]
    privileged: bool
    capabilities: tuple[str, ...]
    run_as: RunAs
    mounts: tuple[Mount, ...]


_SOURCES = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
_PLACES = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}


def read_container(shape: Shape, fields: Fields, path: str, role: Role, pod_runs_as: RunAs) -> Container:
    """The container in `fields`; role INIT becomes SIDECAR where it restarts always."""
    name = shape.text(fields, "name", path)
    if _CONTAINER_NAME.fullmatch(name):
        path = f"{path.rpartition('[')[0]}[{name}]"
    if role is Role.INIT and shape.text(fields, "restartPolicy", path) == "Always":
        role = Role.SIDECAR
    resources, resources_path = shape.mapping(fields, "resources", path), f"{path}.resources"
    security, security_path = shape.mapping(fields, "securityContext", path), f"{path}.securityContext"
    added = shape.mapping(security, "capabilities", security_path)
    return Container(
        name=name or "(no name)",
        role=role,
        path=path,
        limits=shape.mapping(resources, "limits", resources_path),
        requests=shape.mapping(resources, "requests", resources_path),
        has_claims=bool(shape.entries(resources, "claims", resources_path)),
        variables=tuple(_variables(shape, fields, path)),
        sources=tuple(_sources(shape, fields, path)),
        privileged=shape.flag(security, "privileged", security_path),
        capabilities=shape.texts(added, "add", f"{security_path}.capabilities"),
        run_as=read_run_as(shape, security, security_path, pod_runs_as),
        mounts=tuple(_mounts(shape, fields, path)),
    )


def read_run_as(shape: Shape, security: Fields, path: str, otherwise: RunAs) -> RunAs:
    """What a security context says, and `otherwise` where it is silent."""
    if not security:
        return otherwise
    return RunAs(
        uid=shape.number(security, "runAsUser", path, absent=otherwise.uid),
        non_root=shape.flag(security, "runAsNonRoot", path, absent=otherwise.non_root),
    )


def _variables(shape: Shape, container: Fields, path: str) -> Iterator[Variable]:
    for entry_path, entry in shape.entries(container, "env", path):
        name = shape.text(entry, "name", entry_path)
        value = shape.text(entry, "value", entry_path)
        elsewhere = entry.get("valueFrom") is not None
        yield Variable(name, None if elsewhere else value, path)


def _sources(shape: Shape, container: Fields, path: str) -> Iterator[VariableSource]:
    for entry_path, entry in shape.entries(container, "envFrom", path):
        prefix = shape.text(entry, "prefix", entry_path)
        for key, kind in _SOURCES.items():
            reference = shape.mapping(entry, key, entry_path)
            if reference:
                name = shape.text(reference, "name", at(entry_path, key))
                yield VariableSource(kind, name or "(no name)", prefix, entry_path)


def _mounts(shape: Shape, container: Fields, path: str) -> Iterator[Mount]:
    for key, place in _PLACES.items():
        for entry_path, entry in shape.entries(container, key, path):
            yield Mount(shape.text(entry, place, entry_path), entry_path, place)
