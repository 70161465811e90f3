"""What a request that waits holds back: what would delay it, of whom, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.agent.rules.decide import Admit, Refuse, decide
from mpsd.agent.rules.queue import is_ever_short
from mpsd.model.domain import DomainKind
from mpsd.model.node_view import HeldGrant, NodeView, WaitingRequest
from tests.model.worlds import NOW_S, POLICY, grant, identity, record, view, waiting

_ANN, _BOB = 1000, 1001
_ALONE = tuple(replace(record(gpu), kind=DomainKind.ALONE) for gpu in (0, 1))
_FULL = HeldGrant(grant("full", 23, gpu=1), True)


def _of(
    tenant: int | None, name: str, gib: int, gpus: int = 1, *, waits: bool = False
) -> WaitingRequest:
    asked = waiting(name, gib, gpus=gpus, deadline_s=NOW_S + 60 if waits else None)
    return replace(asked, tenant=tenant, holder=identity(abs(hash(name)) % 1000 + 100))


def _held(name: str, gib: int, gpu: int = 0) -> HeldGrant:
    return HeldGrant(grant(name, gib, gpu), True)


def _admitted(seen: NodeView) -> dict[str, str]:
    return {one.id: one.domain for one in decide(seen, POLICY) if isinstance(one, Admit)}


def _refused(seen: NodeView) -> list[Refuse]:
    return [one for one in decide(seen, POLICY) if isinstance(one, Refuse)]


@pytest.mark.parametrize(("gib", "is_admitted"), [(1, True), (2, False)])
def test_what_leaves_enough_for_who_waits_begins_and_what_does_not_is_held_back(
    gib: int, is_admitted: bool
) -> None:
    held = (_held("a", 20), _FULL)
    large, small = _of(_ANN, "large", 22, waits=True), _of(_BOB, "small", gib)
    seen = view(grants=held, waits=(large, small))
    assert _admitted(seen) == ({"small": "gpu0"} if is_admitted else {})
    assert [(one.id, one.for_ever) for one in _refused(seen)] == (
        [] if is_admitted else [("small", False)]
    )


def test_a_waiting_request_holds_back_nothing_on_gpus_that_it_does_not_wait_for() -> None:
    held = (_held("a", 12), _held("b", 13, gpu=1))
    waits = _of(_ANN, "whole", 23, waits=True), _of(_BOB, "small", 8)
    assert _admitted(view(grants=held, waits=waits)) == {"small": "gpu1"}


def test_what_waits_for_gpus_to_join_holds_back_whatever_begins_there() -> None:
    two = _of(_ANN, "two", 4, gpus=2, waits=True)
    for gib in (1, 20):
        seen = view(grants=(_held("a", 1),), waits=(two, _of(_BOB, "b", gib)), records=_ALONE)
        (found,) = _refused(seen)
        assert (found.id, _admitted(seen)) == ("b", {})
        assert "it would delay request two" in found.reason


@pytest.mark.parametrize("gpus", [1, 2])
def test_root_waits_for_no_tenant_and_for_its_own_requests(gpus: int) -> None:
    """One GPU is asked for whole, or two to join; the tenant waits for both cases."""
    held = (_held("a", 1), _held("b", 1, gpu=1))
    waits = _of(_ANN, "waits", 23, gpus, waits=True), _of(None, "root's", 22)
    behind = replace(waits[0], tenant=None), waits[1]
    one_gpu = {"grants": held[:1], "records": _ALONE[:1]} if gpus == 1 else {}
    given = {"grants": held, "records": _ALONE, **one_gpu}
    assert _admitted(view(waits=waits, **given)).keys() == {"root's"}
    assert _admitted(view(waits=behind, **given)) == {}


def test_a_tenant_waits_behind_root() -> None:
    waits = _of(None, "root's", 23, waits=True), _of(_ANN, "ann's", 22)
    assert _admitted(view(grants=(_held("a", 1), _FULL), waits=waits)) == {}


def test_a_user_has_one_request_that_waits_and_another_is_refused_at_once() -> None:
    held = (_held("a", 23), _FULL)
    first, second = _of(_ANN, "first", 7, waits=True), _of(_ANN, "second", 7, waits=True)
    others = _of(_BOB, "bob's", 7, waits=True), *(_of(None, f"{n}", 7, waits=True) for n in (1, 2))
    seen = view(grants=held, waits=(first, second, *others))
    (found,) = _refused(seen)
    assert (found.id, found.is_second, found.for_ever) == ("second", True, False)
    assert "user 1000 has request first waiting" in found.reason
    assert str(first.holder) in found.reason
    # one that wants its answer now waits for nothing, and one that has room is served
    assert not any(
        one.is_second for one in _refused(view(grants=held, waits=(first, _of(_ANN, "now", 7))))
    )
    room = (_held("a", 20), _FULL)
    served = view(grants=room, waits=(first, _of(_ANN, "small", 3, waits=True)))
    assert _admitted(served) == {"small": "gpu0"}


def _subsets(held: tuple[HeldGrant, ...]) -> Iterator[tuple[HeldGrant, ...]]:
    sizes = range(len(held) + 1)
    return chain.from_iterable(combinations(held, size) for size in sizes)


_SIZES = st.integers(1, 12)


@given(
    held=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 1)), max_size=3),
    large=st.tuples(st.integers(1, 23), st.integers(1, 2)),
    small=st.lists(st.integers(1, 23), min_size=1, max_size=4),
)
def test_nothing_that_begins_on_its_gpus_delays_it_however_grants_end(
    held: list[tuple[int, int]], large: tuple[int, int], small: list[int]
) -> None:
    """On a machine of one GPU, and for GPUs that are joined: there a request has no other place."""
    gib, gpus = large
    here = tuple(
        _held(f"h{n}", size, gpu) for n, (size, gpu) in enumerate(held) if gpu == 0 or gpus == 2
    )
    records = _ALONE[:gpus]
    waits = _of(_ANN, "large", gib, gpus, waits=True)
    seen = view(grants=here, records=records, waits=(waits,))
    seen = replace(seen, gpus=seen.gpus[:gpus])
    if _admitted(seen):
        return
    later = tuple(_of(_BOB, f"s{n}", size) for n, size in enumerate(small))
    actions = decide(replace(seen, waiting=(waits, *later)), POLICY)
    new = tuple(HeldGrant(one.grant, True) for one in actions if isinstance(one, Admit))
    for left in _subsets(here):
        without = replace(seen, grants=left)
        if _admitted(without):
            assert _admitted(replace(without, grants=(*left, *new)))


@given(st.integers(0, 30), st.integers(0, 10), st.lists(_SIZES, max_size=5), st.integers(0, 10))
def test_short_is_what_some_ends_would_have_been_enough_for(
    need: int, free: int, held: list[int], taken: int
) -> None:
    ends = chain.from_iterable(combinations(held, size) for size in range(len(held) + 1))
    found = any(free + sum(one) - taken < need <= free + sum(one) for one in ends)
    assert is_ever_short(need, free, held, taken) is found
