"""Why a node is refused or a pod not bound, as people read it in a pod's events: `wording.txt` has
the sentences."""

from collections.abc import Iterable

from mpsd.model.grants import Request
from mpsd.scheduler.bind import BindFailure
from mpsd.scheduler.rules.filter import filtered, why_not
from mpsd.scheduler.rules.gpu_table import GpuTable
from tests.scheduler.test_node_filter import ALIKE, MANY, SEVEN, alike, crowded
from tests.scheduler.test_node_ledger import CROWDED, MIXED, NO_DAEMON, SILENT, TWO
from tests.status.cluster_worlds import GIB


def wording() -> str:
    """Of each lack, what one node says by itself, and what each of many says."""
    lines = []
    for request, one, lack in ALIKE:
        alone = filtered(request, tuple(MANY[:1]), alike(one, MANY[:1]), {}).failed
        together = dict.fromkeys(
            filtered(request, tuple(MANY), alike(one, MANY), {}).failed.values()
        )
        lines += [
            lack.name,
            *(f"  one:  {words}" for words in alone.values()),
            *(f"  many: {each}" for each in together),
        ]
    lines += ["CLIENTS", *dict.fromkeys(f"  many: {one}" for one in _failed(crowded(MANY)))]
    lines += ["UNKNOWN", f"  {why_not(SEVEN, None)}", "several"]
    for request, capacity in (
        (SEVEN, MIXED),
        (Request(GIB, 30, 1), CROWDED),
        (TWO, NO_DAEMON),
        (SEVEN, SILENT),
    ):
        lines += [f"  {why_not(request, capacity)}"]
    lines += [
        f"{one.name}\n  {one.format(pod='default/a', node='node1', why='WHY')}"
        for one in BindFailure
    ]
    return "\n".join(lines) + "\n"


def _failed(nodes: GpuTable) -> Iterable[str]:
    return filtered(SEVEN, tuple(MANY), nodes, {}).failed.values()
