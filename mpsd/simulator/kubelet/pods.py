"""What the simulated kubelet reads of a pod: its containers, what they run and which devices they ask for.

One rule: the pod has been through an API server, so what has another shape is a mistake of whoever wrote the test.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpsd.model.pod import Role

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USUAL_GRACE_S = 30.0

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SimContainer:
    """A container. command: empty where the image would say. uid: None where the image says.

    environment: what the pod itself says; it beats what a device plugin says. devices: how many of each resource.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    environment: Mapping[str, str]
    devices: Mapping[str, int]
    uid: int | None


@dataclass(frozen=True, slots=True)
class SimPod:
    """A pod of this node. restart: Always, OnFailure or Never. is_deleted: somebody asked for its deletion.

    phase: what the API says of it; a pod that has ended there is never started again.
    """

    namespace: str
    name: str
    uid: str
    containers: tuple[SimContainer, ...]
    restart: str
    grace_s: float
    is_deleted: bool
    phase: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def has_ended(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}


def read_pod(pod: Json) -> SimPod:
    """The pod in a decoded object of the API. Containers come in the order in which kubelet allocates for them."""
    metadata, spec = pod["metadata"], pod["spec"]
    init = [_container(pod, each, Role.INIT) for each in spec.get("initContainers") or ()]
    main = [_container(pod, each, Role.MAIN) for each in spec["containers"]]
    grace = metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    return SimPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        containers=(*init, *main),
        restart=spec.get("restartPolicy", "Always"),
        grace_s=_USUAL_GRACE_S if grace is None else float(grace),
        is_deleted="deletionTimestamp" in metadata,
        phase=(pod.get("status") or {}).get("phase", ""),
    )


def _container(pod: Json, container: Json, role: Role) -> SimContainer:
    if role is Role.INIT and container.get("restartPolicy") == "Always":
        role = Role.SIDECAR
    limits = (container.get("resources") or {}).get("limits") or {}
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    return SimContainer(
        name=container["name"],
        role=role,
        command=(*(container.get("command") or ()), *(container.get("args") or ())),
        environment={"PATH": _PATH, "HOSTNAME": pod["metadata"]["name"], **dict(_variables(pod, container))},
        devices={name: int(amount) for name, amount in limits.items() if "/" in name},
        uid=security.get("runAsUser"),
    )


def _variables(pod: Json, container: Json) -> Iterator[tuple[str, str]]:
    """The pod's own variables; of those from elsewhere, only those from fields of the pod."""
    for variable in container.get("env") or ():
        field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
        yield variable["name"], _field(pod, field) if field else variable.get("value", "")


def _field(pod: Json, path: str) -> str:
    found: Any = pod
    for step in path.split("."):
        found = found.get(step, {})
    return found if isinstance(found, str) else ""
