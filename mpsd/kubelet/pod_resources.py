"""Asks kubelet which devices the containers of this node hold, over its PodResources API v1.

One rule: what cannot be read is KubeletAway, never an empty answer, which would free every device.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import grpc

from mpsd.kubelet.api import podresources_pb2 as wire
from mpsd.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from mpsd.kubelet.kubelet_socket import KubeletRefused, KubeletUnavailable, dial, error_for
from mpsd.kubelet.rules.node_pods import ContainerName
from mpsd.kubelet.rules.pod_grants import ContainerDevices

Kind = Literal["memory", "percent"]

# 500 pods with 139 devices each are 6 MB where kubelet gives an entry a device, as it does in 1.36.
_LONGEST_ANSWER = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Listed:
    """What kubelet said. pods: the namespace and name of each that it knows, also of those that hold nothing."""

    held: tuple[ContainerDevices, ...]
    pods: frozenset[tuple[str, str]]


async def held_devices(socket: Path, resources: Mapping[str, Kind], deadline_s: float = 5.0) -> Listed:
    """What each container holds of `resources`, by their names; containers that hold none are left out.

    Init containers are not listed by kubelet, except those that it restarts. In order, which kubelet's answer is not:
    the same answer is given for the same state. KubeletAway where kubelet did not answer.
    """
    async with dial(socket, _LONGEST_ANSWER) as channel:
        try:
            answer = await PodResourcesListerStub(channel).List(wire.ListPodResourcesRequest(), timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            said = error_for(error, socket, deadline_s)
            raise KubeletUnavailable(str(said)) if isinstance(said, KubeletRefused) else said from None
    held = sorted(_holding(answer.pod_resources, resources), key=lambda one: astuple(one.container))
    return Listed(tuple(held), frozenset((pod.namespace, pod.name) for pod in answer.pod_resources))


def _holding(pods: Iterable[wire.PodResources], resources: Mapping[str, Kind]) -> Iterable[ContainerDevices]:
    for pod in pods:
        for container in pod.containers:
            ids = _ids(container, resources)
            if ids["memory"] or ids["percent"]:
                yield ContainerDevices(ContainerName(pod.namespace, pod.name, container.name), **ids)


def _ids(container: wire.ContainerResources, resources: Mapping[str, Kind]) -> dict[Kind, tuple[str, ...]]:
    """Kubelet 1.20 gives one entry a resource, 1.36 one a device and NUMA node: each id counts once."""
    ids: dict[Kind, dict[str, None]] = {"memory": {}, "percent": {}}
    for entry in container.devices:
        if entry.resource_name in resources:
            ids[resources[entry.resource_name]].update(dict.fromkeys(entry.device_ids))
    return {kind: tuple(sorted(held)) for kind, held in ids.items()}
