"""What a GPU has to give, what is granted of it, and what is left: never more is promised than the
policy allows of it, in memory, threads or clients."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mpsd.model.identity import HostContainer, PodName, ProcessIdentity

# they take a tenth of a second to load, for which whoever only reads a status does not wait
if TYPE_CHECKING:
    from mpsd.model.gpu_facts import Capability, GpuFacts
    from mpsd.model.policy import Compute, Policy


@dataclass(frozen=True, slots=True)
class GpuName:
    """Which GPU of a node is meant. ordinal: as nvidia-smi counts; of a MIG instance its parent's.
    instance: the rest of a MIG instance's label, such as `mig7`; empty for a whole GPU."""

    uuid: str
    ordinal: int
    instance: str = field(default="", kw_only=True)

    @property
    def label(self) -> str:
        return f"gpu{self.ordinal}-{self.instance}".removesuffix("-")


_LABEL = re.compile(r"gpu(?P<ordinal>[0-9]{1,9})(?:-(?P<instance>mig[0-9-]{1,20}))?", re.ASCII)


def gpu_named(uuid: str, label: str) -> GpuName:
    """The GPU with this label; ordinal -1 for a label that no GPU has."""
    found = _LABEL.fullmatch(label)
    if not found:
        return GpuName(uuid, -1)
    return GpuName(uuid, int(found["ordinal"]), instance=found["instance"] or "")


def is_instance(uuid: str) -> bool:
    """Whether this UUID is a MIG instance's (MIG user guide, "MIG device names")."""
    return uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class MigInstance:
    """What a MIG instance is a part of. parent: a UUID. profile: such as `1g.10gb`, or `1c.3g.40gb`
    of one that shares its GPU instance. gpu_instance, compute_instance: their ids, unique within
    the parent as long as the instance exists (nvml.h)."""

    parent: str
    profile: str
    gpu_instance: int
    compute_instance: int

    @property
    def label(self) -> str:
        """Not the index that nvidia-smi shows: it changes when another instance is removed."""
        return f"mig{self.gpu_instance}-{self.compute_instance}".removesuffix("-0")


@dataclass(frozen=True, slots=True)
class Gpu(GpuName):
    """A GPU of this node, or a MIG instance, which is a GPU of its own. memory_mib: that CUDA can
    use, NVML's total less the driver's reserve. pci_bus: as the kernel writes it, such as
    0000:06:00.0; empty where it is not known. numa_node: None where none is known. mig: None for a
    whole GPU."""

    name: str
    memory_mib: int
    sms: int
    capability: "Capability"
    pci_bus: str = ""
    numa_node: int | None = None
    mig: MigInstance | None = None

    @property
    def product(self) -> str:
        """The name of the whole GPU."""
        return self.name.partition(" MIG ")[0]


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A part of one GPU (a UUID). reserved_percent: of its threads, 0 where no share was asked for.
    weight: how many of the max_inst parts of the GPU a container of cGPU takes, None for any other.
    """

    gpu: str
    memory_mib: int
    reserved_percent: int
    weight: int | None = None


def evenly(gpus: Iterable[str], memory_mib: int, reserved_percent: int) -> tuple[GpuShare, ...]:
    return tuple(GpuShare(uuid, memory_mib, reserved_percent) for uuid in gpus)


@dataclass(frozen=True, slots=True)
class Request:
    """MiB of each of `gpus` GPUs. thread_percent None asks for no share, clients None for as many
    as the policy gives."""

    memory_mib: int
    thread_percent: int | None
    gpus: int
    clients: int | None = None


@dataclass(frozen=True, slots=True)
class CardsRequest:
    """What a container asks of the GPUs that it names. thread_percent: the cap, 100 for none."""

    parts: tuple[GpuShare, ...]
    thread_percent: int

    @property
    def memory_mib(self) -> int:
        """The most of one GPU."""
        return max(part.memory_mib for part in self.parts)

    @property
    def gpus(self) -> int:
        return len(self.parts)


@dataclass(frozen=True, slots=True)
class Grant:
    """Parts of GPUs of one domain, a thread cap, and so many clients on each of them. holder: the
    process whose children are its clients too, or the pod or the container. earlier_mib,
    earlier_percent: the most that it was before it was changed (`containers.rules.grant_change`),
    which programs that run were started with; 0 where it never was more. priority: of its clients,
    0 or 1, which is below normal.
    """

    id: str
    domain: str
    parts: tuple[GpuShare, ...]
    thread_percent: int
    clients: int
    holder: ProcessIdentity | PodName | HostContainer
    command: str
    earlier_mib: int = 0
    earlier_percent: int = 0
    priority: int = 0

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple([part.gpu for part in self.parts])

    @property
    def memory_mib(self) -> int:
        """The most of one GPU: MPS knows one limit for all."""
        return max(part.memory_mib for part in self.parts)

    @property
    def reserved_percent(self) -> int:
        """The most of one GPU."""
        return max(part.reserved_percent for part in self.parts)

    def part_of(self, gpu: str) -> GpuShare:
        """0 MiB where the GPU is none of its own."""
        return next((part for part in self.parts if part.gpu == gpu), GpuShare(gpu, 0, 0))

    @property
    def pod(self) -> PodName | None:
        """None where somebody else holds it."""
        return self.holder if isinstance(self.holder, PodName) else None

    @property
    def pods(self) -> tuple[PodName, ...]:
        """Every pod that holds it."""
        return (self.holder,) if isinstance(self.holder, PodName) else ()

    def pod_of(self, cgroup: str | None) -> PodName | None:
        """The pod with this uid, whose cgroups a process is in, else the first."""
        return next((pod for pod in self.pods if pod.uid == cgroup), self.pod)

    @property
    def container(self) -> HostContainer | None:
        """None where somebody else holds it."""
        return self.holder if isinstance(self.holder, HostContainer) else None

    @property
    def own_cgroups(self) -> tuple[str, ...]:
        """The paths, in v2, of cgroups in which its processes are and no others. None of pods,
        whose uids are known."""
        return ()

    @property
    def claim(self) -> str | None:
        """The resource claim that it is of, namespace and name, whose uid is its id."""
        return None


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder or a file of this machine that a container with a grant sees at `inside`."""

    source: str
    inside: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of this machine, created in such a container at `inside`. access: of the device
    cgroup, some of r, w and m (mknod)."""

    source: str
    inside: str
    access: str


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    """What a GPU has left to promise. memory_mib_total: while nothing is granted. weight: None
    without a max_inst in the policy. holders: of grants on it; None where it stays in its domain,
    also while nobody holds one."""

    gpu: GpuName
    domain: str
    memory_mib_total: int
    memory_mib: int
    thread_percent: int
    clients: int
    weight: int | None = None
    holders: int | None = None

    def holds(self, request: Request, policy: "Policy") -> bool:
        return (
            request.memory_mib <= self.memory_mib
            and (request.thread_percent or 0) <= self.thread_percent
            and (request.clients or policy.requests.clients_per_grant) <= self.clients
        )


def facts_here(gpus: Iterable[Gpu], facts: "GpuFacts") -> "GpuFacts":
    """The facts with this node's GPUs for cards, so that the largest is the largest here."""
    from mpsd.model.gpu_facts import Card  # as above

    cards = []
    for gpu in gpus:
        kind = gpu.capability.compute_capability
        if not gpu.memory_mib or facts.capability(kind) is None:  # it serves nobody
            continue
        source = "NVML of this node"
        cards.append(Card(gpu.name, gpu.label, kind, gpu.memory_mib, gpu.sms, True, source))
    return replace(facts, cards=cards or facts.cards)


def promised_mib(gpu: Gpu, policy: "Policy") -> int:
    """MiB that may be promised in all: what CUDA can use, less what the MPS server holds."""
    usable_mib = max(0, gpu.memory_mib - gpu.capability.server_mib)
    return usable_mib * policy.oversubscription.memory_percent // 100


def rooms(
    gpus: Iterable[Gpu],
    domain_of: Mapping[str, str],
    grants: Iterable[Grant],
    policy: "Policy",
    on_demand: Collection[str] = (),
) -> tuple[GpuCapacity, ...]:
    """What each GPU has left, in the order of `gpus`. domain_of: by UUID, the name of the GPU's
    domain. on_demand: the GPUs that may be joined with others, and divided."""
    held: defaultdict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        for part in grant.parts:
            held[part.gpu].append(grant)
    found = []
    for gpu in gpus:
        here = held[gpu.uuid]
        room = _room(gpu, domain_of[gpu.uuid], here, policy)
        if gpu.uuid in on_demand:
            room = replace(room, holders=len(here))
        found.append(room)
    return tuple(found)


def _room(gpu: Gpu, domain: str, grants: list[Grant], policy: "Policy") -> GpuCapacity:
    total_mib = free_mib = promised_mib(gpu, policy)
    percent = policy.oversubscription.thread_percent
    clients = gpu.capability.clients
    for grant in grants:
        part = grant.part_of(gpu.uuid)
        free_mib -= part.memory_mib
        percent -= part.reserved_percent
        clients -= grant.clients
    weight = free_weight(gpu, grants, policy.compute)
    return GpuCapacity(gpu, domain, total_mib, free_mib, percent, clients, weight)


def free_weight(gpu: GpuName, grants: Iterable[Grant], compute: "Compute") -> int | None:
    """cGPU's free_weight: what the weights of the GPU's containers leave of max_inst, if that is
    set."""
    weight = compute.of(gpu.ordinal).max_inst
    if weight is not None:
        for grant in grants:
            weight -= grant.part_of(gpu.uuid).weight or 0
    return weight
