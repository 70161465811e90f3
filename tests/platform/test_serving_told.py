"""Which certificate's end stands on the webhook's configurations, whoever of its replicas comes when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform.rules.certificates import AGAIN_S, ANNOTATION, Stood, Validity, annotation, must_say, read_annotation


class Replica:
    """serves: changed by the test, as a renewal would."""

    def __init__(self, serves: Validity) -> None:
        self.serves = serves
        self._last: Stood | None = None
        self.writes = 0

    def look(self, there: Validity | None, now: float) -> Validity | None:
        """What stands there afterwards."""
        if must_say(there, self.serves, self._last, now):
            self.writes += 1
            there = self.serves
        if there and there.ends_at == self.serves.ends_at:
            self._last = Stood(self.serves, now)
        return there


VALIDITIES = st.integers(1, 6).map(lambda day: Validity(0.0, day * 86400.0))


@given(st.lists(VALIDITIES, min_size=1, max_size=4), st.none() | VALIDITIES, st.data())
def test_the_earliest_end_of_all_that_is_served_stands_there_once_everybody_has_looked_twice(
    served: list[Validity], there: Validity | None, data: st.DataObject
) -> None:
    replicas = [Replica(one) for one in served]
    for now in range(2):
        for replica in data.draw(st.permutations(replicas)):
            there = replica.look(there, float(now))
    assert there == min(served, key=lambda one: one.ends_at)


@given(st.lists(VALIDITIES, min_size=1, max_size=4), st.none() | VALIDITIES)
def test_replicas_that_differ_do_not_fight(served: list[Validity], there: Validity | None) -> None:
    replicas = [Replica(one) for one in served]
    for now in range(0, int(AGAIN_S), 10):
        for replica in replicas:
            there = replica.look(there, float(now))
    assert sum(one.writes for one in replicas) <= 2 * len(replicas)


def test_an_end_that_nobody_serves_any_more_is_gone_within_an_hour() -> None:
    one, gone = Replica(Validity(0.0, 200.0)), Validity(0.0, 100.0)
    assert one.look(gone, 0.0) == one.serves
    assert one.look(gone, AGAIN_S - 1) == gone, "whoever put it back may still serve it"
    assert one.look(gone, AGAIN_S) == one.serves


def test_a_renewal_is_told_at_once_and_taken_back_by_who_has_not_renewed() -> None:
    old, new = Validity(0.0, 100.0), Validity(80.0, 180.0)
    first, second = Replica(old), Replica(old)
    there = second.look(first.look(None, 0.0), 1.0)
    first.serves = new
    there = first.look(there, 2.0)
    assert there == new
    there = first.look(second.look(there, 3.0), 4.0)
    assert there == old
    second.serves = new
    assert second.look(there, 5.0) == new


@given(st.integers(0, 4 * 10**9), st.integers(1, 10**8))
def test_what_is_written_is_read_again(begins_at: int, life_s: int) -> None:
    validity = Validity(float(begins_at), float(begins_at + life_s))
    written = {"metadata": {"annotations": {ANNOTATION: annotation(validity)}}}
    assert read_annotation(written) == validity


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"metadata": None},
        {"metadata": {"annotations": None}},
        {"metadata": {"annotations": {ANNOTATION: 7}}},
        {"metadata": {"annotations": {ANNOTATION: "2026-01-01T00:00:00Z"}}},
        {"metadata": {"annotations": {ANNOTATION: "2026-01-02T00:00:00Z/2026-01-01T00:00:00Z"}}},
    ],
)
def test_what_cannot_be_read_is_said_by_nobody(configuration: dict[str, object]) -> None:
    assert read_annotation(configuration) is None


@given(st.text(max_size=40))
def test_any_text_is_read_or_is_none(text: str) -> None:
    read = read_annotation({"metadata": {"annotations": {ANNOTATION: text}}})
    assert read is None or read.begins_at < read.ends_at
