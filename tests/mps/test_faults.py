"""Faults: who was hit, who is ended so that the server heals, and who was there each
time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import State
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_report import SuspectReport
from mpsd.model.node_view import (
    RECORD_VERSION,
    ContainerEnd,
    DomainRecord,
    Fault,
    FaultCause,
    FaultHit,
    NodeView,
)
from mpsd.model.times import utc
from mpsd.mps.rules import faults
from mpsd.mps.rules.faults import (
    BEFORE_S,
    LATE_S,
    REASON_S,
    TOGETHER_S,
    ClientDeath,
    FaultSigns,
    presence,
    suspects,
    to_end,
)
from tests.model.worlds import NOW, NOW_S, POLICY, identity
from tests.status.pod_worlds import node

GRACES = POLICY.graces

RECORD = DomainRecord(
    RECORD_VERSION, "gpu0", ("GPU-1",), State.READY, NOW, "", None, (), 0, 0, 0, {}
)


def hit(pid: int, pod: str | None = None) -> FaultHit:
    return FaultHit(identity(pid), "train", pod)


def fault(*pods: str, at: float = NOW) -> Fault:
    every = tuple(hit(number + 10, pod) for number, pod in enumerate(pods))
    return Fault(at, every, at_s=at - NOW + NOW_S)


def series(*faults_pods: Sequence[str]) -> tuple[Fault, ...]:
    """One fault a minute, of those pods each."""
    return tuple(fault(*pods, at=NOW + 60 * number) for number, pods in enumerate(faults_pods))


HITS = st.builds(
    FaultHit,
    st.integers(1, 6).map(identity),
    st.just("train"),
    st.sampled_from([None, "a", "b", "c"]),
)
FAULTS = st.lists(
    st.builds(
        Fault,
        at=st.just(NOW),
        at_s=st.floats(NOW_S, NOW_S + 100),
        hit=st.lists(HITS, max_size=4).map(tuple),
        healed_at=st.sampled_from([None, NOW + 50]),
    ),
    max_size=6,
)


# -- what confirms a fault, and who caused it

SEEN_S = 1000.0  # when a fault was noticed, in seconds of CLOCK_BOOTTIME
KILL, TERM, ABRT, EXIT = 9, 15, 6, 0


def death(pid: int, before_s: float, signum: int = KILL, owner: str = "") -> ClientDeath:
    """Of a client that ended so long before the fault was noticed; after it where that is
    negative."""
    return ClientDeath(hit(pid), owner or f"pod {pid}", SEEN_S - before_s, signum, "ended")


def signs(clear_s: float = 0.0, listed: Sequence[int] = ()) -> FaultSigns:
    return FaultSigns(SEEN_S, clear_s, {pid: hit(pid) for pid in listed})


def caused_by(deaths: Sequence[ClientDeath], seen: FaultSigns) -> list[int]:
    return [one.client.process.pid for one in faults.causes(faults.near(deaths, seen, ()), seen)]


DEATHS = st.lists(
    st.builds(
        death,
        st.integers(1, 9),
        st.floats(-0.2, 0.7),
        st.sampled_from([KILL, TERM, ABRT, EXIT]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=6,
    unique_by=lambda one: one.client.process.pid,
)


@pytest.mark.parametrize(
    ("owners", "before_s", "survivors", "confirmed"),
    [
        ("ab", (0.0, 0.1), 0, True),
        ("aa", (0.0, 0.1), 0, False),
        ("ab", (0.0, 0.1), 1, False),
        ("ab", (0.0, TOGETHER_S + 0.01), 0, False),
        ("a", (0.0,), 0, False),
        ("", (), 0, False),
    ],
    ids=["of two", "of one tenant", "one lives", "apart", "alone", "nobody"],
)
def test_only_clients_of_several_that_all_vanish_together_confirm_a_fault(
    owners: str, before_s: Sequence[float], survivors: int, confirmed: bool
) -> None:
    deaths = [death(pid, before_s[pid], EXIT, owner) for pid, owner in enumerate(owners)]
    assert faults.vanished_together(deaths, SEEN_S, [hit(90)] * survivors) == confirmed


@pytest.mark.parametrize(
    ("changed", "confirmed"),
    [({}, True), ({"is_well": True}, False), ({"signum": KILL}, True)],
    ids=["exited", "ended well", "was killed, as its cause"],
)
def test_who_ended_well_confirms_no_fault(changed: dict[str, Any], confirmed: bool) -> None:
    """Beside it a tenant may forge the line and end its own."""
    neighbour = replace(death(1, 0.0, EXIT, "a"), **changed)
    own = death(2, 0.0, EXIT, "b")
    assert faults.vanished_together([neighbour, own], SEEN_S, ()) == confirmed


@pytest.mark.parametrize(
    ("before_s", "signum", "is_cause"),
    [
        (0.1, KILL, True),
        (0.1, TERM, True),
        (BEFORE_S, KILL, True),
        (BEFORE_S + 0.01, KILL, False),
        (-LATE_S + 0.01, KILL, True),
        (-LATE_S - 0.01, KILL, False),
        (0.1, EXIT, False),  # it may be hit as well
        (0.1, ABRT, False),
    ],
)
def test_who_was_killed_just_before_a_fault_is_its_cause(
    before_s: float, signum: int, is_cause: bool
) -> None:
    assert caused_by([death(1, before_s, signum)], signs()) == [1] * is_cause


def test_an_end_after_which_there_was_no_fault_yet_was_not_by_it() -> None:
    early = death(1, 0.3, EXIT)
    assert caused_by([early], signs(clear_s=early.at_s)) == [1]
    assert caused_by([early], signs(clear_s=early.at_s - 0.001)) == []


def test_who_lived_while_the_server_was_in_fault_did_not_cause_it() -> None:
    assert caused_by([death(1, -0.05), death(2, -0.05)], signs(listed=[1])) == [2]


@pytest.mark.parametrize(("after_s", "is_hit"), [(1.5, True), (1.51, False)])
def test_a_fault_hit_whoever_ended_until_the_server_was_well(after_s: float, is_hit: bool) -> None:
    over = replace(signs(), over_s=SEEN_S + 1.5)
    near = faults.near([death(1, -after_s, EXIT)], over, ())
    assert bool(near) == is_hit
    assert bool(faults.hit_by(over, near, one_gpu=True)) == is_hit


@pytest.mark.parametrize("signum", [EXIT, KILL])
def test_who_ended_long_after_a_fault_is_not_its_cause(signum: int) -> None:
    over = replace(signs(), over_s=SEEN_S + 1.5)
    assert caused_by([death(1, -1.0, signum)], over) == []


def test_who_is_killed_after_others_have_exited_by_the_fault_did_not_cause_it() -> None:
    """As the workers of a launcher that one of them has failed, or what a container's first process
    leaves."""
    exited = death(1, -0.05, EXIT)
    assert caused_by([exited, death(2, -0.06)], signs()) == []
    assert caused_by([exited, death(2, -0.03)], signs()) == [2]
    assert caused_by([exited, death(2, 0.0)], signs()) == [2]


def test_who_is_killed_until_another_exits_may_be_the_cause_however_late_that_is() -> None:
    late = replace(signs(), over_s=SEEN_S + 1.0)
    assert caused_by([death(1, -0.5), death(2, -0.9, EXIT)], late) == [1]


def test_an_end_that_an_earlier_fault_explains_is_near_no_other() -> None:
    known = Fault(NOW, (hit(1),), causes=(FaultCause(identity(2), "train", None, "ended"),))
    assert faults.near([death(1, 0.1), death(2, 0.1), death(3, 0.1)], signs(), [known]) == (
        death(3, 0.1),
    )


@given(DEATHS, st.lists(st.integers(10, 12), unique=True))
def test_a_settled_fault_hit_or_was_caused_by_everybody_who_ended_near_it(
    deaths: list[ClientDeath], listed: list[int]
) -> None:
    seen = signs(listed=listed)
    near = faults.near(deaths, seen, ())
    before = Fault(NOW, (FaultHit(identity(10), "train", None, NOW + 5),), causes=None)
    now = faults.settled(before, seen, near, one_gpu=True)
    hit_pids, causes = (
        {one.process.pid for one in now.hit},
        {one.process.pid for one in now.causes or ()},
    )
    assert hit_pids | causes == {one.client.process.pid for one in near} | set(listed)
    assert hit_pids.isdisjoint(causes)
    assert [one.ended_at for one in now.hit if one.process.pid == 10] == [NOW + 5] * (10 in listed)


def test_of_several_gpus_nobody_who_has_ended_was_hit() -> None:
    seen = signs(listed=[1])
    found = faults.hit_by(seen, [death(2, 0.1, EXIT)], one_gpu=False)
    assert [one.process.pid for one in found] == [1]
    assert len(faults.hit_by(seen, [death(2, 0.1, EXIT)], one_gpu=True)) == 2


def test_whom_nvml_shows_later_was_hit_too_and_nobody_twice() -> None:
    earlier, last = fault("a"), fault("a", "b")
    *kept, now = faults.also_hit((earlier, last), {10: hit(10), 7: hit(7)})
    assert kept == [earlier]
    assert [one.process.pid for one in now.hit] == [10, 11, 7]


def test_the_status_names_a_cause_by_its_pod_or_its_program() -> None:
    causes = (
        FaultCause(identity(1), "python", "a", "killed by SIGKILL"),
        FaultCause(identity(2), "python", None, "exit code 1"),
        FaultCause(identity(3), "python x.py", None, "exit code 1", "0123"),
    )
    found = faults.causes_report(
        replace(fault("b"), causes=causes), {"a": PodName("default", "train", "a")}, {}
    )
    assert [str(one) for one in found] == [
        "default/train: killed by SIGKILL",
        "pid 2 (python): exit code 1",
        "0123: pid 3 (python x.py): exit code 1",
    ]
    assert [one.uid for one in found] == ["a", "", ""]


NEAR = (NOW - REASON_S, NOW, NOW + REASON_S)


@pytest.mark.parametrize(
    ("how", "ends", "reason"),
    [
        *(("killed by SIGKILL", [("OOMKilled", at)], "OOMKilled") for at in NEAR),
        ("killed by SIGKILL", [("OOMKilled", NOW - REASON_S - 1)], None),
        ("killed by SIGKILL", [("OOMKilled", NOW + REASON_S + 1)], None),
        ("killed by SIGKILL", [("Error", NOW)], None),
        ("killed by SIGKILL", [("OOMKilled", NOW), ("Error", NOW)], "OOMKilled"),
        ("killed by SIGKILL", [("OOMKilled", NOW), ("Evicted", NOW)], None),
        ("ended", [("OOMKilled", NOW - 60), ("Error", NOW)], "Error"),
        ("ended", [("", NOW)], None),
        ("exit code 1", [("Error", NOW)], None),
        ("ended by mpsd (pod deleted)", [("OOMKilled", NOW)], None),
    ],
)
def test_only_an_end_of_the_pod_near_the_fault_is_the_causes_reason(
    how: str, ends: list[tuple[str, float]], reason: str | None
) -> None:
    view, process = faulty(FaultCause(identity(1), "python", "a", how))
    own = tuple(ContainerEnd(*end) for end in ends)
    others = {"b": (ContainerEnd("DeadlineExceeded", NOW),)}
    told = faults.reasons(view, {"a": own, **others}, {})
    assert told == ({} if reason is None else {process: reason})


def faulty(cause: FaultCause) -> tuple[NodeView, ProcessIdentity]:
    return node(faults=(replace(fault("b"), causes=(cause,)),), faults_total=1), cause.process


def test_a_causes_reason_is_kept_until_its_fault_is_forgotten() -> None:
    view, process = faulty(FaultCause(identity(1), "python", "a", "ended"))
    known = {process: "OOMKilled", identity(2): "Evicted"}
    assert faults.reasons(view, {}, known) == {process: "OOMKilled"}
    domain = view.domains[0].record
    (cause,) = faults.faults_report(domain, {}, known).causes
    assert cause.how == "ended (OOMKilled)"


def test_a_cause_in_a_static_pod_has_the_reason_of_its_mirror_pod() -> None:
    view, process = faulty(FaultCause(identity(1), "python", "0" * 32, "ended"))
    view = replace(view, past_pods={"0" * 32: PodName("kube-system", "a", "a")})
    assert faults.reasons(view, {"a": (ContainerEnd("Error", NOW),)}, {}) == {process: "Error"}


def test_the_status_names_who_was_hit_by_its_pod_or_its_grant() -> None:
    programs = [
        replace(hit(pid), grant=grant)
        for pid, grant in ((1, "0123"), (2, None), (3, "0123"), (4, "4567"))
    ]
    every = Fault(NOW, (*programs, hit(5, "a"), hit(6, "b")), unidentified=(7,))
    record = replace(RECORD, faults=(every,), faults_total=1)
    found = faults.faults_report(record, {"a": PodName("default", "train", "a")}, {}).hit
    assert [str(one) for one in found] == [
        *("b (1)", "default/train (1)"),
        *("0123 (train) (2)", "4567 (train) (1)", "processes of no known pod (2)"),
    ]


@pytest.mark.parametrize(
    ("command", "recorded"),
    [
        ("train --token=x", "train"),
        ("python jobs/train.py --token=x", "python jobs/train.py"),
        ("python -c x.py", "python"),
        ("sh TOKEN=x.sh", "sh"),
        ("TOKEN=x sh", "[redacted]"),
        ("", ""),
    ],
)
def test_a_record_keeps_a_program_with_its_script_and_no_argument(
    command: str, recorded: str
) -> None:
    assert faults.recorded_command(command) == recorded


# -- healing


def test_nobody_is_ended_within_the_grace_and_those_who_linger_are_after_it() -> None:
    one = Fault(NOW, (hit(1), hit(2)), at_s=NOW_S)
    assert to_end([one], {1, 2}, NOW_S + GRACES.fault_grace_s - 0.01, GRACES) == ()
    assert to_end([one], {1, 2}, NOW_S + GRACES.fault_grace_s, GRACES) == one.hit


@given(FAULTS, st.frozensets(st.integers(1, 6)), st.floats(NOW_S, NOW_S + 200))
def test_only_those_are_ended_whom_an_open_fault_hit_and_the_server_still_names(
    known: list[Fault], listed: frozenset[int], now: float
) -> None:
    for chosen in to_end(known, listed, now, GRACES):
        assert chosen.process.pid in listed
        assert any(chosen in one.hit and one.healed_at is None and one.at_s < now for one in known)
    assert to_end(faults.healed(known, now), listed, now, GRACES) == ()


@given(FAULTS, st.floats(NOW_S, NOW_S + 200))
def test_nobody_is_ended_twice(known: list[Fault], now: float) -> None:
    everyone = set(range(10))
    after: Sequence[Fault] = known
    for chosen in to_end(known, everyone, now, GRACES):
        after = faults.ended(after, chosen.process, now)
    assert to_end(after, everyone, now, GRACES) == ()


def test_what_the_server_says_of_somebody_gone_is_nobodys_end() -> None:
    assert to_end([Fault(NOW, (), unidentified=(1,), at_s=NOW_S)], {1}, NOW_S + 60, GRACES) == ()


def test_a_fault_that_does_not_heal_is_said_after_the_grace_and_the_limit_of_a_wedged_daemon() -> (
    None
):
    limit_s = GRACES.fault_grace_s + GRACES.wedged_limit_s
    assert faults.why_stuck([fault()], NOW_S + limit_s - 0.01, GRACES) == ""
    assert faults.why_stuck([fault()], NOW_S + limit_s, GRACES)
    assert faults.why_stuck(faults.healed([fault()], NOW), NOW_S + limit_s, GRACES) == ""
    assert faults.why_stuck([], NOW_S, GRACES) == ""


@given(FAULTS, st.floats(NOW_S, NOW_S + 200))
def test_the_next_look_is_not_later_than_the_next_grace_is_over(
    known: list[Fault], now: float
) -> None:
    due_s = faults.next_due_s(known, now, GRACES)
    everyone = set(range(10))
    if due_s is None:
        later = to_end(known, everyone, now + 1000, GRACES)
        assert later == to_end(known, everyone, now, GRACES)
    else:
        assert due_s > 0
        before = to_end(known, everyone, now + due_s * 0.99, GRACES)
        assert before == to_end(known, everyone, now, GRACES)


def test_only_the_last_faults_are_remembered() -> None:
    known: tuple[Fault, ...] = ()
    for number in range(20):
        known = faults.noted(known, fault(at=NOW + number))
    assert [one.at - NOW for one in known] == list(range(4, 20))


# -- who was there


def test_whoever_each_of_the_last_faults_hit_is_suspect_with_their_number() -> None:
    known = series(["b"], ["a"], ["a", "b"], ["a", "b", "c"])
    name = PodName("default", "train", "a")
    assert suspects(known, {"a": name}) == (
        SuspectReport("default/train", "a", 3, utc(NOW + 60)),
        SuspectReport("b", "b", 2, utc(NOW + 120)),
    )


@given(FAULTS)
def test_a_suspect_was_there_each_time_and_nobody_who_was_is_left_out(known: list[Fault]) -> None:
    found = suspects(known, {})
    for one in found:
        assert one.faults >= 2
        assert all(one.uid in each.pods for each in known[-one.faults :])
        assert one.since == utc(known[-one.faults].at)
        assert presence(known, one.uid) == one.faults
    always = (
        frozenset.intersection(*(each.pods for each in known[-2:]))
        if len(known) > 1
        else frozenset()
    )
    assert {one.uid for one in found} == always
