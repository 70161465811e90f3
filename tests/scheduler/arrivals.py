"""A cluster where pods come and go, each placed as the scheduler places it: filter, prioritize, a
GPU of the best node, and the node's ledger written anew.

Most GPUs are held all the time by pods that have a whole one each, at random and the same for every
choice; the pods that come and go share the rest, which is nearly full. What is on each GPU is
counted a second time, apart from the ledger, and looked at after every pod.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from random import Random

from msgspec.structs import replace as changed

from mpsd.grants.rules.placement import Placed, place
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.grants import Request
from mpsd.model.identity import PodName
from mpsd.scheduler.rules.capacity import NodeCapacity, node_capacity
from mpsd.scheduler.rules.gpu_table import GpuTable
from mpsd.scheduler.rules.reservations import Reservation
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, cluster_node, held

GPUS, CLIENTS = 8, 48
CARDS_GIB = (23, 79, 79, 139)  # A30, A100 twice as often, H200
HELD = 0.92  # of the GPUs
LARGE_GIB = 40
_EACH = POLICY.requests.clients_per_grant


@dataclass(frozen=True, slots=True)
class Arrival:
    """leaves: at which later arrival."""

    pod: PodName
    request: Request
    leaves: int


def arrivals(pods: int, nodes: int, seed: int) -> Iterator[Arrival]:
    """Most ask for 1 to 64 GiB of one GPU, small ones more often; some for a whole GPU or for two,
    some for threads."""
    random = Random(seed)
    # at a time, if none were refused: more than there is room for
    living = nodes * GPUS * (1 - HELD) * 5.6
    for number in range(pods):
        kind, gpus = random.random(), 1
        gib = int(2 ** random.uniform(0, 6.02))
        if kind < 0.06:
            gib = random.choice(CARDS_GIB)
        elif kind < 0.12:
            gib, gpus = random.randrange(8, 65), 2
        percent = random.randrange(5, 51, 5) if random.random() < 0.2 else None
        name = PodName("default", f"pod-{number}", f"uid-{number}")
        yield Arrival(
            name,
            Request(gib * GIB, percent, gpus),
            number + 1 + int(random.expovariate(1 / living)),
        )


class Cluster:
    """placement: the label of every node."""

    def __init__(self, nodes: Sequence[ClusterNode], placement: str) -> None:
        self.table = GpuTable()
        self.names = tuple(node.name for node in nodes)
        self._nodes = {node.name: node for node in nodes}
        self._placement = placement
        self._reserved: dict[str, dict[str, Reservation]] = {node.name: {} for node in nodes}
        self._cards = {gpu.uuid: gpu for node in nodes for gpu in node.gpus}
        self._on_gpu = {uuid: Counter[str]() for uuid in self._cards}
        for node in nodes:
            for pod in node.pods or ():
                self._count(pod.gpus, pod.memory_mib or 0, 0, 1)
            self._put(node.name)
        self._shared = [gpu for gpu, on in self._on_gpu.items() if not on["clients"]]

    def take(self, arrival: Arrival, node: str, gpus: tuple[str, ...]) -> None:
        request = arrival.request
        percent = request.thread_percent or 0
        self._reserved[node][arrival.pod.uid] = Reservation(
            arrival.pod, gpus, request.memory_mib, percent
        )
        assert len(set(gpus)) == request.gpus
        assert len({(self._cards[gpu].node, self._cards[gpu].domain) for gpu in gpus}) == 1
        self._count(gpus, request.memory_mib, percent, 1)
        self._put(node)

    def leave(self, node: str, pod: PodName) -> None:
        one = self._reserved[node].pop(pod.uid)
        self._count(one.gpus, one.memory_mib, one.percent, -1)
        self._put(node)

    def ledger(self, node: str) -> NodeCapacity:
        found = self.table.ledger(node)
        assert found
        return found

    def measure(self) -> "Shares":
        """Of the GPUs that are shared."""
        total = free = large = whole = free_gpus = 0
        for gpu in self._shared:
            on, card_mib = self._on_gpu[gpu], self._cards[gpu].promised_mib or 0
            left_mib = card_mib - on["mib"]
            more = min(left_mib // (LARGE_GIB * GIB), (CLIENTS - on["clients"]) // _EACH)
            total += card_mib
            free += left_mib
            large += more * LARGE_GIB * GIB
            whole += left_mib if not on["clients"] else 0
            free_gpus += not on["clients"]
        return Shares(
            1 - free / total, large / free, whole / free, len(self._shared) - free_gpus, free_gpus
        )

    def _put(self, node: str) -> None:
        reserved = self._reserved[node].values()
        self.table.put(node_capacity(self._nodes[node], self._placement, (), reserved, POLICY))

    def _count(self, gpus: Sequence[str], memory_mib: int, percent: int, sign: int) -> None:
        for gpu in gpus:
            on = self._on_gpu[gpu]
            on.update(mib=sign * memory_mib, percent=sign * percent, clients=sign * _EACH)
            assert 0 <= on["mib"] <= (self._cards[gpu].promised_mib or 0), (
                f"{gpu} is over its memory: {on}"
            )
            assert 0 <= on["percent"] <= 100, f"{gpu} is over its threads: {on}"
            assert 0 <= on["clients"] <= CLIENTS, f"{gpu} is over its clients: {on}"


@dataclass(frozen=True, slots=True)
class Shares:
    """used: of all memory. Of the free memory, large: what pods of LARGE_GIB could take, one beside
    the other; whole: what lies on GPUs that hold nothing. in_use, free_gpus: how many GPUs hold
    pods, and how many none.
    """

    used: float
    large: float
    whole: float
    in_use: float
    free_gpus: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """refused, refused_several: pods that fitted nowhere when they came, of one GPU and of several.
    shares: the mean while the second half of the pods came.
    """

    refused: int
    refused_several: int
    shares: Shares


Choice = Callable[[Cluster, Request, tuple[str, ...], Random], tuple[str, tuple[str, ...]]]


def scored(
    cluster: Cluster, request: Request, passing: tuple[str, ...], random: Random
) -> tuple[str, tuple[str, ...]]:
    """One of the nodes that prioritize likes best, as kube-scheduler takes it, and the GPUs that
    bind takes there."""
    scores = cluster.table.scores(request, cluster.table.slots(passing))
    best = (scores == scores.max()).nonzero()[0]
    node = passing[int(best[random.randrange(len(best))])]
    ledger = cluster.ledger(node)
    found = place(request, ledger.rooms, ledger.policy)
    assert isinstance(found, Placed)
    return node, found.gpus


def first_fit(
    cluster: Cluster, request: Request, passing: tuple[str, ...], random: Random
) -> tuple[str, tuple[str, ...]]:
    """The first node that passes, and the first GPUs there."""
    ledger = cluster.ledger(passing[0])
    fitting = [room for room in ledger.rooms if room.holds(request, ledger.policy)]
    for room in fitting:
        beside = [other for other in fitting if other.domain == room.domain]
        if len(beside) >= request.gpus:
            return passing[0], tuple(other.gpu.uuid for other in beside[: request.gpus])
    raise AssertionError(f"{passing[0]} passed and has no room for {request}")


CHOICES: dict[str, tuple[str, Choice]] = {
    "binpack": ("binpack", scored),
    "spread": ("spread", scored),
    "first-fit": ("binpack", first_fit),
}


def cluster_nodes(nodes: int, seed: int) -> tuple[ClusterNode, ...]:
    """Each with 8 GPUs of one kind; on every other node they are in domains of two."""
    random, found = Random(seed), []
    for number in range(nodes):
        name, gib = f"node-{number:04}", CARDS_GIB[number % len(CARDS_GIB)]
        pairs = [n for n in range(0, GPUS, 2) if random.random() < HELD]
        holds = tuple(held(f"whole-{n}", gib, n, name) for pair in pairs for n in (pair, pair + 1))
        node = cluster_node(name, (gib,) * GPUS, held=holds)
        if number % 8 >= 4:
            node = changed(
                node,
                gpus=tuple(changed(gpu, domain=f"gpus{n // 2}") for n, gpu in enumerate(node.gpus)),
            )
        found.append(node)
    return tuple(found)


def simulate(choice: str, nodes: int, pods: int, seed: int = 6) -> Outcome:
    """All the pods come one after the other, leave when they are due, and at the end the last of
    them have left."""
    placement, choose = CHOICES[choice]
    cluster, random = Cluster(cluster_nodes(nodes, seed), placement), Random(seed)
    before = {node: cluster.ledger(node) for node in cluster.names}
    leaving: list[tuple[int, int, str, PodName]] = []
    refused = several = 0
    seen: list[Shares] = []
    for number, arrival in enumerate(arrivals(pods, nodes, seed)):
        while leaving and leaving[0][0] <= number:
            _at, _number, node, pod = heapq.heappop(leaving)
            cluster.leave(node, pod)
        passing = cluster.table.passing(arrival.request, cluster.names)
        if passing:
            node, gpus = choose(cluster, arrival.request, passing, random)
            cluster.take(arrival, node, gpus)
            heapq.heappush(leaving, (arrival.leaves, number, node, arrival.pod))
        else:
            refused, several = (
                refused + (arrival.request.gpus == 1),
                several + (arrival.request.gpus > 1),
            )
        if number >= pods // 2 and number % (pods // 40) == 0:
            seen.append(cluster.measure())
    for *_when, node, pod in leaving:
        cluster.leave(node, pod)
    assert {node: cluster.ledger(node) for node in cluster.names} == before
    return Outcome(refused, several, _mean(seen))


def _mean(seen: Sequence[Shares]) -> Shares:
    return Shares(*(sum(column) / len(seen) for column in zip(*map(astuple, seen), strict=True)))
