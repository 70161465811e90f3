"""Pods of a node and what kubelet says of them, for tests of the device plugin's core."""

from collections.abc import Mapping
from typing import Any

from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod, read_node_pod
from tests.model.worlds import POLICY, UUIDS

MEM, PERCENT, COUNT = POLICY.resources.memory, POLICY.resources.percent, POLICY.resources.count
BOOT = "a-boot"


def container(
    name: str = "main", mem: object = None, percent: object = None, **fields: object
) -> dict[str, object]:
    """A container that asks for so many units and so many percent; None asks for none."""
    limits = {key: value for key, value in ((MEM, mem), (PERCENT, percent)) if value is not None}
    return {"name": name, "resources": {"limits": limits}, **fields}


def pod_object(
    name: str = "train-0",
    *containers: dict[str, object],
    init: tuple[dict[str, object], ...] = (),
    age: int = 0,
    gpus: int | None = None,
    annotations: Mapping[str, object] | None = None,
    phase: str = "Pending",
    metadata: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """A pod as the API lists it. age: a larger one is older."""
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": f"2026-01-01T00:00:{59 - age:02}Z",
            "labels": {COUNT: str(gpus)} if gpus else {},
            "annotations": annotations or {},
            **(metadata or {}),
        },
        "spec": {
            "containers": list(containers or [container(mem=7)]),
            "initContainers": list(init),
        },
        "status": {"phase": phase},
    }


def node_pod(name: str = "train-0", *containers: dict[str, object], **fields: Any) -> NodePod:
    """As mpsd reads `pod_object` of the same."""
    pod = read_node_pod(pod_object(name, *containers, **fields), POLICY)
    assert pod
    return pod


def named(pod: str = "train-0", container_name: str = "main") -> ContainerName:
    return ContainerName("default", pod, container_name)


def mem_ids(count: int, gpu: int = 0, first: int = 0) -> tuple[str, ...]:
    """So many memory devices of one of the two GPUs."""
    return tuple(f"{UUIDS[gpu]}/{first + n}" for n in range(count))


def percent_ids(count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"percent/{first + n}" for n in range(count))


def devices(
    name: ContainerName, memory: tuple[str, ...] = (), percent: tuple[str, ...] = ()
) -> ContainerDevices:
    return ContainerDevices(name, memory, percent)


def entry(
    ids: tuple[str, ...],
    pod: ContainerName | None = None,
    thread_percent: int | None = None,
    at: float = 1.0,
    uid: str = "",
) -> JournalEntry:
    """One answer to kubelet, as the journal has it."""
    of_percent = bool(ids) and ids[0].startswith("percent/")
    return JournalEntry(
        "percent" if of_percent else "memory", ids, pod, thread_percent, BOOT, at, uid
    )
