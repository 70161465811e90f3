"""When certificates are made and renewed: whoever looks when, what is served can be verified."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.model.times import DAY_S, HOUR_S, stamp
from mpsd.platform.rules.certificates import (
    AGAIN_S,
    ANNOTATION,
    Authority,
    CertificateStep,
    Lives,
    SecretView,
    Serving,
    Validity,
    annotation,
    must_write,
    next_step,
    read_annotation,
    why_invalid,
)

NAMES = frozenset({"webhook.mpsd.svc"})
LIVES = Lives(authority_s=9000, serving_s=900, settle_s=60)
NOW = 1_000_000.0
AUTHORITY = Authority("one", NOW + LIVES.authority_s)
SERVING = Serving("one", NAMES, NOW + LIVES.serving_s)
GOOD = SecretView(authority=AUTHORITY, serving=SERVING)
# a third of an authority's life is 3000
LATE = SecretView(authority=Authority("one", NOW + 2999), serving=SERVING)
TWO = Authority("two", NOW + 9000)
FOLLOWED = replace(LATE, following=TWO)


def trusted(secret: SecretView) -> frozenset[str]:
    return frozenset(one.id for one in (secret.authority, secret.following, secret.former) if one)


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        (SecretView(serving=SERVING), CertificateStep.START),
        (SecretView(held=True), CertificateStep.BRING_BACK),
        (SecretView(authority=AUTHORITY), CertificateStep.ISSUE),
        (replace(GOOD, held=True), None),
        (replace(GOOD, serving=replace(SERVING, signed_by="another")), CertificateStep.ISSUE),
        (
            replace(GOOD, serving=replace(SERVING, names=frozenset({"old.name"}))),
            CertificateStep.ISSUE,
        ),
        (replace(GOOD, serving=replace(SERVING, names=NAMES | {"more"})), None),
        (replace(GOOD, serving=replace(SERVING, not_after=NOW + 301)), None),
        (replace(GOOD, serving=replace(SERVING, not_after=NOW + 300)), CertificateStep.ISSUE),
        (replace(GOOD, authority=Authority("one", NOW)), CertificateStep.START),
        (LATE, CertificateStep.PREPARE),
        (FOLLOWED, None),
        (replace(FOLLOWED, following_trusted_since=NOW - 59), None),
        (replace(FOLLOWED, following_trusted_since=NOW - 60), CertificateStep.SWITCH),
        (replace(FOLLOWED, authority=Authority("one", NOW - 1)), CertificateStep.SWITCH),
        (replace(GOOD, former=TWO, former_until=NOW + 1), None),
        (replace(GOOD, former=TWO, former_until=NOW), CertificateStep.FORGET),
        (replace(LATE, former=TWO, former_until=NOW + 1), None),
    ],
)
def test_one_step_is_due_at_a_time(seen: SecretView, step: CertificateStep | None) -> None:
    assert next_step(seen, NAMES, LIVES, NOW) is step


def test_a_certificate_that_ends_with_its_authority_is_not_asked_for_again_and_again() -> None:
    last = Authority("one", NOW + 100)
    seen = SecretView(last, following=TWO, serving=Serving("one", NAMES, last.not_after))
    assert next_step(seen, NAMES, LIVES, NOW) is None


def test_an_authority_must_outlive_what_it_signs() -> None:
    assert LIVES.are_sound
    assert not Lives(authority_s=10, serving_s=4).are_sound


@dataclass
class World:
    """A Secret, what the configurations name, what API servers still hold, and what each replica
    serves."""

    now: float = NOW
    secret: SecretView = field(default_factory=SecretView)
    named: frozenset[str] = frozenset()
    # since when, the newest last
    believed: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    served: dict[int, Serving] = field(default_factory=dict)
    since: dict[int, tuple[str, float]] = field(default_factory=dict)
    made: int = 0

    def look(self, replica: int) -> None:
        """One replica takes every step that is due, serves what it finds and registers what
        verifies it."""
        for _step in range(10):
            seen = replace(
                self.secret,
                following_trusted_since=self._trusted_since(replica),
                held=replica in self.served,
            )
            step = next_step(seen, NAMES, LIVES, self.now)
            if step is None:
                break
            self._take(step)
        else:
            raise AssertionError("the plan does not come to an end")
        assert self.secret.serving
        self.served[replica] = self.secret.serving
        if self.named != trusted(self.secret):
            self.named = trusted(self.secret)
            self.believed.append((self.now, self.named))

    def _trusted_since(self, replica: int) -> float | None:
        following = self.secret.following
        if following is None or following.id not in self.named:
            self.since.pop(replica, None)
            return None
        if self.since.get(replica, ("", 0))[0] != following.id:
            self.since[replica] = (following.id, self.now)
        return self.since[replica][1]

    def _new(self) -> Authority:
        self.made += 1
        return Authority(f"authority {self.made}", self.now + LIVES.authority_s)

    def _take(self, step: CertificateStep) -> None:
        seen, authority = self.secret, self.secret.authority
        match step:
            case CertificateStep.START:
                self.secret = SecretView(self._new())
            case CertificateStep.PREPARE:
                self.secret = replace(seen, following=self._new())
            case CertificateStep.SWITCH:
                assert authority
                until = seen.serving.not_after if seen.serving else 0.0
                self.secret = SecretView(seen.following, None, authority, until, seen.serving)
            case CertificateStep.FORGET:
                self.secret = replace(seen, former=None)
            case CertificateStep.ISSUE:
                assert authority
                until = min(self.now + LIVES.serving_s, authority.not_after)
                self.secret = replace(seen, serving=Serving(authority.id, NAMES, until))
            case CertificateStep.BRING_BACK:
                raise AssertionError("nobody loses the Secret here")

    def check(self, slowest_s: float) -> None:
        """Every certificate that is served is verified by everything that an API server may still
        believe."""
        for serving in self.served.values():
            assert self.now < serving.not_after, "an ended certificate is served"
            for index, (_since, named) in enumerate(self.believed):
                is_newest = index + 1 == len(self.believed)
                if is_newest or self.believed[index + 1][0] + slowest_s >= self.now:
                    assert serving.signed_by in named, "an API server does not know who signed this"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.sets(st.integers(0, 2))), min_size=50, max_size=300)
)
def test_whoever_looks_when_api_servers_can_verify_what_is_served(
    rounds: list[tuple[float, set[int]]],
) -> None:
    """None is silent for longer than the time in which a renewal is due."""
    world, last = World(), dict.fromkeys(range(3), NOW)
    for replica in last:
        world.look(replica)
    for wait_s, replicas in rounds * 3:
        world.now += wait_s
        overdue = {replica for replica, at in last.items() if world.now - at > 150}
        for replica in sorted(replicas | overdue):
            last[replica] = world.now
            world.look(replica)
        world.check(slowest_s=59.0)


# Which certificate's end stands on the webhook's configurations, whoever of its replicas comes
# when.


class Replica:
    """serves: changed by the test, as a renewal would."""

    def __init__(self, serves: Validity) -> None:
        self.serves = serves
        self._last: tuple[Validity, float] | None = None
        self.writes = 0

    def look(self, there: Validity | None, now: float) -> Validity | None:
        """What stands there afterwards."""
        if must_write(there, self.serves, self._last, now):
            self.writes += 1
            there = self.serves
        if there and there.ends_at == self.serves.ends_at:
            self._last = (self.serves, now)
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


@given(st.integers(0, 4 * 10**9), st.integers(1, 10**8))
def test_what_is_written_is_read_again(begins_at: int, life_s: int) -> None:
    validity = Validity(float(begins_at), float(begins_at + life_s))
    written = {"metadata": {"annotations": {ANNOTATION: annotation(validity)}}}
    assert read_annotation(written) == validity


@pytest.mark.parametrize(
    "configuration",
    [
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


@pytest.mark.parametrize("ahead_s", [-2 * DAY_S, -HOUR_S - 1, 31 * DAY_S])
def test_who_may_not_accept_a_certificate_by_the_clock_is_said_with_both(ahead_s: float) -> None:
    made = Validity(NOW - HOUR_S, NOW + 30 * DAY_S)
    assert why_invalid(made, NOW, NOW) == ""
    why = why_invalid(made, NOW + ahead_s, NOW)
    assert stamp(NOW) in why
    assert stamp(NOW + ahead_s) in why
    assert why_invalid(made, NOW + ahead_s, NOW + ahead_s), "both are wrong, and agree"
