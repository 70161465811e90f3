"""Which pod holds which devices of this node, and which pods hold none.

Kubelet's list of devices (PodResources) takes precedence over the journal, in which the agent
records every answer to Allocate; an entry counts until something contradicts it, and a device
counts for one pod only.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from mpsd.kubelet.rules.allocation import gpu_of
from mpsd.kubelet.rules.node_pods import KINDS, ContainerName, Kind, NodePod, PodKey
from mpsd.model.client_limits import NORMAL, client_priority
from mpsd.model.container import Role
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant, evenly
from mpsd.model.identity import PodName
from mpsd.model.policy import Policy

# kubelet's uid of a static pod; every uid of the API has dashes
_STATIC = re.compile(r"[0-9a-f]{32}")


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

    @property
    def sets(self) -> list[frozenset[str]]:
        """The ids of each resource of which it holds any."""
        return [frozenset(ids) for ids in (self.memory, self.percent) if ids]


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What was answered to one Allocate. pod: the container, None where it was not known.
    thread_percent None: no cap was answered. at: of CLOCK_BOOTTIME, in seconds. uid: of the pod, so
    that a later one of its name is not taken for it. unit_mib: what each device was worth; 0 where
    that was not recorded, and the policy's unit counts. priority: None where none was answered.
    answered_for: the uid of the pod whose priority that is; `uid` may be corrected since."""

    resource: Kind
    ids: tuple[str, ...]
    pod: ContainerName | None
    thread_percent: int | None
    boot_id: str
    at: float
    uid: str = ""
    unit_mib: int = 0
    priority: int | None = None
    answered_for: str = ""

    @property
    def pod_key(self) -> PodKey | None:
        """None where the container was not known."""
        return self.pod.pod_key if self.pod else None

    def names_one_of(self, pods: Mapping[PodKey, NodePod]) -> bool:
        """And not an earlier pod of that name."""
        pod = pods.get(self.pod_key or ("", ""))
        return pod is not None and not pod.is_finished and self.uid in ("", pod.uid)


NO_ENTRY = JournalEntry("memory", (), None, None, "", 0.0)  # of devices that were never answered
Held = Sequence[ContainerDevices]
Journal = Sequence[JournalEntry]
Pods = Sequence[NodePod]


def counted(rows: Iterable[NodePod]) -> tuple[object, ...]:
    """What of pods the view is made from."""
    of_grants = ("uid", "phase", "static_uid", "requests", "claims", "priority", "ends")
    return tuple(map(attrgetter(*of_grants), rows))


def by_name(pods: Iterable[NodePod]) -> dict[PodKey, NodePod]:
    return {pod.key: pod for pod in pods}


# -- the journal


def by_devices(journal: Journal) -> dict[frozenset[str], JournalEntry]:
    """The last answer for each set of devices."""
    return {
        frozenset(entry.ids): entry
        for entry in sorted(journal, key=lambda entry: entry.at)
        if entry.ids
    }


def served(resource: Kind, held: Held, journal: Journal, pods: Pods) -> frozenset[ContainerName]:
    """The containers that have their devices of this resource. An entry does not count where
    kubelet has given one of its devices to another pod."""
    found: set[ContainerName] = set()
    owners: dict[str, PodKey] = {}
    for one in held:
        if ids := one.of(resource):
            found.add(one.container)
            owners.update(dict.fromkeys(ids, one.pod))
    known = by_name(pods)
    for entry in journal:
        if entry.resource == resource and entry.pod and entry.names_one_of(known):
            key = entry.pod_key
            if all(owners.get(device_id, key) == key for device_id in entry.ids):
                found.add(entry.pod)
    return frozenset(found)


def given_before(
    ids: Collection[str], to: PodKey | None, journal: Journal, pods: Pods
) -> dict[PodKey, frozenset[str]]:
    """By each pod other than `to` that exists: which of these devices it was given. Kubelet may
    have freed them a moment ago, or have lost its checkpoint and forgotten."""
    known = by_name(pods)
    found: dict[PodKey, frozenset[str]] = {}
    for entry in journal:
        key = entry.pod_key
        if key is None or key == to or not entry.names_one_of(known):
            continue
        if shared := frozenset(ids).intersection(entry.ids):
            found[key] = found.get(key, frozenset()) | shared
    return found


def corrected(
    journal: Journal, asked_with: Journal, held: Held, pods: Pods
) -> tuple[JournalEntry, ...]:
    """The entries, each with the container to which kubelet has by now given exactly its devices.
    asked_with: those of when kubelet was asked; it says nothing about later ones."""
    known = by_name(pods)
    holders = {ids: one.container for one in held for ids in one.sets}
    right: dict[int, JournalEntry] = {}
    for ids, entry in by_devices(asked_with).items():
        container = holders.get(ids)
        if container and container.pod_key in known and entry.pod_key != container.pod_key:
            uid = known[container.pod_key].uid
            right[id(entry)] = replace(entry, pod=container, uid=uid)
    return tuple([right.get(id(entry), entry) for entry in journal])


def still_needed(
    journal: Journal, held: Held, pods: Pods, not_before: float
) -> tuple[JournalEntry, ...]:
    """The entries of pods that exist or of devices that are held, the oldest first. pods: all of
    this node that ask for a GPU. not_before: as their `at`; kubelet and the API may not know of
    later entries, which stay."""
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


# -- grants


def pod_grants(
    held: Held, journal: Journal, pods: Pods, domains: Sequence[Domain], policy: Policy
) -> tuple[Grant, ...]:
    """One grant for each pod that holds memory devices, in the order of their ids. journal: of this
    boot. Where a pod's devices lie in two domains, or unevenly, its grant is the least that holds
    on all its GPUs: Allocate and PreStartContainer refuse such a pod."""
    known = by_name(pods)
    domain_of = {uuid: domain for domain in domains for uuid in domain.gpus}
    holdings = _holdings(held, journal, known)
    worth = _worth_mib(journal, policy)
    last = by_devices(journal)
    uids = _uids(held, last, known)
    grants = []
    for key, holding in holdings.items():
        pod = known.get(key)
        grant = _grant(PodName(*key, uids.get(key, "")), holding, domain_of, policy, worth)
        if grant is None:
            continue
        if not holding.entries:
            grant = _with_init_containers(grant, pod)
        grants.append(replace(grant, priority=_priority(holding, last, pod, policy)))
    return tuple(sorted(grants, key=lambda grant: grant.id))


@dataclass(slots=True)
class _Holding:
    """What one pod holds. containers: in kubelet's list. entries: those that say more."""

    memory: set[str] = field(default_factory=set)
    percent: set[str] = field(default_factory=set)
    containers: list[ContainerDevices] = field(default_factory=list)
    entries: list[JournalEntry] = field(default_factory=list)


def _holdings(
    held: Held, journal: Journal, known: Mapping[PodKey, NodePod]
) -> dict[PodKey, _Holding]:
    holdings: dict[PodKey, _Holding] = {}
    owners: dict[str, PodKey] = {}
    for one in held:
        holding = holdings.setdefault(one.pod, _Holding())
        holding.containers.append(one)
        holding.memory.update(_claimed(one.pod, one.memory, owners))
        holding.percent.update(_claimed(one.pod, one.percent, owners))
    listed = frozenset((one.container, kind) for one in held for kind in KINDS if one.of(kind))
    for key, entry in _owned_entries(journal, dict(owners), known, listed):
        holding = holdings.setdefault(key, _Holding())
        holding.entries.append(entry)
        ids = holding.memory if entry.resource == "memory" else holding.percent
        ids.update(_claimed(key, entry.ids, owners))
    return holdings


def _claimed(key: PodKey, ids: Collection[str], owners: dict[str, PodKey]) -> Collection[str]:
    """Those that had no owner; this pod becomes it."""
    new = [device_id for device_id in ids if device_id not in owners]
    owners.update(dict.fromkeys(new, key))
    return new


def _owned_entries(
    journal: Journal,
    owners: Mapping[str, PodKey],
    known: Mapping[PodKey, NodePod],
    listed: frozenset[tuple[ContainerName, Kind]],
) -> Iterator[tuple[PodKey, JournalEntry]]:
    """The entries that say more than kubelet's list, the newest first, each with the pod that holds
    its devices. owners: by kubelet's list. While the first pod exists kubelet gives its devices to
    no second one, so a pod that is listed with one of them holds all, whatever pod the journal
    names."""
    listed_pods = {container.pod_key for container, _ in listed}
    seen: set[tuple[ContainerName | None, Kind]] = set(listed)
    last_uid: dict[PodKey, str] = {}
    for entry in sorted(journal, key=lambda entry: entry.at, reverse=True):
        named = entry.pod_key
        container = (entry.pod, entry.resource)
        if named:
            newest_uid = entry.uid and last_uid.setdefault(named, entry.uid)
            if container in listed and owners.get(next(iter(entry.ids), "")) == named:
                continue
            # The API may be unavailable: then kubelet lists what runs, and the newest entry has the
            # uid of that name.
            exists = named in listed_pods and entry.uid == newest_uid
            if named in known:
                exists = entry.names_one_of(known)
            if not exists:
                continue
        holders = {owners[device_id] for device_id in entry.ids if device_id in owners}
        if len(holders) == 1:
            yield holders.pop(), entry
        elif named and not holders and container not in seen:
            seen.add(container)
            yield named, entry


def _priority(
    holding: _Holding,
    last: Mapping[frozenset[str], JournalEntry],
    pod: NodePod | None,
    policy: Policy,
) -> int:
    """The best that its containers were answered, else what the policy says of the pod."""
    answers = [entry for one in holding.containers if (entry := last.get(frozenset(one.memory)))]
    answers += [entry for entry in holding.entries if entry.resource == "memory"]
    if answers:
        return min(entry.priority or NORMAL for entry in answers)
    return client_priority(pod.priority if pod else None, policy.gpu_priority) or NORMAL


def _uids(
    held: Held, last: Mapping[frozenset[str], JournalEntry], known: Mapping[PodKey, NodePod]
) -> dict[PodKey, str]:
    """Of the known pods, and of others the one that the last answers name for what the pod holds
    according to kubelet, which lists no uid."""
    noted: dict[PodKey, set[str]] = {}
    for one in held:
        if one.pod in known:
            continue
        for entry in map(last.get, one.sets):
            if entry and entry.uid and entry.pod_key == one.pod:
                noted.setdefault(one.pod, set()).add(entry.uid)
    uids = {key: each.pop() for key, each in noted.items() if len(each) == 1}
    return uids | {key: pod.uid for key, pod in known.items()}


def _worth_mib(journal: Journal, policy: Policy) -> Mapping[str, int]:
    """What each device is worth that was given in another unit than the policy's of today."""
    unit_mib = policy.resources.memory_unit_mib
    worth: dict[str, int] = {}
    if any(entry.unit_mib not in (0, unit_mib) for entry in journal):
        for entry in sorted(journal, key=lambda entry: entry.at):
            worth.update(dict.fromkeys(entry.ids, entry.unit_mib or unit_mib))
    return worth


def _grant(
    name: PodName,
    holding: _Holding,
    domain_of: Mapping[str, Domain],
    policy: Policy,
    worth: Mapping[str, int],
) -> Grant | None:
    """The pod's grant; None where it holds no memory of a GPU of this node."""
    unit_mib = policy.resources.memory_unit_mib
    mib = dict[str, int]()
    for device_id in holding.memory:
        gpu = gpu_of(device_id)
        if gpu in domain_of:
            mib[gpu] = mib.get(gpu, 0) + worth.get(device_id, unit_mib)
    if not mib:
        return None
    of_domain: Counter[Domain] = Counter()
    # the first UUID decides between domains with as much
    for uuid, amount in sorted(mib.items()):
        of_domain[domain_of[uuid]] += amount
    domain = of_domain.most_common(1)[0][0]
    gpus = tuple(uuid for uuid in domain.gpus if uuid in mib)
    default = policy.requests.default_thread_percent
    caps = [len(one.percent) // len(gpus) or default for one in holding.containers]
    caps += [entry.thread_percent for entry in holding.entries if entry.thread_percent is not None]
    return Grant(
        id=name.uid or str(name),
        domain=domain.name,
        parts=evenly(gpus, min(mib[uuid] for uuid in gpus), len(holding.percent) // len(gpus)),
        thread_percent=min(100, max(caps, default=default)),
        clients=policy.requests.clients_per_grant,
        holder=name,
        command=str(name),
    )


def _with_init_containers(grant: Grant, pod: NodePod | None) -> Grant:
    """Whose devices neither source lists after a reboot, while their pod is pending."""
    if pod is None or pod.phase != "Pending":
        return grant
    init = [request.memory_mib for request in pod.requests if request.role is Role.INIT]
    memory_mib = max([grant.memory_mib, *init])
    return replace(grant, parts=evenly(grant.gpus, memory_mib, grant.reserved_percent))


def by_cgroup(grants: Iterable[Grant], pods: Pods) -> dict[str, str]:
    """From each uid that a pod's cgroups may have to the id of the pod's grant. A static pod's is
    from an annotation, which every user may write, so it counts where one pod alone has it."""
    ids = {grant.pod.uid: grant.id for grant in grants if grant.pod and grant.pod.uid}
    claims = Counter(pod.static_uid for pod in pods)
    found: dict[str, str] = {}
    for pod in pods:
        uid = pod.static_uid
        if pod.uid in ids and claims[uid] == 1 and _STATIC.fullmatch(uid):
            found[uid] = ids[pod.uid]
    return found | ids
