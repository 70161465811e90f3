"""Which pod holds which devices of this node, and which pods hold none.

Two sources are combined: kubelet's list of devices (PodResources) and the journal, in which the agent records every
answer to Allocate. Kubelet takes precedence, a journal entry counts until something contradicts it, and a device counts
for one pod only.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mpsd.kubelet.rules.allocation import gpu_of
from mpsd.kubelet.rules.node_pods import CLAIM, Bystander, ContainerName, NodePod, PodKey, memory_units
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant, evenly
from mpsd.model.identity import PodName
from mpsd.model.names import matches
from mpsd.model.pod import Role
from mpsd.model.policy import Policy

Kind = Literal["memory", "percent"]
KINDS: tuple[Kind, Kind] = ("memory", "percent")
PATIENCE_S = 60.0  # that a pod must appear without its devices before it counts as such: kubelet and the API both lag
_STATIC = re.compile(r"[0-9a-f]{32}")  # kubelet's uid of a static pod; every uid of the API has dashes


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The device ids that a container holds, of both resources."""

    container: ContainerName
    memory: tuple[str, ...] = ()
    percent: tuple[str, ...] = ()

    @property
    def pod(self) -> PodKey:
        return self.container.pod_key

    def of(self, kind: Kind) -> tuple[str, ...]:
        return self.memory if kind == "memory" else self.percent


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry of the journal: what was answered to one Allocate.

    pod: the container, None where it was not known. thread_percent None: no cap was answered. at: seconds since 1970.
    uid: of the pod, so that a later pod of the same name is not taken for it. unit_mib: what each device was worth; 0
    where that was not recorded, and then the policy's unit counts.
    """

    resource: Kind
    ids: tuple[str, ...]
    pod: ContainerName | None
    thread_percent: int | None
    boot_id: str
    at: float
    uid: str = ""
    unit_mib: int = 0

    @property
    def pod_key(self) -> PodKey | None:
        """None where the container was not known."""
        return self.pod.pod_key if self.pod else None

    def names_one_of(self, pods: Mapping[PodKey, NodePod]) -> bool:
        """Whether it names one of these pods, and not an earlier pod of that name."""
        pod = pods.get(self.pod.pod_key) if self.pod else None
        return pod is not None and not pod.is_finished and self.uid in ("", pod.uid)


def by_name(pods: Iterable[NodePod]) -> dict[PodKey, NodePod]:
    return {pod.key: pod for pod in pods}


# -- the journal -------------------------------------------------------------------------------------------------------


def by_devices(journal: Iterable[JournalEntry]) -> dict[frozenset[str], JournalEntry]:
    """The last answer for each set of devices."""
    return {frozenset(entry.ids): entry for entry in sorted(journal, key=lambda entry: entry.at)}


def served(
    resource: Kind, held: Iterable[ContainerDevices], journal: Iterable[JournalEntry], pods: Iterable[NodePod]
) -> frozenset[ContainerName]:
    """The containers that have their devices of this resource, according to kubelet or the journal.

    An entry does not count where kubelet has given one of its devices to another pod: it named the wrong pod. If it
    counted, every second of several identical pods that start together would appear to be served already.
    """
    known = by_name(pods)
    owners = {device_id: one for one in held for device_id in one.of(resource)}
    noted = {
        entry.pod
        for entry in journal
        if entry.resource == resource
        and entry.pod
        and entry.names_one_of(known)
        and {owners[device_id].pod for device_id in entry.ids if device_id in owners} <= {entry.pod_key}
    }
    return frozenset({one.container for one in owners.values()} | noted)


def corrected(
    journal: Iterable[JournalEntry],
    asked_with: Iterable[JournalEntry],
    held: Iterable[ContainerDevices],
    pods: Iterable[NodePod],
) -> tuple[JournalEntry, ...]:
    """The entries, each with the container to which kubelet has by now given exactly its devices.

    So a pod keeps what it holds while kubelet, which forgets at a restart, lists nothing. asked_with: the entries that
    existed when kubelet was asked; its answer says nothing about later ones.
    """
    known = by_name(pods)
    last = {id(entry) for entry in by_devices(asked_with).values()}
    holders = {frozenset(ids): one.container for one in held for ids in (one.memory, one.percent) if ids}

    def correct(entry: JournalEntry) -> JournalEntry:
        container = holders.get(frozenset(entry.ids)) if id(entry) in last else None
        pod = known.get(container.pod_key) if container else None
        return entry if pod is None or entry.pod_key == pod.key else replace(entry, pod=container, uid=pod.uid)

    return tuple(map(correct, journal))


def still_needed(
    journal: Iterable[JournalEntry], held: Iterable[ContainerDevices], pods: Iterable[NodePod], not_before: float
) -> tuple[JournalEntry, ...]:
    """The entries of pods that exist or of devices that are held, the oldest first.

    pods: all of this node that ask for a GPU, so do not call it while the API is unavailable. not_before: seconds since
    1970; later entries stay, since kubelet and the API may not know of them yet.
    """
    known = by_name(pods)
    in_use = {device_id for one in held for device_id in (*one.memory, *one.percent)}
    kept: list[JournalEntry] = []
    newer: set[str] = set()
    for entry in sorted(journal, key=lambda entry: entry.at, reverse=True):
        is_last = not in_use.isdisjoint(entry.ids) and not newer.issuperset(entry.ids)
        if entry.at >= not_before or is_last or entry.names_one_of(known):
            kept.append(entry)
            newer.update(entry.ids)
    return tuple(reversed(kept))


# -- grants ------------------------------------------------------------------------------------------------------------


def pod_grants(
    held: Sequence[ContainerDevices],
    journal: Sequence[JournalEntry],
    pods: Sequence[NodePod],
    domains: Sequence[Domain],
    policy: Policy,
) -> tuple[Grant, ...]:
    """One grant for each pod that holds memory devices, in the order of their ids.

    held: kubelet's list, which leaves out init containers. journal: of this boot, for init containers and for what was
    allocated after kubelet was asked. Where a pod's devices lie in two domains, or unevenly, its grant is the least
    that holds on all its GPUs: Allocate and PreStartContainer refuse such a pod.
    """
    known = by_name(pods)
    domain_of = {uuid: domain for domain in domains for uuid in domain.gpus}
    holdings = _holdings(held, journal, known)
    worth = _worth_mib(journal, policy)
    noted = {} if known.keys() >= holdings.keys() else _noted_uids(held, journal)
    grants = []
    for key, holding in holdings.items():
        uids = {known[key].uid} if key in known else noted.get(key, set())
        name = PodName(*key, next(iter(uids)) if len(uids) == 1 else "")
        grant = _grant(name, holding, domain_of, policy, worth)
        if grant:
            grants.append(grant if holding.noted else _with_init_containers(grant, known.get(key)))
    return tuple(sorted(grants, key=lambda grant: grant.id))


@dataclass(slots=True)
class _Holding:
    """What one pod holds: its devices, the containers that kubelet lists, and the caps that were answered."""

    memory: set[str] = field(default_factory=set)
    percent: set[str] = field(default_factory=set)
    containers: list[ContainerDevices] = field(default_factory=list)
    caps: list[int] = field(default_factory=list)
    noted: bool = False  # whether the journal says anything of this pod


def _holdings(
    held: Sequence[ContainerDevices], journal: Sequence[JournalEntry], known: Mapping[PodKey, NodePod]
) -> dict[PodKey, _Holding]:
    holdings: dict[PodKey, _Holding] = {}
    owners: dict[str, PodKey] = {}
    for one in held:
        holding = holdings.setdefault(one.pod, _Holding())
        holding.containers.append(one)
        holding.memory.update(_claimed(one.pod, one.memory, owners))
        holding.percent.update(_claimed(one.pod, one.percent, owners))
    listed = frozenset((one.container, kind) for one in held for kind in KINDS if one.of(kind))
    entry_owners = _EntryOwners(dict(owners), known, listed)
    for entry in sorted(journal, key=lambda entry: entry.at, reverse=True):
        key = entry_owners.of(entry)
        if key:
            holding = holdings.setdefault(key, _Holding())
            holding.noted = True
            ids = holding.memory if entry.resource == "memory" else holding.percent
            ids.update(_claimed(key, entry.ids, owners))
            holding.caps.extend([] if entry.thread_percent is None else [entry.thread_percent])
    return holdings


def _claimed(key: PodKey, ids: Iterable[str], owners: dict[str, PodKey]) -> list[str]:
    """Those of the devices that had no owner; this pod becomes it."""
    new = [device_id for device_id in ids if device_id not in owners]
    owners.update(dict.fromkeys(new, key))
    return new


@dataclass(slots=True)
class _EntryOwners:
    """The pods to which the entries of the journal belong, asked from the newest entry to the oldest.

    owners: of each device, by kubelet's list. listed: the containers in kubelet's list, with the resources they hold.
    """

    owners: Mapping[str, PodKey]
    known: Mapping[PodKey, NodePod]
    listed: frozenset[tuple[ContainerName, str]]
    seen: set[tuple[ContainerName, str]] = field(default_factory=set)
    last_uid: dict[PodKey, str] = field(default_factory=dict)

    def of(self, entry: JournalEntry) -> PodKey | None:
        """The pod that holds this entry's devices; None where it has ended or is not known.

        While the first pod exists kubelet gives its devices to no second one. So a pod that kubelet lists with one of
        them holds all of them, even where the journal named another pod that exists as well.
        """
        named = entry.pod_key
        if named and entry.uid:
            self.last_uid.setdefault(named, entry.uid)
        if named and (self._is_listed(entry, named) or not self._exists(entry, named)):
            return None
        holders = {self.owners[device_id] for device_id in entry.ids if device_id in self.owners}
        if holders:
            return holders.pop() if len(holders) == 1 else None
        if entry.pod is None:
            return None
        container = (entry.pod, entry.resource)
        if container in self.listed or container in self.seen:
            return None
        self.seen.add(container)
        return named

    def _is_listed(self, entry: JournalEntry, named: PodKey) -> bool:
        """Whether kubelet's list already says what the entry says, as it does for nearly all of them."""
        return (entry.pod, entry.resource) in self.listed and self.owners.get(next(iter(entry.ids), "")) == named

    def _exists(self, entry: JournalEntry, named: PodKey) -> bool:
        """Whether the pod that the entry names is still on this node, as far as is known."""
        if named in self.known:
            return entry.names_one_of(self.known)
        # The API may be unavailable: then kubelet lists what runs, and the newest entry has the uid of that name.
        is_listed = any(container.pod_key == named for container, _ in self.listed)
        return is_listed and entry.uid in ("", self.last_uid.get(named))


def _noted_uids(held: Iterable[ContainerDevices], journal: Iterable[JournalEntry]) -> dict[PodKey, set[str]]:
    """The uids that the last answers name for what each pod holds according to kubelet, which lists no uid."""
    last = by_devices(journal)
    uids: dict[PodKey, set[str]] = {}
    for one in held:
        for entry in (last.get(frozenset(ids)) for ids in (one.memory, one.percent) if ids):
            if entry and entry.uid and entry.pod_key == one.pod:
                uids.setdefault(one.pod, set()).add(entry.uid)
    return uids


def _worth_mib(journal: Sequence[JournalEntry], policy: Policy) -> Mapping[str, int]:
    """What each device is worth that was given in another unit than the policy's of today."""
    unit_mib = policy.resources.memory_unit_mib
    worth: dict[str, int] = {}
    if any(entry.unit_mib not in (0, unit_mib) for entry in journal):
        for entry in sorted(journal, key=lambda entry: entry.at):
            worth.update(dict.fromkeys(entry.ids, entry.unit_mib or unit_mib))
    return worth


def _grant(
    name: PodName, holding: _Holding, domain_of: Mapping[str, Domain], policy: Policy, worth: Mapping[str, int]
) -> Grant | None:
    """The pod's grant; None where it holds no memory of a GPU of this node."""
    mib: Counter[str] = Counter()
    for device_id in holding.memory:
        gpu = gpu_of(device_id) or ""
        if gpu in domain_of:
            mib[gpu] += worth.get(device_id, policy.resources.memory_unit_mib)
    if not mib:
        return None
    domain = _fullest(mib, domain_of)
    gpus = tuple(uuid for uuid in domain.gpus if uuid in mib)
    default = policy.requests.default_thread_percent
    caps = [len(one.percent) // len(gpus) or default for one in holding.containers]
    return Grant(
        id=name.uid or str(name),
        domain=domain.name,
        parts=evenly(gpus, min(mib[uuid] for uuid in gpus), len(holding.percent) // len(gpus)),
        thread_percent=min(100, max([*caps, *holding.caps], default=default)),
        clients=policy.requests.clients_per_grant,
        holder=name,
        command=str(name),
    )


def _fullest(mib: Counter[str], domain_of: Mapping[str, Domain]) -> Domain:
    """The domain with most of this memory; the first of its UUIDs decides between equals."""
    if len(mib) == 1:
        return domain_of[next(iter(mib))]
    total: Counter[Domain] = Counter()
    for uuid, amount in sorted(mib.items()):
        total[domain_of[uuid]] += amount
    return total.most_common(1)[0][0]


def _with_init_containers(grant: Grant, pod: NodePod | None) -> Grant:
    """At least what the init containers of a pending pod ask for: after a reboot neither source lists their devices."""
    if pod is None or pod.phase != "Pending":
        return grant
    asked_mib = max((request.memory_mib for request in pod.requests if request.role is Role.INIT), default=0)
    return replace(grant, parts=evenly(grant.gpus, max(grant.memory_mib, asked_mib), grant.reserved_percent))


def by_cgroup(grants: Iterable[Grant], pods: Iterable[NodePod]) -> dict[str, str]:
    """From each uid that a pod's cgroups may have to the id of the pod's grant.

    The uid of a static pod comes from an annotation, which every user may write, so it counts only where one pod alone
    has it: otherwise a pod could have its processes judged by another pod's grant. A grant without a uid has no
    processes that can be identified.
    """
    known = tuple(pods)
    ids = {grant.pod.uid: grant.id for grant in grants if grant.pod and grant.pod.uid}
    claims = Counter(pod.static_uid for pod in known)
    static = [pod for pod in known if _STATIC.fullmatch(pod.static_uid) and claims[pod.static_uid] == 1]
    return {pod.static_uid: ids[pod.uid] for pod in static if pod.uid in ids} | ids


# -- pods without devices ----------------------------------------------------------------------------------------------


def without_devices(
    pods: Collection[NodePod],
    held: Sequence[ContainerDevices],
    listed: Collection[PodKey],
    journal: Sequence[JournalEntry],
) -> tuple[NodePod, ...]:
    """The pods that run and ask for GPU memory, but hold none according to kubelet and the journal.

    A kubelet that has just started, with an old status of its node and no plugin registered yet, was observed to run
    pods without calling Allocate; such a pod has no limit. listed: the pods in kubelet's list; of others it does not
    know yet what they hold.
    """
    have = {container.pod_key for container in served("memory", held, journal, pods)}
    return tuple(
        pod
        for pod in pods
        if pod.phase == "Running"
        and not pod.terminating
        and pod.key in listed
        and pod.key not in have
        and any(request.role is Role.MAIN and memory_units(request) for request in pod.requests)
    )


def since(before: Mapping[str, float], seen: Iterable[NodePod], now: float) -> dict[str, float]:
    """From the uid of each pod to when it was first seen so, without a break."""
    return {pod.uid: before.get(pod.uid, now) for pod in seen}


def ungranted(
    rows: Sequence[NodePod | Bystander],
    held: Sequence[ContainerDevices],
    journal: Sequence[JournalEntry],
    unallocated: Collection[str],
    policy: Policy,
) -> dict[str, PodName]:
    """The pods that certainly hold no grant, by the uid of their cgroups: a process of theirs on a GPU is a violation.

    Such a process is ended, so any doubt keeps a pod out. What a pod asks for never changes, and its uid is the API's:
    the uid in a static pod's annotation does not count. unallocated: the uids of pods that have been without their
    devices for PATIENCE_S.
    """
    have = {
        container.pod_key
        for container in served("memory", held, journal, [row for row in rows if isinstance(row, NodePod)])
    }
    pods = [row.identity for row in rows if row.identity.uid in unallocated or not _may_have_a_gpu(row.asked, policy)]
    return {pod.uid: pod for pod in pods if (pod.namespace, pod.name) not in have}


def _may_have_a_gpu(asked: Iterable[str], policy: Policy) -> bool:
    """Whether mpsd, another device plugin or a DRA driver may have given a GPU for it; a thread share is none."""
    ways = {policy.resources.memory, CLAIM}
    none = {policy.resources.percent, policy.resources.count}
    kept = policy.admission.visible_devices_kept_for
    return any(name in ways or matches(name, kept) for name in asked if name not in none)
