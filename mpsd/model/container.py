"""A container of a pod: what mpsd reads of it, as `mpsd.model.pod` decodes it."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import field
from msgspec.structs import force_setattr

from mpsd.model.fields import Fields, Part
from mpsd.model.problem import printable

# a DNS label, as Kubernetes asks
_CONTAINER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Role(StrEnum):
    """When a container runs."""

    MAIN = "main"
    #: before the others
    INIT = "init"
    #: before and beside the others
    SIDECAR = "sidecar"
    #: added while the others run
    EPHEMERAL = "ephemeral"


CONTAINER_FIELDS = {
    "initContainers": Role.INIT,
    "containers": Role.MAIN,
    "ephemeralContainers": Role.EPHEMERAL,
}


class Read(Part, frozen=True, gc=False, rename="camel"):
    """A part of a pod. What the object leaves out has the value that Kubernetes gives it."""


class Variable(Read, frozen=True, gc=False):
    """One entry of `env`."""

    name: str = ""
    value: str = ""
    #: None where the value stands here
    value_from: Any = None

    @property
    def text(self) -> str | None:
        """None where it comes from elsewhere."""
        return self.value if self.value_from is None else None


class Named(Read, frozen=True, gc=False):
    name: str = ""


class _EnvFrom(Read, frozen=True, gc=False):
    prefix: str = ""
    config_map_ref: Named | None = None
    secret_ref: Named | None = None


class VariableSource(NamedTuple):
    """Every key of a ConfigMap or Secret becomes a variable, behind the prefix."""

    kind: str
    name: str
    prefix: str
    path: str


class VolumeMount(Read, frozen=True, gc=False):
    """Where a volume, or its sub_path, appears inside a container, also as a raw device."""

    #: the volume's
    name: str = ""
    mount_path: str = ""
    device_path: str = ""
    sub_path: str = ""
    #: the same with variables
    sub_path_expr: str = ""


class _Capabilities(Read, frozen=True, gc=False):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SecurityContext(Read, frozen=True, gc=False):
    """Of a container, or of a pod, which has only the user of these."""

    privileged: bool = False
    capabilities: _Capabilities = _Capabilities()
    #: whether a setuid program has its effect
    may_escalate: bool = field(default=True, name="allowPrivilegeEscalation")
    #: None where the pod, or the image, says
    run_as_user: int | None = None
    run_as_non_root: bool | None = None


class _Amounts(Read, frozen=True, gc=False):
    limits: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    claims: tuple[Named, ...] = ()


# what mpsd adds as `lifecycle.preStop`, so that the agent stops clients before kubelet's SIGTERM
PRE_STOP_S = 1
PRE_STOP: Fields = {"sleep": {"seconds": PRE_STOP_S}}


class _Lifecycle(Read, frozen=True, gc=False):
    pre_stop: Any = None
    stop_signal: str = ""


class Container(Read, frozen=True, gc=False):
    name: str = ""
    restart_policy: str = ""
    resources: _Amounts = _Amounts()
    env: tuple[Variable, ...] = ()
    env_from: tuple[_EnvFrom, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeMount, ...] = ()
    security: SecurityContext = field(default=SecurityContext(), name="securityContext")
    lifecycle: _Lifecycle = _Lifecycle()
    # Set by `read_pod`, whatever an object has under these names.
    role: Role = field(default=Role.MAIN, name="/role")
    #: leads to it from the object's root, with its name in place of its position
    path: str = field(default="", name="/path")

    @classmethod
    def path_of_entry(cls, entry: Fields, path: str) -> str:
        """Where an entry of a list is: by its name, where it has one. path: by its position."""
        name = entry.get("name")
        is_name = isinstance(name, str) and _CONTAINER_NAME.fullmatch(name)
        return f"{path.rpartition('[')[0]}[{name}]" if is_name else path

    @property
    def limits(self) -> Fields:
        return self.resources.limits

    @property
    def requests(self) -> Fields:
        return self.resources.requests

    @property
    def claims(self) -> tuple[str, ...]:
        """By the pod's names for them."""
        return tuple(one.name for one in self.resources.claims)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Those added."""
        return self.security.capabilities.add

    @property
    def drops_all(self) -> bool:
        return "ALL" in self.security.capabilities.drop

    def path_of(self, variable: Variable) -> str:
        return f"{self.path}.env[{printable(variable.name)}]"

    @property
    def sources(self) -> Iterator[VariableSource]:
        for position, one in enumerate(self.env_from):
            path = f"{self.path}.envFrom[{position}]"
            for kind, named in (("ConfigMap", one.config_map_ref), ("Secret", one.secret_ref)):
                if named is not None:
                    yield VariableSource(kind, named.name or "(no name)", one.prefix, path)

    @property
    def mounts(self) -> Iterator[tuple[str, VolumeMount]]:
        """Each with the path of its entry in the object."""
        listed = {"volumeMounts": self.volume_mounts, "volumeDevices": self.volume_devices}
        for key, mounts in listed.items():
            for position, one in enumerate(mounts):
                yield f"{self.path}.{key}[{position}]", one

    def asks_for_devices(self) -> bool:
        return bool(self.claims) or any("/" in name for name in (*self.limits, *self.requests))

    def size(self) -> int:
        """How many entries there are."""
        parts = self.limits, self.requests, self.resources.claims, self.env, self.env_from
        mounts = self.volume_mounts, self.volume_devices
        capabilities = self.security.capabilities
        return sum(map(len, (*parts, *mounts, capabilities.add, capabilities.drop)))


def place(containers: tuple[Container, ...], role: Role, path: str) -> None:
    for position, one in enumerate(containers):
        is_sidecar = role is Role.INIT and one.restart_policy == "Always"
        force_setattr(one, "role", Role.SIDECAR if is_sidecar else role)
        name = one.name if _CONTAINER_NAME.fullmatch(one.name) else str(position)
        force_setattr(one, "path", f"{path}[{name}]")
        if not one.name:
            force_setattr(one, "name", "(no name)")
