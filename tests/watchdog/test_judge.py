"""Who is ended, who is only told of, and who is left alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.dra.rules.claims import ClaimGrant
from mpsd.model.events import Reason
from mpsd.model.grants import GpuShare, Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import Client
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import KILL_WHEN_SHORT, ViolationKind
from mpsd.watchdog.rules.findings import crowding_out
from mpsd.watchdog.rules.judge import AGAIN_S, SECOND_SCAN_S
from tests.model.gpu_worlds import (
    EVERYTHING_KILLS,
    Watch,
    client,
    ended,
    kinds,
    pod_grant,
    policy,
    program_grant,
)
from tests.model.worlds import CAPABILITY, GPUS, UUIDS

A, B = pod_grant("a"), pod_grant("b")
STRANGER = PodName("default", "stranger", "stranger-uid")


# -- pods that share a claim

FIRST, SECOND = PodName("default", "first", "first-uid"), PodName("default", "second", "second-uid")
SHARED = ClaimGrant(
    "claim-uid", "gpu0", A.parts, 100, 2, FIRST, "", sharing=(FIRST, SECOND), claim="default/share"
)


@pytest.mark.parametrize("pod", [FIRST, SECOND])
def test_of_pods_that_share_a_claim_the_one_whose_process_it_is_is_held_to_it(pod: PodName) -> None:
    other = FIRST if pod is SECOND else SECOND
    within, over = client(1, SHARED, 300, pod=other.uid), client(2, SHARED, 1500, pod=pod.uid)
    lifted = client(
        3, SHARED, 1, pod=pod.uid, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"}
    )
    found = Watch(EVERYTHING_KILLS).look((SHARED,), within, over, lifted).violations
    assert {one.kind for one in found} >= {
        ViolationKind.MEMORY_OVER_GRANT,
        ViolationKind.LIMIT_LIFTED,
    }
    (over_grant,) = (one.message for one in found if one.kind is ViolationKind.MEMORY_OVER_GRANT)
    assert over_grant.endswith("1024 MiB are granted for all pods of claim default/share together")
    assert {one.pod for one in found} == {pod}
    assert all(one.message.count("claim default/share") == 1 for one in found), (
        "each names the claim, once"
    )


def test_a_violation_of_a_claim_of_one_pod_names_it_too_and_one_of_no_claim_names_none() -> None:
    own = replace(SHARED, sharing=(FIRST,))
    for grant, names_it in ((own, True), (A, False)):
        (one,) = Watch(EVERYTHING_KILLS).look((grant,), client(1, grant, 1500)).violations
        assert ("claim default/share" in one.message) is names_it


# -- memory


def test_processes_that_are_each_within_and_over_together_are_contained() -> None:
    watch = Watch()
    small = [client(pid, A, 200) for pid in range(1, 6)]
    assert ended(watch.look((A,), *small)) == set()
    grown = [replace(one, used_mib=300) for one in small]
    verdict = watch.look((A,), *grown)
    assert ended(verdict) == {4, 5}, "ending two of five brings 1500 MiB within 1024 and 32"
    message = (
        "allocated 100 MiB since the use last fitted the grant: 1500 MiB of gpu0 are in use, 1024"
        " MiB are granted"
    )
    assert {one.message for one in verdict.violations} == {message}


def test_who_grew_most_since_the_grant_was_within_is_ended_and_not_who_is_largest() -> None:
    watch = Watch()
    watch.look((A,), client(1, A, 700), client(2, A, 100))
    watch.look((A,), client(1, A, 720), client(2, A, 250))
    assert ended(watch.look((A,), client(1, A, 725), client(2, A, 400))) == {2}


def test_of_a_grant_that_was_never_seen_within_nobody_knows_who_took_what_when() -> None:
    (found,) = Watch().look((A,), client(1, A, 1500)).violations
    assert found.message == "holds 1500 MiB: 1500 MiB of gpu0 are in use, 1024 MiB are granted"


def test_a_gpu_without_an_answer_of_nvml_makes_nobody_a_culprit() -> None:
    watch = Watch()
    lifted = client(2, A, 100, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"})
    assert len(watch.look((A,), client(1, A, 700), lifted).violations) == 1
    assert watch.look((A,), unseen=frozenset({UUIDS[0]})).violations == ()
    (found,) = watch.look((A,), client(1, A, 725), replace(lifted, used_mib=400)).violations
    assert (found.kind, found.client.pid) == (ViolationKind.MEMORY_OVER_GRANT, 2)


def test_who_is_over_on_a_gpu_is_ended_while_another_of_its_grant_cannot_be_seen() -> None:
    two = pod_grant("two", 1024, 0, 1)
    watch = Watch()
    watch.look((two,), client(1, two, 700), client(1, two, 100, gpu=1))
    unseen = frozenset({UUIDS[1]})
    assert ended(watch.look((two,), client(1, two, 1100), unseen=unseen)) == {1}


def test_what_is_within_the_tolerance_is_not_over() -> None:
    assert ended(Watch().look((A,), client(1, A, 1024 + 32))) == set()
    assert ended(Watch().look((A,), client(1, A, 1024 + 33))) == {1}
    assert ended(Watch().look((A,), client(1, A, 1100), client(2, A, 1024 + 32))) == {1}


def test_each_gpu_of_an_uneven_grant_is_held_to_its_own_part_and_not_to_what_mps_was_told() -> None:
    parts = (GpuShare(UUIDS[0], 1024, 0), GpuShare(UUIDS[1], 4096, 0))
    uneven = replace(pod_grant("a", 1024, 0, 1), parts=parts)
    within = (client(1, uneven, 1000), client(2, uneven, 4000, gpu=1))
    assert uneven.memory_mib == 4096, "what MPS is told, which the larger part must be able to have"
    assert Watch().look((uneven,), *within).violations == ()
    (found,) = Watch().look((uneven,), client(1, uneven, 1100), within[1]).violations
    assert (found.client.pid, found.kind) == (1, ViolationKind.MEMORY_OVER_GRANT)
    assert found.message == "holds 1100 MiB: 1100 MiB of gpu0 are in use, 1024 MiB are granted"
    assert ended(Watch().look((uneven,), within[0], client(2, uneven, 4200, gpu=1))) == {2}


def test_memory_that_nvml_does_not_tell_is_said_and_not_punished() -> None:
    watch = Watch()
    verdict = watch.look((A,), client(1, A, None), client(2, A, 1000))
    assert ended(verdict) == set()
    assert [notice.reason for notice in verdict.notices] == [None]
    assert "does not report how much of gpu0 pid 1 (python) uses" in verdict.notices[0].message
    assert watch.look((A,), client(1, A, None), client(2, A, 1000)).notices == (), "it is said once"
    assert ended(watch.look((A,), client(1, A, None), client(2, A, 1100))) == {2}, (
        "what is known is over by itself"
    )


def test_one_that_is_being_ended_is_not_counted_until_its_deadline_and_then_ended_again() -> None:
    watch = Watch()
    over = client(1, A, 2000), client(2, A, 900)
    assert ended(watch.look((A,), *over)) == {1}
    assert ended(watch.look((A,), *over)) == set()
    verdict = watch.look((A,), *over, after_s=AGAIN_S)
    assert [(one.client.pid, one.again) for one in verdict.violations] == [(1, True)]


def test_one_that_is_being_ended_is_not_ended_again_because_nvml_did_not_answer_meanwhile() -> None:
    watch = Watch()
    assert ended(watch.look((A,), client(1, A, 2000))) == {1}
    watch.look((A,), unseen=frozenset({UUIDS[0]}))
    assert ended(watch.look((A,), client(1, A, 2000))) == set()
    assert ended(watch.look((A,), client(1, A, 2000), after_s=AGAIN_S)) == {1}


def test_a_grant_that_stays_over_where_nobody_is_ended_is_told_of_once() -> None:
    watch = Watch(policy(memory_over_grant=Response.WARN))
    told = [watch.look((A,), client(1, A, mib)).violations for mib in (1100, 1200, 900, 1100)]
    assert [len(one) for one in told] == [1, 0, 0, 1]
    assert not any(one.response.ends for found in told for one in found)


@given(
    a=st.lists(st.integers(0, 1500) | st.none(), max_size=6),
    b=st.lists(st.integers(0, 1500) | st.none(), max_size=6),
    before=st.lists(st.integers(0, 1500), min_size=12, max_size=12),
    shuffled=st.randoms(use_true_random=False),
)
def test_whatever_they_use_only_those_end_whose_own_grant_is_over_and_enough_of_them(
    a: Sequence[int | None], b: Sequence[int | None], before: Sequence[int], shuffled: object
) -> None:
    of = {A.id: A, B.id: B}
    now = [client(1 + n, A, mib) for n, mib in enumerate(a)] + [
        client(101 + n, B, mib) for n, mib in enumerate(b)
    ]
    then = [replace(one, used_mib=mib) for one, mib in zip(now, before, strict=False)]
    one_way, other_way = (
        Watch(policy(too_many_clients=Response.OBSERVE)),
        Watch(policy(too_many_clients=Response.OBSERVE)),
    )
    gone = ended(one_way.look((A, B), *then))
    other_way.look((B, A), *reversed(then))
    now = [one for one in now if one.pid not in gone]
    found = ended(one_way.look((A, B), *now))
    mixed = list(now)
    shuffled.shuffle(mixed)  # type: ignore[attr-defined]
    assert ended(other_way.look((B, A), *mixed)) == found, "the order of processes decides nothing"
    for grant in of.values():
        own = [one for one in now if one.grant == grant.id and one.used_mib is not None]
        ending = [one for one in own if one.pid in found]
        used, kept = _sum(own), _sum([one for one in own if one.pid not in found])
        assert kept <= 1024 + 32, "what is left is within"
        assert used > 1024 + 32 or not ending, "nobody of a grant that is within is ended"
        least = min((one.used_mib or 0 for one in ending), default=0)
        assert not ending or kept + least > 1024 + 32 or len(ending) > 1, (
            "the last one to end was needed"
        )


@given(
    looks=st.lists(st.lists(st.integers(0, 1500), min_size=4, max_size=4), max_size=8),
    stuck=st.sets(st.integers(1, 4)),
    apart_s=st.sampled_from([0.03, 0.2, 1.5, 3.0]),
)
def test_look_after_look_nobody_is_ended_while_the_rest_is_within(
    looks: Sequence[Sequence[int]], stuck: set[int], apart_s: float
) -> None:
    """stuck: those whom SIGKILL does not end."""
    watch = Watch()
    gone: set[int] = set()
    ended_at: dict[int, float] = {}
    for used in looks:
        here = [client(pid, A, mib) for pid, mib in enumerate(used, 1) if pid not in gone]
        verdict = watch.look((A,), *here, after_s=apart_s)
        counted = [one for one in here if watch.now - ended_at.get(one.pid, -100.0) >= AGAIN_S]
        found = ended(verdict)
        assert found <= {one.pid for one in counted}, (
            "who is being ended is not signalled again before its time"
        )
        assert _sum(counted) > 1024 + 32 or not found
        assert _sum([one for one in counted if one.pid not in found]) <= 1024 + 32
        assert {one.client.pid for one in verdict.violations if one.again} <= ended_at.keys()
        ended_at |= dict.fromkeys(found, watch.now)
        gone |= found - stuck


def _sum(clients: Sequence[Client]) -> int:
    return sum(one.used_mib or 0 for one in clients)


# -- where they are not allowed


def test_a_process_beside_mps_is_ended_at_the_second_look() -> None:
    watch = Watch(EVERYTHING_KILLS)
    escaped = client(1, A, on_mps=False)
    first = watch.look((A,), escaped)
    assert (first.violations, first.scan_again) == ((), True)
    assert kinds(watch.look((A,), escaped, after_s=SECOND_SCAN_S)) == {
        1: {ViolationKind.OUTSIDE_MPS}
    }


def test_a_client_that_shows_beside_mps_for_a_moment_is_left_alone() -> None:
    watch = Watch(EVERYTHING_KILLS)
    watch.look((A,), client(1, A, on_mps=False))
    assert watch.look((A,), client(1, A), after_s=SECOND_SCAN_S).violations == ()
    assert watch.look((A,), client(1, A, on_mps=False)).violations == (), "and it begins anew"


def test_a_process_on_a_gpu_that_its_grant_does_not_name_has_no_grant_there() -> None:
    verdict = Watch(EVERYTHING_KILLS).looks((A,), client(1, A, gpu=1))
    assert kinds(verdict) == {1: {ViolationKind.WITHOUT_GRANT}}
    assert str(verdict.violations[0]) == "pid 1 (python) uses gpu1, but was granted gpu0"
    assert verdict.violations[0].pod == A.holder


def test_a_process_of_a_pod_without_a_grant_is_ended_of_an_unknown_pod_never() -> None:
    known, unknown = client(1, None, pod=STRANGER.uid), client(2, None, pod="nobody-knows")
    verdict = Watch(EVERYTHING_KILLS).looks(
        (A,), known, unknown, ungranted={STRANGER.uid: STRANGER}
    )
    assert kinds(verdict) == {1: {ViolationKind.WITHOUT_GRANT}}
    assert verdict.violations[0].pod == STRANGER
    assert verdict.violations[0].response.ends


def test_pods_of_exempt_namespaces_are_only_observed() -> None:
    exempt = PodName("kube-system", "dcgm", "dcgm-uid")
    (found,) = (
        Watch(EVERYTHING_KILLS)
        .looks((), client(1, None, pod=exempt.uid), ungranted={exempt.uid: exempt})
        .violations
    )
    assert (found.response, found.response.ends, found.response.reports) == (
        Response.OBSERVE,
        False,
        False,
    )


def test_what_was_only_counted_is_told_of_once_where_the_policy_now_says_so() -> None:
    watch = Watch(policy(limit_lifted=Response.OBSERVE))
    lifted = client(1, A, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"})
    assert [one.response.reports for one in watch.look((A,), lifted).violations] == [False]
    assert watch.look((A,), lifted).violations == ()
    watch.policy = policy(limit_lifted=Response.WARN)
    assert [one.response.reports for one in watch.look((A,), lifted).violations] == [True]
    for action in (Response.WARN, Response.OBSERVE, Response.WARN):
        watch.policy = policy(limit_lifted=action)
        assert watch.look((A,), lifted).violations == (), "it was told"


def test_what_is_in_no_pod_is_told_of_once_and_not_ended_by_default() -> None:
    watch = Watch()
    (found,) = watch.looks((A,), client(1, None, 5000, on_mps=False)).violations
    assert (found.kind, found.response, found.pod) == (ViolationKind.IN_NO_POD, Response.WARN, None)
    assert (
        str(found)
        == "pid 1 (python) is in no pod and uses gpu0, which mpsd shares; it runs beside MPS,"
        " without limits"
    )
    assert watch.looks((A,), client(1, None, 6000, on_mps=False)).violations == ()


def test_where_there_are_no_pods_a_process_without_a_grant_is_told_of_as_such() -> None:
    (found,) = Watch().looks((), client(1, None), pods_known=False).violations
    assert found.message == "has no grant and uses gpu0, which mpsd shares; it is an MPS client"


def test_nobody_without_a_pod_is_evicted() -> None:
    (found,) = Watch(policy(in_no_pod=Response.EVICT)).looks((), client(1, None)).violations
    assert found.response is Response.KILL


def test_mpsds_own_processes_are_not_looked_at() -> None:
    own = client(1, None, 9000, on_mps=False)
    assert Watch(EVERYTHING_KILLS).looks((A,), own, own=frozenset({own.process})).violations == ()


@given(
    st.lists(
        st.builds(
            client,
            st.integers(1, 20),
            st.sampled_from([A, B, None, program_grant("c")]),
            st.integers(0, 5000) | st.none(),
            st.sampled_from([0, 1]),
            on_mps=st.booleans(),
            environment=st.none() | st.just({}),
        ),
        unique_by=lambda one: (one.pid, one.gpu),
    )
)
def test_by_the_shipped_actions_nobody_is_ended_who_has_no_pod_and_no_grant(
    clients: list[Client],
) -> None:
    shipped = policy(outside_mps=Response.KILL, without_grant=Response.KILL)
    watch = Watch(shipped)
    for verdict in (watch.look((A, B), *clients), watch.look((A, B), *clients)):
        assert all(
            one.client.grant in {A.id, B.id} for one in verdict.violations if one.response.ends
        )


# -- how many they are, and what they were started with


def test_of_too_many_processes_the_newest_are_too_many() -> None:
    two = pod_grant("a", 8192, clients=2)
    verdict = Watch(EVERYTHING_KILLS).look((two,), *(client(pid, two) for pid in (30, 10, 20, 40)))
    assert kinds(verdict) == {
        30: {ViolationKind.TOO_MANY_CLIENTS},
        40: {ViolationKind.TOO_MANY_CLIENTS},
    }


ENVIRONMENTS = st.sampled_from([None, {}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"}])
USED = st.none() | st.sampled_from([100, 100, 600, 1500])
HERE = st.tuples(st.booleans(), USED, st.booleans(), ENVIRONMENTS, st.booleans())


@given(
    scans=st.lists(st.lists(HERE, min_size=4, max_size=4), min_size=2, max_size=8),
    policies=st.lists(st.sampled_from([policy(), EVERYTHING_KILLS]), min_size=8, max_size=8),
    apart_s=st.sampled_from([0.03, 0.2, 1.5, 3.0]),
)
def test_what_was_kept_and_has_not_changed_is_judged_as_if_it_were_looked_at_again(
    scans: Sequence[Sequence[tuple[bool, int | None, bool, dict[str, str] | None, bool]]],
    policies: Sequence[Policy],
    apart_s: float,
) -> None:
    """As the scanner gives them: one and the same client as long as nothing of it changes."""
    once, again = Watch(), Watch()
    known: dict[tuple[object, ...], Client] = {}
    for scan, now_policy in zip(scans, policies, strict=False):
        clients = []
        for pid, (is_here, used_mib, on_mps, environment, is_first) in enumerate(scan, 1):
            grant = A if is_first or pid < 3 else B
            key = pid, grant.id, used_mib, on_mps, str(environment)
            one = client(pid, grant, used_mib, on_mps=on_mps, environment=environment)
            clients += [known.setdefault(key, one)] if is_here else []
        again.memory = replace(again.memory, shares={})
        once.policy = again.policy = now_policy
        assert once.look((A, B), *clients, after_s=apart_s) == again.look(
            (A, B), *clients, after_s=apart_s
        )


SMALL = (replace(GPUS[0], capability=replace(CAPABILITY, clients=6)), GPUS[1])
WHEN_SHORT = policy(too_many_clients=KILL_WHEN_SHORT)


def test_a_grant_may_have_more_processes_while_every_other_can_have_its_own() -> None:
    watch, one, two = (
        Watch(WHEN_SHORT),
        pod_grant("a", 8192, clients=2),
        pod_grant("b", 8192, clients=2),
    )
    crowd = [client(pid, one) for pid in range(1, 7)]
    found = watch.look((one,), *crowd, gpus=SMALL)
    assert {(violation.client.pid, violation.response) for violation in found.violations} == {
        (pid, Response.WARN) for pid in (3, 4, 5, 6)
    }
    found = watch.look((one, two), *crowd, gpus=SMALL)
    assert ended(found) == {5, 6}, "the other's two are free before it starts"
    assert {violation.kind for violation in found.violations} == {ViolationKind.TOO_MANY_CLIENTS}
    assert (
        watch.look((one, two), *crowd[:4], client(7, two), client(8, two), gpus=SMALL).violations
        == ()
    )


def test_the_grant_furthest_over_makes_room() -> None:
    one, two, three = (pod_grant(name, 8192, clients=1) for name in "abc")
    here = *(client(pid, one) for pid in (1, 3, 5, 9)), *(client(pid, two) for pid in (2, 4))
    assert ended(Watch(WHEN_SHORT).look((one, two, three), *here, gpus=SMALL)) == {9}


@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from("abc?")), max_size=12),
    st.integers(3, 12),
)
def test_who_crowds_others_out_is_over_its_own_and_no_more_end_than_are_needed(
    present: list[tuple[int, str]], most: int
) -> None:
    gpu = replace(GPUS[0], capability=replace(CAPABILITY, clients=most))
    grants = {name: pod_grant(name, 8192, clients=1) for name in "abc"}
    here = [
        client(number * 100 + pid, grants.get(name)) for number, (pid, name) in enumerate(present)
    ]
    out = set(crowding_out(gpu, grants.values(), here))
    kept = [one for one in here if one.process not in out]

    def wanted(clients: list[Client]) -> int:
        used = Counter(one.grant for one in clients)
        return used[None] + sum(max(used[grant.id], 1) for grant in grants.values())

    over = sum(
        max(0, count - 1) for grant, count in Counter(one.grant for one in here).items() if grant
    )
    assert len(out) == max(0, min(wanted(here) - most, over))
    assert {one.grant for one in kept} == {one.grant for one in here}, "each keeps one"


def test_who_is_ended_for_one_reason_counts_for_no_other() -> None:
    two = pod_grant("a", 1024, clients=2)
    clients = client(1, two, 100), client(2, two, 100), client(3, two, 5000)
    assert kinds(Watch(EVERYTHING_KILLS).look((two,), *clients)) == {
        3: {ViolationKind.TOO_MANY_CLIENTS}
    }


def test_a_full_gpu_is_told_of_once_on_the_pods_there_before_error_808_is() -> None:
    gpus = (replace(GPUS[0], capability=replace(CAPABILITY, clients=3)), GPUS[1])
    watch = Watch()
    clients = client(1, A), client(2, B), client(3, None, pod=None)
    assert watch.look((A, B), *clients[:2], gpus=gpus).notices == ()
    (notice,) = watch.look((A, B), *clients, gpus=gpus).notices
    assert (notice.pods, notice.reason) == ((A.holder, B.holder), Reason.TOO_MANY_CLIENTS)
    assert (
        "3 MPS clients, which is its maximum: the next process gets CUDA error 808"
        in notice.message
    )
    assert watch.look((A, B), *clients, gpus=gpus).notices == ()


def test_memory_of_no_known_process_is_reported_once_and_of_its_gpu() -> None:
    watch = Watch()
    (notice,) = watch.look((A,), client(1, A), unexplained_mib={UUIDS[1]: 5120}).notices
    assert (notice.gpu, notice.reason) == (UUIDS[1], Reason.UNEXPLAINED_MEMORY)
    assert notice.message.startswith("5120 MiB of gpu1 ")
    assert watch.look((A,), client(1, A), unexplained_mib={UUIDS[1]: 6144}).notices == ()


def test_without_its_limit_a_process_is_held_to_its_domains_largest_grant() -> None:
    bare = client(1, A, environment={})
    for others in ([pod_grant("large", 4096), B], [B, pod_grant("large", 4096)]):
        (found,) = Watch().look((A, *others), bare).violations
        assert found.kind is ViolationKind.LIMIT_LIFTED
        assert "only the server's limit of 4096 MiB applies" in found.message
    elsewhere = replace(pod_grant("large", 4096), domain="gpu1")
    assert Watch().look((A, B, elsewhere), bare).violations == ()


def test_a_lifted_limit_is_told_of_once_while_its_process_stays_within() -> None:
    watch = Watch()
    lifted = client(1, A, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"})
    (found,) = watch.look((A,), lifted).violations
    assert (found.kind, found.response.ends) == (ViolationKind.LIMIT_LIFTED, False)
    assert found.message.startswith(
        'lifts its limit: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is "garbage": '
    )
    assert watch.look((A,), replace(lifted, used_mib=200)).violations == ()


def test_an_environment_that_nobody_may_read_is_not_judged() -> None:
    assert Watch(EVERYTHING_KILLS).look((A,), client(1, A, environment=None)).violations == ()


@pytest.mark.parametrize(
    "grant", [A, program_grant("p"), pod_grant("two", 1024, 0, 1)], ids=lambda one: one.id
)
def test_a_client_as_mpsd_starts_it_breaks_nothing(grant: Grant) -> None:
    places = [gpu for gpu, uuid in enumerate(UUIDS) if uuid in grant.gpus]
    verdict = Watch(EVERYTHING_KILLS).looks(
        (grant,), *(client(1, grant, 1000, gpu) for gpu in places)
    )
    assert (verdict.violations, verdict.notices, verdict.scan_again) == ((), (), False)
