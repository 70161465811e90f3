"""What one decision of the scheduler costs: which of thousands of nodes have room for a pod, and
how good each is.

Beside it a loop in plain Python decides the same from the same ledger, kept as tuples; both must
say the same. `python -m tests.bench.scheduler` runs these rows alone.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from mpsd.model.grants import Request
from mpsd.model.identity import PodName
from mpsd.scheduler.rules.capacity import NodeCapacity, node_capacity
from mpsd.scheduler.rules.gpu_table import GpuTable
from mpsd.scheduler.rules.reservations import Reservation
from tests.bench import plain_loop
from tests.bench.plain_loop import Decision
from tests.bench.rows import Row, show
from tests.model.worlds import POLICY
from tests.scheduler.arrivals import CARDS_GIB, GPUS
from tests.status.cluster_worlds import GIB, cluster_node, uuid

NODES, FEWER = 5000, 500
ROUNDS, PLAIN_ROUNDS = 3000, 300
CHANGES = 2  # rows that are written anew between two decisions: a pod came, and one went
REQUESTS = (
    *(Request(gib * GIB, None, 1) for gib in (1, 2, 4, 7, 12, 16, 24, 40, 64)),
    *(Request(gib * GIB, percent, 1) for gib, percent in ((4, 20), (10, 30))),
    Request(20 * GIB, None, 2),
)

Names = Sequence[str]


def scheduler() -> Iterator[tuple[str, Row]]:
    """Milliseconds are printed; the ratios have limits."""
    many, few = _World(NODES), _World(FEWER)
    gc.collect()
    gc.freeze()  # as the scheduler does once it has its ledger
    try:
        ours, plain = many.both(PLAIN_ROUNDS)
        others = many.both(PLAIN_ROUNDS // 3, new=True)
        took, fewer = many.ours(ROUNDS), few.ours(ROUNDS)
        written = many.written(ROUNDS)
    finally:
        gc.unfreeze()
    about = f"of a pod over {NODES} names × {GPUS} GPUs"
    baseline = "a loop in plain Python over the same ledger"
    ratio = _median(ours, _cpu) / _median(plain, _cpu)
    yield (
        "scheduler_decision_ratio",
        Row(ratio, "×", 0.05, None, f"filter and prioritize {about}, by {baseline}"),
    )
    middle = _median(took, _wall) * 1e3, _median(plain, _wall) * 1e3
    yield (
        "scheduler_decision_p50",
        Row(middle[0], "ms", None, middle[1], f"the same; baseline: {baseline}"),
    )
    p99 = sorted(one.wall_s for one in took)[len(took) * 99 // 100] * 1e3
    yield "scheduler_decision_p99", Row(p99, "ms", None, None, f"p99 of {ROUNDS}")
    pods = [len(found) / sum(one.cpu_s for one in found) for found in (took, plain)]
    yield (
        "scheduler_decision_rate",
        Row(pods[0], "pods/s", None, pods[1], f"decided on one core; baseline: {baseline}"),
    )
    medians = [_median(side, _cpu) * 1e3 for side in others]
    yield (
        "scheduler_decision_new",
        Row(
            medians[0], "ms", None, medians[1], "names in an order, and amounts, never seen before"
        ),
    )
    yield (
        "scheduler_row",
        Row(_median(written, _cpu) * 1e6, "µs", None, None, "writing what a node's GPUs have left"),
    )
    growth = _median(took, _cpu) / (_median(fewer, _cpu) * NODES / FEWER)
    about = f"a decision over {NODES} nodes, by {NODES // FEWER} × one over {FEWER}; linear is 1"
    yield "scheduler_growth", Row(growth, "×", 1.1, None, about)


@dataclass(frozen=True, slots=True)
class _Took:
    """cpu_s: ratios are taken of it, since others share the machine."""

    wall_s: float
    cpu_s: float


class _Watch:
    def __init__(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def took(self) -> _Took:
        return _Took(time.perf_counter() - self._began[0], time.thread_time() - self._began[1])


def _wall(one: _Took) -> float:
    return one.wall_s


def _cpu(one: _Took) -> float:
    return one.cpu_s


def _median(found: Iterable[_Took], of: Callable[[_Took], float]) -> float:
    return statistics.median(map(of, found))


@dataclass(frozen=True, slots=True)
class _Question:
    """changes: ledger that are new since the question before."""

    changes: Sequence[NodeCapacity]
    request: Request
    names: Names


class _World:
    """Nodes whose GPUs hold up to six pods each, by chance, in two ledger: the table's, and tuples
    of what is left."""

    def __init__(self, nodes: int) -> None:
        self._random = Random(nodes)
        self._table = GpuTable()
        self._rows: dict[str, plain_loop.Row] = {}
        self._names = [f"node-{number:05}.example.internal" for number in range(nodes)]
        self._spare = {
            name: tuple(_ledger(name, number, self._random) for _ in range(2))
            for number, name in self._each()
        }
        for _number, name in self._each():
            self._table.put(self._spare[name][0])
            self._rows[name] = plain_loop.row(self._spare[name][0])

    def ours(self, rounds: int) -> list[_Took]:
        """Each decision."""
        return [
            took for turn in self._turns(rounds) for took, _decision in map(self._decided, turn)
        ]

    def both(self, rounds: int, *, new: bool = False) -> tuple[list[_Took], list[_Took]]:
        """Each decision, and each by the plain loop, in turns, so that neither finds its ledger
        gone from the cache.

        new: in no order and for no amount that was asked about before.
        """
        ours, plain = list[_Took](), list[_Took]()
        for turn in self._turns(rounds, new=new):
            for found, beside in zip(
                [*map(self._decided, turn)], [*map(self._decided_plainly, turn)], strict=True
            ):
                assert found[1] == beside[1]
                ours.append(found[0])
                plain.append(beside[0])
        return ours, plain

    def _turns(self, rounds: int, *, new: bool = False) -> Iterator[list[_Question]]:
        for _turn in range(rounds // len(REQUESTS)):
            yield [
                _Question(
                    [
                        self._random.choice(self._spare[self._random.choice(self._names)])
                        for _change in range(CHANGES)
                    ],
                    (
                        replace(
                            request, memory_mib=request.memory_mib - self._random.randrange(1000)
                        )
                        if new
                        else request
                    ),
                    self._random.sample(self._names, len(self._names)) if new else self._names,
                )
                for request in REQUESTS
            ]

    def written(self, rounds: int) -> list[_Took]:
        found = list[_Took]()
        for _round in range(rounds):
            ledger = self._random.choice(self._spare[self._random.choice(self._names)])
            watch = _Watch()
            self._table.put(ledger)
            found.append(watch.took())
        return found

    def _decided(self, asked: _Question) -> tuple[_Took, Decision]:
        for ledger in asked.changes:
            self._table.put(ledger)
        watch = _Watch()
        passing = self._table.passing(asked.request, asked.names)
        scores = self._table.scores(asked.request, self._table.slots(passing)).tolist()
        return watch.took(), (list(passing), scores)

    def _decided_plainly(self, asked: _Question) -> tuple[_Took, Decision]:
        for ledger in asked.changes:
            self._rows[ledger.node] = plain_loop.row(ledger)
        watch = _Watch()
        decision = plain_loop.decided(asked.request, asked.names, self._rows)
        return watch.took(), decision

    def _each(self) -> Iterator[tuple[int, str]]:
        return enumerate(self._names)


def _ledger(name: str, number: int, random: Random) -> NodeCapacity:
    """Of a node of one kind of GPU; every other one has them in one domain."""
    gib = CARDS_GIB[number % len(CARDS_GIB)]
    node = cluster_node(name, (gib,) * GPUS, together=number % 8 >= 4)
    reservations = []
    for gpu in range(GPUS):
        left = gib
        for pod in range(random.randrange(7)):
            size = random.randint(1, max(1, left // 2))
            left -= size
            percent = random.choice((0, 0, 0, 15))
            named = PodName("default", f"pod-{gpu}-{pod}", f"{name}-{gpu}-{pod}")
            reservations.append(Reservation(named, (uuid(name, gpu),), size * GIB, percent))
    return node_capacity(node, "", (), reservations, POLICY)


if __name__ == "__main__":
    show(dict(scheduler()))
