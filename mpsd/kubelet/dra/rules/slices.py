"""Whether a node serves claims, and its ResourceSlice: GPUs as devices that several claims share.

The scheduler counts what claims take of a device (`consumedCapacity`), so a device offers what the
ledger could promise if no claim existed. Sources: k8s.io/api/resource/v1, KEP-5075 (consumable
capacity) and KEP-5055 (taints) of kubernetes/enhancements.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.domain import State
from mpsd.model.grants import Gpu, Grant, rooms
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy

API = "resource.k8s.io/v1"
MEMORY, THREADS, CLIENTS = "memory", "threads", "clients"  # the capacities of a device
TAINT = "mpsd.io/gpu"  # its value says why: a state of the GPU's domain, or UNREADABLE
UNREADABLE = "grant-unreadable"
NO_DAEMON = "no-daemon"
_NOT_SICK = frozenset({UNREADABLE, State.STARTING, State.DRAINING, State.DRAINED})

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
# https://kubernetes.io/docs/reference/node/dra-standard-device-attributes/
_PCI_BUS = "resource.kubernetes.io/pciBusID"
_NUMA_NODE = "resource.kubernetes.io/numaNode"
_LONGEST_TEXT = 64  # characters of an attribute
# By the major number of the compute capability, then by its minor where one says more: NVIDIA's
# names of them.
_ARCHITECTURES = {
    "7": "Volta",
    "7.5": "Turing",
    "8": "Ampere",
    "8.9": "Ada Lovelace",
    "9": "Hopper",
}
_ARCHITECTURES |= {"10": "Blackwell", "11": "Blackwell", "12": "Blackwell"}


class ServedBy(StrEnum):
    """How the GPUs of a node are served."""

    UNDECIDED = "not at all yet"
    PLUGINS = "by the device plugins"
    CLAIMS = "by resource claims"


@dataclass(frozen=True, slots=True)
class WayKnown:
    """label: its value, empty where the Node has none; None where that has not been read. claims,
    devices: whether anybody holds a GPU by a claim that kubelet has not given up, and by devices;
    None where that is not known."""

    label: str | None
    claims: bool
    devices: bool | None


def next_serving(now: ServedBy, known: WayKnown) -> ServedBy:
    """It changes once nobody holds a GPU by the other way: kubelet ends a claim through its driver
    alone, and what it gave as devices it gives again after a restart."""
    if known.claims:
        return ServedBy.CLAIMS
    if known.devices:
        return ServedBy.PLUGINS
    if known.devices is None or known.label is None:
        return now
    return ServedBy.CLAIMS if known.label == "true" else ServedBy.PLUGINS


@dataclass(frozen=True, slots=True)
class Pool:
    """Whose devices they are. node_uid: of the Node, which owns the slice."""

    driver: str
    node: str
    node_uid: str


def slice_name(node: str, driver: str) -> str:
    """Always the same one, which the next agent finds."""
    return f"{node}-{driver}"


def device_name(gpu: Gpu) -> str:
    """By its UUID, which means the same GPU after a reboot; by its ordinal where that is no DNS
    label."""
    name = gpu.uuid.lower()
    return name if _LABEL.fullmatch(name) else gpu.label


def taint_of(gpu: Gpu, view: NodeView) -> str:
    """Why the GPU takes no new claim; empty while it does."""
    if gpu.uuid in view.ungrantable:
        return UNREADABLE
    state = next((domain.state for domain in view.domains if gpu.uuid in domain.record.gpus), None)
    if state is State.READY:
        return ""
    return str(state or NO_DAEMON)


def trouble_of(gpu: Gpu, view: NodeView) -> str:
    """Why programs on the GPU cannot be well; empty while they can. A GPU that only takes no new
    claim is not sick."""
    if why := view.troubles.get(gpu.uuid):
        return why
    taint = taint_of(gpu, view)
    if not taint or taint in _NOT_SICK:
        return ""
    return f"{gpu.label} ({gpu.uuid}) serves no programs: {taint}"


def devices(view: NodeView, claimed: Iterable[str], policy: Policy) -> list[dict[str, Any]]:
    """Those of GPUs that have anything left. claimed: the ids of the grants that claims have."""
    own = frozenset(claimed)
    others = [held.grant for held in view.grants if held.grant.id not in own]
    domain_of = {uuid: domain.name for domain in view.domains for uuid in domain.record.gpus}
    found = [_device(gpu, domain_of.get(gpu.uuid, ""), others, view, policy) for gpu in view.gpus]
    return [*filter(None, found)]


def _device(
    gpu: Gpu, domain: str, others: Sequence[Grant], view: NodeView, policy: Policy
) -> dict[str, Any] | None:
    (room,) = rooms([gpu], {gpu.uuid: domain}, others, policy)
    unit_mib = policy.resources.memory_unit_mib
    requests = policy.requests
    memory_mib = room.memory_mib // unit_mib * unit_mib
    threads = max(0, room.thread_percent)
    if memory_mib < unit_mib or room.clients < requests.clients_per_grant:
        return None
    # of one claim
    card_mib = min(memory_mib, (gpu.memory_mib - gpu.capability.server_mib) // unit_mib * unit_mib)
    step = requests.thread_percent_step
    device: dict[str, Any] = {
        "name": device_name(gpu),
        "allowMultipleAllocations": True,
        "attributes": _attributes(gpu, domain, view.driver),
        "capacity": {
            MEMORY: _capacity("Mi", memory_mib, card_mib, unit_mib, card_mib, unit_mib),
            THREADS: _capacity("", threads, 0, 0, min(100, threads) // step * step, step),
            CLIENTS: _capacity("", room.clients, requests.clients_per_grant, 1, room.clients, 1),
        },
    }
    if taint := taint_of(gpu, view):
        effect = "NoExecute" if taint in policy.evict_claims_when else "NoSchedule"
        device["taints"] = [{"key": TAINT, "value": taint, "effect": effect}]
    return device


def _capacity(
    unit: str, value: int, default: int, least: int, most: int, step: int
) -> dict[str, Any]:
    """Without a step where it would lead beyond the value: the API server refuses the whole slice
    for it."""
    ranged = {"min": least, "max": most}
    if least + step <= value:
        ranged["step"] = step
    return {
        "value": f"{value}{unit}",
        "requestPolicy": {
            "default": f"{default}{unit}",
            "validRange": {name: f"{amount}{unit}" for name, amount in ranged.items()},
        },
    }


def _attributes(gpu: Gpu, domain: str, driver: str) -> dict[str, dict[str, str | int]]:
    """What CEL selectors can ask for; what is not known is left out. Names of a MIG instance's:
    deviceinfo.go of github.com/NVIDIA/k8s-dra-driver-gpu."""
    compute = gpu.capability.compute_capability
    major = compute.partition(".")[0]
    architecture = _ARCHITECTURES.get(compute) or _ARCHITECTURES.get(major, "")
    texts = {
        "uuid": gpu.uuid,
        "productName": gpu.product,
        "architecture": architecture,
        "domain": domain,
    }
    if gpu.mig:
        texts |= {"parentUUID": gpu.mig.parent, "profile": gpu.mig.profile}
    texts[_PCI_BUS] = gpu.pci_bus
    versions = {"cudaComputeCapability": _version(compute), "driverVersion": _version(driver)}
    found: dict[str, dict[str, str | int]]
    found = {name: {"string": text[:_LONGEST_TEXT]} for name, text in texts.items() if text}
    if gpu.numa_node is not None:
        found[_NUMA_NODE] = {"int": gpu.numa_node}
    return found | {name: {"version": text} for name, text in versions.items() if text}


def _version(text: str) -> str:
    """A semantic version: three numbers without leading zeros; empty where the text has none."""
    numbers = [str(int(number)) for number in _NUMBER.findall(text)]
    if not numbers:
        return ""
    return ".".join([*numbers, "0", "0"][:3])


def resource_slice(
    pool: Pool, generation: int, offered: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The one slice of the pool, so that every change of the pool is one write."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid}
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(pool.node, pool.driver), "ownerReferences": [owner]},
        "spec": {
            "driver": pool.driver,
            "nodeName": pool.node,
            "pool": {"name": pool.node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(offered),
        },
    }
