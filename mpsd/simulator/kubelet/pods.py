"""What the simulated kubelet reads of a pod: its containers, what they run and which devices they
ask for.

The pod has been through an API server, so any other shape is a mistake in a test.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mpsd.model.container import Role
from mpsd.simulator.api_server.kinds import claim_names

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USUAL_GRACE_S = 30.0

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SimContainer:
    """A container. command: empty where the image would say. uid: None where the image says.

    environment: what the pod itself says; it beats what a device plugin says, and CDI beats it.
    devices: how many of each resource. claims: the pod's names of the resource claims that it has.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    environment: Mapping[str, str]
    devices: Mapping[str, int]
    uid: int | None
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimPod:
    """A pod of this node. restart: Always, OnFailure or Never. is_deleted: somebody asked for its
    deletion.

    phase: what the API says of it; a pod that has ended there is never started again. claims: the
    names of its resource claims by those that the pod has for them; empty where one is not made
    yet.
    """

    namespace: str
    name: str
    uid: str
    containers: tuple[SimContainer, ...]
    restart: str
    grace_s: float
    is_deleted: bool
    phase: str
    claims: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def has_ended(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}


def read_pod(pod: Json) -> SimPod:
    """The pod in a decoded object of the API. Containers come in the order in which kubelet
    allocates for them."""
    metadata = pod["metadata"]
    spec = pod["spec"]
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
        claims=claim_names(dict(pod)),
    )


def _container(pod: Json, container: Json, role: Role) -> SimContainer:
    if role is Role.INIT and container.get("restartPolicy") == "Always":
        role = Role.SIDECAR
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    security = {
        **(pod["spec"].get("securityContext") or {}),
        **(container.get("securityContext") or {}),
    }
    return SimContainer(
        name=container["name"],
        role=role,
        command=(*(container.get("command") or ()), *(container.get("args") or ())),
        environment={
            "PATH": _PATH,
            "HOSTNAME": pod["metadata"]["name"],
            **dict(_variables(pod, container)),
        },
        devices={name: int(amount) for name, amount in limits.items() if "/" in name},
        uid=security.get("runAsUser"),
        claims=tuple(one["name"] for one in resources.get("claims") or ()),
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


# -- differences between versions of kubelet
# A difference is in here only where kubelet's code was read, and `mpsd` could notice it.


@dataclass(frozen=True, slots=True)
class Version:
    """One release of kubelet.

    dials_before_it_answers: Register fails where the plugin's socket does not answer; otherwise it
    succeeds. knows_plugins_by_socket: where one ends, it can tell which of those of the same
    resource it was. deletes_files: what is left in the device-plugins folder at its start goes, not
    only sockets. checks_held_devices: a pod that holds devices already is refused at a restart of
    kubelet when they are not healthy and its containers do not run. entry_a_device: PodResources
    gives each device an entry of its own. lists_ended_pods, lists_sidecars: PodResources names
    them, too. rejected: how the message of a pod begins that is refused.
    """

    name: str
    dials_before_it_answers: bool
    knows_plugins_by_socket: bool
    deletes_files: bool
    checks_held_devices: bool
    entry_a_device: bool
    lists_ended_pods: bool
    lists_sidecars: bool
    rejected: str


OLDEST = Version(
    "1.20",
    dials_before_it_answers=False,
    knows_plugins_by_socket=True,
    deletes_files=True,
    checks_held_devices=False,
    entry_a_device=False,
    lists_ended_pods=True,
    lists_sidecars=False,
    rejected="Pod ",
)
NEWEST = Version(
    "1.36",
    dials_before_it_answers=True,
    knows_plugins_by_socket=True,
    deletes_files=False,
    checks_held_devices=True,
    entry_a_device=True,
    lists_ended_pods=False,
    lists_sidecars=True,
    rejected="Pod was rejected: ",
)
CONFUSED = replace(NEWEST, name="1.30", knows_plugins_by_socket=False)


# How long the simulated kubelet waits for what.


@dataclass(frozen=True, slots=True)
class KubeletPace:
    """retry_s: before it tries the same again, at first; a real one waits 10 s.

    list_s, look_s: between two looks at which pods there are, and at how a container is.

    dial_s, forget_plugin_s: kubelet's own, for a plugin to answer when it registers, and until one
    that is gone is no longer counted among what the node has (endpointStopGracePeriod in the device
    manager's types.go).
    """

    retry_s: float = 1.0
    list_s: float = 0.2
    look_s: float = 0.02
    dial_s: float = 10.0
    forget_plugin_s: float = 300.0
