"""What deciding costs: the core alone, with a node as full as it can be, and a review of what mpsd
has no part in."""

import statistics
import time
from collections.abc import Callable, Iterator

import msgspec

from mpsd.admission.rules.review import needed_to_validate, read_review
from mpsd.agent.rules.decide import decide
from mpsd.model.node_view import HeldGrant, ServerLimit
from mpsd.platform.limits_files import load_limits
from tests.bench.rows import Row
from tests.bench.webhook import review
from tests.model.worlds import POLICY, grant, view

_GRANTS, _ROUNDS, _AT_ONCE = 12, 200, 20


def decisions() -> Iterator[tuple[str, Row]]:
    """Microseconds for one decision on a node with nothing to do, and for one review of a Job that
    asks for no GPU."""
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

    body, here = review(asks=False), load_limits(None)

    def judged() -> bool:
        return needed_to_validate(
            read_review(msgspec.json.decode(body)), here.policy, here.facts
        ).is_faultless

    assert judged()
    alone, decoded = _least_us(judged), _least_us(lambda: msgspec.json.decode(body))
    about = (
        f"CPU of a review of a {len(body) // 1000} kB Job that asks for no GPU; baseline: its JSON"
        " decoded, no more"
    )
    yield "review_of_no_gpu", Row(alone, "µs", None, decoded, about)


def _least_us(act: Callable[[], object]) -> float:
    """CPU of one, of the rounds that the machine's other work slowed least."""
    rounds = []
    for _round in range(_ROUNDS):
        began = time.process_time()
        for _time in range(_AT_ONCE):
            act()
        rounds.append(time.process_time() - began)
    return min(rounds) / _AT_ONCE * 1e6
