"""Which memory limits of cgroups are set, and which removed. Documented, not observed (NVIDIA, "MPS
v3 Memory Partitioning", 615 and 620): a hard limit holds all processes below the cgroup together.
Where the kernel counts (dmem), outer limits hold as well; where the driver counts, only the nearest
does, so there a pod has one limit, and its containers none."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.model.grants import is_instance
from mpsd.model.node_view import LedgerView
from mpsd.model.policy import MemoryCap

INSTANCE = "it is on a MIG instance, for which NVML sets no memory limits of cgroups"
NO_CGROUP = "none of its processes is in a cgroup (v2) of its own yet"
# how the reasons begin that are faults
CANARY_FOUND = "the canary found"
NOT_SET = "the limit of cgroup"
BY_POLICY = "the policy has memory_cap: mps"


@dataclass(frozen=True, slots=True)
class WantedCap:
    """A grant that cgroups are to hold. memory_mib: by GPU. pods: the uids of those that hold it, a
    limit each. cgroups: paths in v2, of the program or container that holds it."""

    grant: str
    memory_mib: dict[str, int]
    pods: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WantedCaps:
    """What the agent asks. complete: these are the grants of all; else none loses a limit."""

    boot_id: str
    caps: tuple[WantedCap, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Cap:
    """The limit of a cgroup on a GPU. inode: of its folder, to tell a later one from it."""

    cgroup: str
    inode: int
    gpu: str
    memory_mib: int

    @property
    def place(self) -> tuple[str, int, str]:
        return self.cgroup, self.inode, self.gpu


@dataclass(frozen=True, slots=True)
class CapsInForce:
    """What was read back in this boot. grants: held by all their cgroups. troubles: why others are
    not."""

    boot_id: str
    caps: tuple[Cap, ...] = ()
    grants: tuple[str, ...] = ()
    troubles: dict[str, str] | None = None  # None as an empty one


@dataclass(frozen=True, slots=True)
class FoundCgroup:
    """inside: below a pod's cgroup. counts: the kernel counts there (it has dmem.max)."""

    path: str
    inode: int
    inside: bool = False
    counts: bool = False


@dataclass(frozen=True, slots=True)
class CappedGrant:
    """A grant with the cgroups that were found of it."""

    wanted: WantedCap
    cgroups: tuple[FoundCgroup, ...]

    def caps(self) -> Iterator[Cap]:
        """Those that hold it, outer ones first."""
        for place in sorted(self.cgroups, key=lambda one: one.inside):
            if place.counts or not place.inside:
                for gpu, memory_mib in self.wanted.memory_mib.items():
                    yield Cap(place.path, place.inode, gpu, memory_mib)


@dataclass(frozen=True, slots=True)
class CapActions:
    """To be done in this order. without: by grant, why it gets no limit."""

    resets: tuple[Cap, ...]
    sets: tuple[Cap, ...]
    without: dict[str, str]


def wanted_caps(ledger: LedgerView, boot_id: str, *, pods_known: bool) -> WantedCaps:
    """What the cgroups of all grants are to hold. pods_known: whether pods hold the grants here."""
    uids: dict[str, list[str]] = {}
    if pods_known:
        for uid in sorted(ledger.by_place):
            uids.setdefault(ledger.by_place[uid], []).append(uid)
    caps = []
    for held in ledger.held:
        grant = held.grant
        parts = {part.gpu: part.memory_mib for part in grant.parts}
        pods = tuple(uids.get(grant.id, ()))
        caps.append(WantedCap(grant.id, parts, pods, grant.own_cgroups))
    return WantedCaps(boot_id, tuple(caps), complete=not (ledger.unknown or ledger.unreadable))


def decide(
    policy: MemoryCap,
    grants: Iterable[CappedGrant],
    ours: Collection[Cap],
    why_not: dict[str, str],
    *,
    complete: bool,
) -> CapActions:
    """What to do. ours: what mpsd has set, of cgroups that are there. why_not: by GPU, why none can
    be set. A limit replaces another, so that there is always one."""
    sets: list[Cap] = []
    without = {}
    kept: set[tuple[str, int, str]] = set()
    for grant in grants:
        caps = tuple(grant.caps())
        why = why_never(policy, grant.wanted.memory_mib, why_not)
        if why or not caps:
            without[grant.wanted.grant] = why or NO_CGROUP
            continue
        kept.update(cap.place for cap in caps)
        sets += [cap for cap in caps if cap not in ours]
    resets = [cap for cap in ours if cap.place not in kept]
    if not complete and policy != "mps":
        resets = []
    return CapActions(tuple(resets), tuple(sets), without)


def why_never(policy: MemoryCap, gpus: Collection[str], why_not: Mapping[str, str]) -> str:
    """Why a grant of these GPUs can get no limit; empty where it can. why_not: by GPU."""
    if policy == "mps":
        return BY_POLICY
    if any(map(is_instance, gpus)):
        return INSTANCE
    return next((why_not[gpu] for gpu in gpus if gpu in why_not), "")
