"""The sentences with which kubelet's calls are refused, as people read them: `wording.txt` has them all."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from mpsd.kubelet.rules.allocation import allocate_memory, allocate_percent
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.kubelet.rules.start_checks import start_problems
from mpsd.model.domain import State
from mpsd.model.problem import InvalidInput
from tests.kubelet.test_allocation import APART, TOGETHER, asking
from tests.kubelet.test_start_problems import MAIN, READY, StartContext, holdings, sharing
from tests.model.worlds import POLICY, UUIDS, record
from tests.status.node_worlds import container, devices, entry, mem_ids, named, node_pod, percent_ids

UNEVEN = (*mem_ids(5), *mem_ids(3, gpu=1))
GONE = tuple(f"GPU-gone/{n}" for n in range(7))
NONE_IN_COMMON = (*mem_ids(8), "GPU-0", "a/b/c", "x", "nvidia/1", *mem_ids(1))

REFUSED: tuple[Callable[[], object], ...] = (
    lambda: allocate_memory((), None, APART, POLICY),
    lambda: allocate_memory((*NONE_IN_COMMON, *GONE), None, APART, POLICY),
    lambda: allocate_memory(UNEVEN, None, TOGETHER, POLICY),
    lambda: allocate_memory(UNEVEN, asking(8), APART, POLICY),
    lambda: allocate_memory(UNEVEN, asking(8, gpus=2), APART, POLICY),
    lambda: allocate_percent(percent_ids(101), asking(8, percent=100), POLICY),
)


def starts() -> Iterator[tuple[ContainerDevices, StartContext]]:
    """One start that each check refuses."""
    two, half = node_pod("train-0", container(mem=8), gpus=2), node_pod("train-0", container(mem=7, percent=30))
    even, uneven = devices(named(), (*mem_ids(4), *mem_ids(4, gpu=1))), devices(named(), UNEVEN)
    gone, late, more = devices(named(), GONE), devices(named("late"), mem_ids(7)), devices(named(), mem_ids(8))
    beside, (held, pods) = devices(named(container_name="b"), mem_ids(2, gpu=1)), sharing(60, 60)
    journal = (entry(mem_ids(7), named(), 100, at=1.0), entry(mem_ids(7), named("late"), 100, at=2.0))
    yield devices(named(), ("x",)), holdings()
    yield gone, holdings(gone)
    yield even, holdings(even, pods=(two,))
    yield uneven, holdings(uneven, pods=(two,), records=(replace(record(0), domain="gpu0-1", gpus=UUIDS),))
    yield more, holdings(more, pods=(two,))
    yield late, holdings(MAIN, late, pods=(node_pod(), node_pod("late")), journal=journal)
    yield more, holdings(more)
    yield MAIN, holdings(MAIN, beside, pods=(node_pod("train-0", container(mem=7), container("b", mem=2)),))
    yield held[1], holdings(*held, pods=pods)
    yield MAIN, holdings(MAIN, pods=(half,), journal=(entry(mem_ids(7), None, 100),))
    yield MAIN, holdings(MAIN, journal=(entry(mem_ids(7), named("b"), None),))
    yield MAIN, holdings(MAIN, records=(record(0, State.FAULT, reason="no answer for 6 s"), record(1)))
    yield MAIN, holdings(MAIN, records=READY[1:])


def wording() -> str:
    """What Allocate and PreStartContainer say of each, with the rules."""
    lines = []
    for refused in REFUSED:
        try:
            refused()
        except InvalidInput as error:
            lines += [f"Allocate: {error.subject}", *(f"  {one.rule}: {one}" for one in error.problems)]
    for starting, node in starts():
        found = start_problems(starting, node, POLICY)
        lines += [f"PreStartContainer {one.rule}\n  {one.sentence}" for one in found]
    return "\n".join(lines) + "\n"
