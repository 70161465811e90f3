"""Which pods of a node are known to hold none of its GPUs, or run without the devices that they ask
for."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from mpsd.kubelet.rules.ledger import Held, Journal, Pods, served
from mpsd.kubelet.rules.node_pods import DEVICE_CLASS, NodePod, PodKey
from mpsd.model.container import Role
from mpsd.model.identity import PodName
from mpsd.model.names import matches
from mpsd.model.pod import ANY_CLAIM
from mpsd.model.policy import Policy

# that a pod must appear without its devices before it counts as such: kubelet and the API both lag
PATIENCE_S = 60.0


def without_devices(
    pods: Pods, held: Held, listed: Collection[PodKey], journal: Journal
) -> tuple[NodePod, ...]:
    """The pods that run and ask for GPU memory, but hold none: a kubelet without a registered
    plugin was observed to run pods without calling Allocate. listed: the pods in kubelet's list; of
    others it does not know yet what they hold."""
    have = {container.pod_key for container in served("memory", held, journal, pods)}
    found: list[NodePod] = []
    for pod in pods:
        is_running = pod.phase == "Running" and not pod.terminating
        asks = any(one.role is Role.MAIN and one.memory_units for one in pod.requests)
        if is_running and asks and pod.key in listed and pod.key not in have:
            found.append(pod)
    return tuple(found)


def unserved(
    rows: Iterable[NodePod],
    listed: Collection[PodKey],
    of_others: Collection[tuple[PodKey, str]],
    policy: Policy,
) -> frozenset[str]:
    """The uids of those that ask other device plugins for a GPU and hold none, whatever the names
    that they ask by: kubelet runs a pod that asks for what nobody offers, where no scheduler chose
    its node. rows: as they were before kubelet was asked. It allocates before anything of a pod
    runs, but lists no init containers, and nothing that comes by a claim. It names no uid: a pod
    that took the name of one just deleted by force, before the API told, stands for both."""
    found = set()
    gives_one = _giving_one(policy)
    for row in rows:
        if row.phase != "Running" or row.terminating or row.key not in listed:
            continue
        asked = [name for name in row.asked if gives_one(name)]
        are_listed = not any(map(_is_unlisted, asked)) and policy.resources.memory not in asked
        if asked and are_listed and not any((row.key, name) in of_others for name in asked):
            found.add(row.uid)
    return frozenset(found)


def _is_unlisted(name: str) -> bool:
    return name == ANY_CLAIM or name.startswith(DEVICE_CLASS)


def since(before: Mapping[str, float], seen: Iterable[NodePod], now: float) -> dict[str, float]:
    """By uid, since when each has been seen so without a break."""
    return {pod.uid: before.get(pod.uid, now) for pod in seen}


def late(
    first_seen: Mapping[str, float], seen: Iterable[NodePod], now: float
) -> tuple[NodePod, ...]:
    """Those that have been so for PATIENCE_S."""
    return tuple(pod for pod in seen if now - first_seen[pod.uid] >= PATIENCE_S)


def ungranted(
    rows: Sequence[NodePod],
    held: Held,
    journal: Journal,
    unallocated: Collection[str],
    policy: Policy,
) -> dict[str, PodName]:
    """The pods that certainly hold no grant, by the API's uid: a process of theirs on a GPU is
    ended, so any doubt keeps a pod out. unallocated: without their devices for PATIENCE_S, or
    `unserved`."""
    asking = [row for row in rows if row.requests]
    have = {container.pod_key for container in served("memory", held, journal, asking)}
    gives_one = _giving_one(policy)
    may_have_one = {each for each in {row.asked for row in rows} if any(map(gives_one, each))}
    found: dict[str, PodName] = {}
    for row in rows:
        is_without = row.uid in unallocated or row.asked not in may_have_one
        if is_without and row.key not in have:
            found[row.uid] = row.identity
    return found


def _giving_one(policy: Policy) -> Callable[[str], bool]:
    """Whether mpsd, another device plugin or a DRA driver may give a GPU to who asks by this name.
    Claims may be for anything: they count where the policy names a device class."""
    kept = policy.admission.visible_devices_kept_for
    ways = {policy.resources.memory}
    if any(name.startswith(DEVICE_CLASS) for name in kept):
        ways.add(ANY_CLAIM)
    none = {policy.resources.percent, policy.resources.count}
    return lambda name: name not in none and (name in ways or matches(name, kept))
