"""What deciding costs: the core alone, with a node as full as it can be."""

import statistics
import time
from collections.abc import Iterator

from mpsd.agent.rules.decide import decide
from mpsd.model.node_view import HeldGrant, ServerLimit
from tests.bench.rows import Row
from tests.model.worlds import POLICY, grant, view

_GRANTS, _ROUNDS = 12, 200


def decisions() -> Iterator[tuple[str, Row]]:
    """Microseconds for one decision on a node with nothing to do."""
    held = tuple(HeldGrant(grant(f"g{n}", 1, n % 2), True) for n in range(_GRANTS))
    limits = frozenset({ServerLimit(None, 0, 1024), ServerLimit(500, 0, 1024)})
    world = view(grants=held, limits=limits)
    assert decide(world, POLICY) == ()
    took = []
    for _round in range(_ROUNDS):
        began = time.perf_counter()
        decide(world, POLICY)
        took.append(time.perf_counter() - began)
    about = f"one decision on 2 GPUs with {_GRANTS} grants and nothing to do"
    yield "decide", Row(statistics.median(took) * 1e6, "µs", None, None, about)
