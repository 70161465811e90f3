"""What each pod of this node has been granted: the ledger of the device plugin, read back from kubelet.

One rule: a device counts for one pod at most, and kubelet's word goes before the journal's.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mpsd.kubelet.rules.allocation import JournalEntry
from mpsd.kubelet.rules.devices import gpu_of
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant, evenly
from mpsd.model.identity import PodName
from mpsd.model.pod import Role
from mpsd.model.policy import Policy

_Key = tuple[str, str]  # namespace and name: all that kubelet says of a pod here


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The device ids that kubelet says a container holds, of both resources."""

    container: ContainerName
    memory: tuple[str, ...] = ()
    percent: tuple[str, ...] = ()

    @property
    def pod(self) -> tuple[str, str]:
        """The namespace and the name of its pod."""
        return self.container.namespace, self.container.pod


def pod_grants(
    held: Sequence[ContainerDevices],
    journal: Sequence[JournalEntry],
    pods: Sequence[NodePod],
    domains: Sequence[Domain],
    policy: Policy,
) -> tuple[Grant, ...]:
    """One grant for each pod that holds memory devices, in the order of their ids.

    held: what kubelet's PodResources say, which leave out init containers. journal: of this boot, for init containers
    and for what was allocated since kubelet was asked. Where a pod's devices lie in two domains, or not evenly, its
    grant is the least that is true of all its GPUs: Allocate and PreStartContainer let no such pod run.
    """
    known = {(pod.namespace, pod.name): pod for pod in pods}
    domain_of = {uuid: domain for domain in domains for uuid in domain.gpus}
    holdings = _holdings(held, journal, known)
    worth = _Worth.of(journal, policy)
    noted = {} if known.keys() >= holdings.keys() else _noted_uids(held, journal)
    grants = (
        _with_init(
            _grant(_name(key, known, noted), holding, domain_of, policy, worth),
            None if holding.noted else known.get(key),
        )
        for key, holding in holdings.items()
    )
    return tuple(sorted((grant for grant in grants if grant), key=lambda grant: grant.id))


@dataclass(slots=True)
class _Holding:
    """What one pod holds: its devices, and the containers and answers that they came with."""

    memory: set[str] = field(default_factory=set)
    percent: set[str] = field(default_factory=set)
    containers: list[ContainerDevices] = field(default_factory=list)
    caps: list[int] = field(default_factory=list)
    noted: bool = False  # whether the journal says anything of this pod


def _holdings(
    held: Sequence[ContainerDevices], journal: Sequence[JournalEntry], known: Mapping[_Key, NodePod]
) -> dict[_Key, _Holding]:
    holdings: dict[_Key, _Holding] = {}
    owners: dict[str, _Key] = {}
    for one in held:
        holding = holdings.setdefault(one.pod, _Holding())
        holding.containers.append(one)
        holding.memory.update(_claimed(one.pod, one.memory, owners))
        holding.percent.update(_claimed(one.pod, one.percent, owners))
    guesses = _Guesses(dict(owners), known, frozenset(_listed(held)))
    for entry in sorted(journal, key=lambda entry: entry.at, reverse=True):
        key = guesses.whose(entry)
        if key:
            holding = holdings.setdefault(key, _Holding())
            holding.noted = True
            ids = holding.memory if entry.resource == "memory" else holding.percent
            ids.update(_claimed(key, entry.ids, owners))
            holding.caps.extend([] if entry.thread_percent is None else [entry.thread_percent])
    return holdings


def _listed(held: Iterable[ContainerDevices]) -> Iterator[tuple[ContainerName, str]]:
    for one in held:
        for resource, ids in (("memory", one.memory), ("percent", one.percent)):
            if ids:
                yield one.container, resource


def _claimed(key: _Key, ids: Iterable[str], owners: dict[str, _Key]) -> list[str]:
    """Those of the devices that nobody had before, which become this pod's."""
    new = [device_id for device_id in ids if device_id not in owners]
    owners.update(dict.fromkeys(new, key))
    return new


@dataclass(slots=True)
class _Guesses:
    """Puts right whom the entries of the journal name, the newest entry first.

    owners: by kubelet's word. listed: the containers that kubelet lists, with the resources they hold.
    """

    owners: Mapping[str, _Key]
    known: Mapping[_Key, NodePod]
    listed: frozenset[tuple[ContainerName, str]]
    seen: set[tuple[ContainerName, str]] = field(default_factory=set)
    last_uid: dict[_Key, str] = field(default_factory=dict)

    def whose(self, entry: JournalEntry) -> _Key | None:
        """The pod that has this entry's devices; None where it ended, or nobody can say.

        kubelet gives a device to no second pod while the first is there, so whoever it says holds one of them holds
        all of them, and the journal's guess at a pod that is there too was wrong.
        """
        named = (entry.pod.namespace, entry.pod.pod) if entry.pod else None
        if named and entry.uid:
            self.last_uid.setdefault(named, entry.uid)
        if named and (self._is_known(entry, named) or not self._is_there(entry, named)):
            return None
        holders = {self.owners[device_id] for device_id in entry.ids if device_id in self.owners}
        if holders:
            return holders.pop() if len(holders) == 1 else None
        if entry.pod is None:
            return None
        told = (entry.pod, entry.resource)
        if told in self.listed or told in self.seen:
            return None
        self.seen.add(told)
        return named

    def _is_known(self, entry: JournalEntry, named: _Key) -> bool:
        """Whether kubelet says by itself what the entry says: nearly all of them, at every look."""
        return (entry.pod, entry.resource) in self.listed and self.owners.get(next(iter(entry.ids), "")) == named

    def _is_there(self, entry: JournalEntry, named: _Key) -> bool:
        """Whether the pod that the entry names is still on this node, as far as anybody says."""
        pod = self.known.get(named)
        if pod is None:  # the API may be away; kubelet lists what runs, and a newer answer names who has the name now
            is_listed = any((one.namespace, one.pod) == named for one, _ in self.listed)
            return is_listed and entry.uid in ("", self.last_uid.get(named))
        return not pod.is_finished and entry.uid in ("", pod.uid)


def _name(key: _Key, known: Mapping[_Key, NodePod], noted: Mapping[_Key, set[str]]) -> PodName:
    uids = {known[key].uid} if key in known else noted.get(key, set())
    return PodName(*key, next(iter(uids)) if len(uids) == 1 else "")


def _noted_uids(held: Iterable[ContainerDevices], journal: Iterable[JournalEntry]) -> dict[_Key, set[str]]:
    """The uids that the last answers name for what each pod holds by kubelet's word, which says no uid."""
    last = {frozenset(entry.ids): entry for entry in sorted(journal, key=lambda entry: entry.at)}
    uids: dict[_Key, set[str]] = {}
    for one in held:
        for entry in (last.get(frozenset(ids)) for ids in (one.memory, one.percent) if ids):
            if entry and entry.uid and entry.pod and (entry.pod.namespace, entry.pod.pod) == one.pod:
                uids.setdefault(one.pod, set()).add(entry.uid)
    return uids


@dataclass(frozen=True, slots=True)
class _Worth:
    """What devices are worth. other: those that were given away in another unit than the policy's of today."""

    unit_mib: int
    other: Mapping[str, int]

    @classmethod
    def of(cls, journal: Sequence[JournalEntry], policy: Policy) -> "_Worth":
        unit_mib = policy.resources.memory_unit_mib
        other: dict[str, int] = {}
        if any(entry.unit_mib not in (0, unit_mib) for entry in journal):
            for entry in sorted(journal, key=lambda entry: entry.at):
                other.update(dict.fromkeys(entry.ids, entry.unit_mib or unit_mib))
        return cls(unit_mib, other)

    def mib(self, device_id: str) -> int:
        return self.other.get(device_id, self.unit_mib)


def _grant(
    name: PodName, holding: _Holding, domain_of: Mapping[str, Domain], policy: Policy, worth: _Worth
) -> Grant | None:
    """The pod's grant; None where it holds no memory of a GPU that is there."""
    mib: Counter[str] = Counter()
    for device_id in holding.memory:
        gpu = gpu_of(device_id) or ""
        if gpu in domain_of:
            mib[gpu] += worth.mib(device_id)
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


def _with_init(grant: Grant | None, pod: NodePod | None) -> Grant | None:
    """After a reboot neither kubelet nor the journal names what an init container holds, and its pod asks for it.

    pod: the grant's, where the journal says nothing of it.
    """
    if grant is None or pod is None or pod.phase != "Pending":
        return grant
    asked_mib = max((request.memory_mib for request in pod.requests if request.role is Role.INIT), default=0)
    return replace(grant, parts=evenly(grant.gpus, max(grant.memory_mib, asked_mib), grant.reserved_percent))


def _fullest(mib: Counter[str], domain_of: Mapping[str, Domain]) -> Domain:
    """The domain with most of this memory; the first of its UUIDs decides between equals."""
    if len(mib) == 1:
        return domain_of[next(iter(mib))]
    total: Counter[Domain] = Counter()
    for uuid, amount in sorted(mib.items()):
        total[domain_of[uuid]] += amount
    return total.most_common(1)[0][0]


# Whose grant the processes in a pod's cgroups have.
#
# One rule: the uid that the API gave a pod is its own. What else a pod says of itself counts only where nobody else
# says it: whoever took another's name would have its processes judged by the wrong grant.

_STATIC = re.compile(r"[0-9a-f]{32}")  # what kubelet makes of a static pod's file; every uid of the API has dashes


def by_cgroup(grants: Iterable[Grant], pods: Iterable[NodePod]) -> dict[str, str]:
    """From each uid that the cgroups of a pod with a grant may have to the id of its grant.

    A static pod's is said by an annotation, which every user may write. A grant whose pod has no uid yet has no
    processes that anybody could tell from others.
    """
    known = tuple(pods)
    ids = {grant.pod.uid: grant.id for grant in grants if grant.pod and grant.pod.uid}
    said = Counter(pod.static_uid for pod in known)
    static = [pod for pod in known if _STATIC.fullmatch(pod.static_uid) and said[pod.static_uid] == 1]
    return {pod.static_uid: ids[pod.uid] for pod in static if pod.uid in ids} | ids
