"""Decisions about a node, over enumerated small worlds: after every action of every list the ledger
still hold."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from mpsd.agent.rules.decide import (
    Action,
    Admit,
    EndGrant,
    Forget,
    Refuse,
    SetLimit,
    decide,
    domain_of,
    stages,
    why_waiting,
)
from mpsd.grants.rules.messages import DIVIDE_S, join_s
from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import State, after_is
from mpsd.model.grants import Grant, evenly, promised_mib
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import (
    Client,
    DomainView,
    HeldGrant,
    NodeView,
    ServerLimit,
    WaitingRequest,
)
from tests.model.worlds import (
    GPUS,
    LOST,
    NOW_S,
    POLICY,
    SPREAD,
    UUIDS,
    blind,
    grant,
    record,
    view,
    waiting,
)


def limits_of(actions: tuple[Action, ...], domain: str) -> list[int]:
    return [
        action.limit.memory_mib
        for action in actions
        if isinstance(action, SetLimit) and action.domain == domain
    ]


def refused(seen: NodeView) -> list[Refuse]:
    return [one for one in decide(seen, POLICY) if isinstance(one, Refuse)]


def admitted(seen: NodeView) -> list[Grant]:
    return [one.grant for one in decide(seen, POLICY) if isinstance(one, Admit)]


def ends_one(seen: NodeView) -> bool:
    return any(isinstance(one, EndGrant) for one in decide(seen, POLICY))


def client_of(grant_id: str | None, gpu: int = 0) -> Client:
    return Client(
        ProcessIdentity(900, 1, "boot"), UUIDS[gpu], 600, True, "python train.py", grant_id
    )


@pytest.mark.parametrize("asked_ago_s", [DIVIDE_S - 1, DIVIDE_S])
def test_a_request_waits_while_gpus_are_divided_and_no_longer(asked_ago_s: float) -> None:
    pair = replace(record(0), domain="gpu0-1", gpus=UUIDS[:2], kind="joined")
    ends = DomainView(replace(pair, state=State.DRAINED), frozenset())
    waits = (replace(waiting("a", 7), asked_s=NOW_S - asked_ago_s),)
    coming = record(0, State.STARTING), record(1, State.STARTING)
    served = tuple(replace(one, served=True) for one in coming)
    for seen in (replace(view(records=()), leaving=(ends,)), view(records=served)):
        assert bool(refused(replace(seen, waiting=waits))) is (asked_ago_s >= DIVIDE_S)
    assert refused(replace(view(records=coming), waiting=waits))  # the first start of all
    fallen = tuple(replace(one, restarts_total=1) for one in served)
    assert refused(replace(view(records=fallen), waiting=waits))


def test_the_wait_for_gpus_to_join_grows_with_their_number() -> None:
    waits = [join_s(gpus) for gpus in (1, 2, 8)]
    assert waits == sorted(set(waits))


def test_a_domain_without_a_grant_denies_new_clients() -> None:
    assert set(limits_of(decide(view(), POLICY), "gpu0")) == {DENY_MIB}


def test_a_limit_that_is_confirmed_is_not_set_again() -> None:
    confirmed = frozenset({ServerLimit(None, 0, DENY_MIB), ServerLimit(500, 0, DENY_MIB)})
    assert decide(view(limits=confirmed), POLICY) == ()


def test_the_limit_is_lowered_after_the_largest_grant_has_ended() -> None:
    held = (HeldGrant(grant("big", 12), False), HeldGrant(grant("small", 3), True))
    confirmed = frozenset({ServerLimit(None, 0, 12288), ServerLimit(500, 0, 12288)})
    actions = decide(view(grants=held, limits=confirmed, records=(record(0),)), POLICY)
    assert actions[0] == EndGrant(held[0].grant)
    assert limits_of(actions, "gpu0") == [3072, 3072]


def test_a_grant_outlives_its_holder_while_a_client_of_it_lives() -> None:
    held = (HeldGrant(grant("a", 7), False),)
    assert not ends_one(view(grants=held, clients=(client_of("a"),)))
    assert ends_one(view(grants=held, clients=(client_of("b"),)))
    assert not ends_one(blind(view(grants=held))), "NVML cannot say who is there"
    assert not ends_one(view(grants=(replace(held[0], others_alive=True),))), "of its cgroup"


THIRD = replace(GPUS[0], uuid="GPU-22222222-2222-2222-2222-222222222222", ordinal=2)
OF_THIRD = DomainView(replace(record(0), domain="gpu2", gpus=(THIRD.uuid,)), frozenset())


def three(*held: HeldGrant, waits: tuple[WaitingRequest, ...] = ()) -> NodeView:
    """A node of three GPUs."""
    two = view(grants=held, waits=waits)
    return replace(two, gpus=(*GPUS, THIRD), domains=(*two.domains, OF_THIRD))


def on_third(one: Grant) -> Grant:
    return replace(one, domain="gpu2", parts=evenly((THIRD.uuid,), one.memory_mib, 0))


def test_grants_on_a_gpu_that_cannot_be_seen_are_kept_and_those_elsewhere_end() -> None:
    first, second, third = grant("a", 7), grant("b", 7, gpu=1), on_third(grant("c", 7))
    joined = replace(first, id="ab", parts=evenly(UUIDS, 7168, 0))
    left = three(*[HeldGrant(one, False) for one in (first, second, third, joined)])

    def ended(seen: NodeView) -> set[str]:
        return {one.grant.id for one in decide(seen, POLICY) if isinstance(one, EndGrant)}

    assert ended(blind(left, UUIDS[1])) == {"a", "c"}
    assert ended(blind(left, THIRD.uuid)) == {"a", "b", "ab"}
    assert ended(blind(left)) == set()
    assert ended(left) == {"a", "b", "c", "ab"}


def test_nothing_new_is_placed_on_a_gpu_that_cannot_be_seen_and_its_limits_stay() -> None:
    kept = HeldGrant(on_third(grant("c", 7)), False)
    waits = tuple([waiting(f"w{number}", 20) for number in range(3)])
    half = blind(three(kept, waits=waits), THIRD.uuid)
    assert {one.domain for one in admitted(half)} == {"gpu0", "gpu1"}
    (found,) = refused(half)
    assert not found.for_ever
    assert (
        f"gpu2 takes no new grant until it is known which processes use it: {LOST}" in found.reason
    )
    assert set(limits_of(decide(half, POLICY), "gpu2")) == {7168}


def test_nothing_is_placed_on_a_gpu_in_trouble_whose_domain_does_not_say_so_yet() -> None:
    waits = tuple([waiting(f"w{number}", 20) for number in range(3)])
    troubled = replace(three(waits=waits), troubles={THIRD.uuid: LOST})
    assert {one.domain for one in admitted(troubled)} == {"gpu0", "gpu1"}
    (found,) = refused(troubled)
    assert f"gpu2 takes no new grant: {LOST}" in found.reason


FULL = (HeldGrant(grant("a", 23), True), HeldGrant(grant("b", 23, gpu=1), True))


def test_what_fits_no_single_gpu_is_refused_though_the_sum_would_do() -> None:
    held = (HeldGrant(grant("a", 15), True), HeldGrant(grant("b", 15, gpu=1), True))
    (found,) = refused(view(grants=held, waits=(waiting("c", 10),)))
    assert (found.id, found.for_ever) == ("c", False)


def test_a_request_waits_until_its_deadline_and_is_refused_then() -> None:
    waits = view(grants=FULL, waits=(waiting("c", 1, deadline_s=NOW_S + 1),))
    assert (refused(waits), admitted(waits)) == ([], [])
    late = view(grants=FULL, waits=(waiting("c", 1, deadline_s=NOW_S),))
    assert [one.for_ever for one in refused(late)] == [False]


def test_what_no_gpu_here_could_ever_hold_is_refused_at_once_even_when_it_would_wait() -> None:
    (found,) = refused(view(waits=(waiting("c", 24, deadline_s=NOW_S + 60),)))
    assert found.for_ever


def test_requests_at_once_are_admitted_in_their_order_and_never_over_the_card() -> None:
    seen = view(waits=(waiting("a", 20), waiting("b", 20), waiting("c", 20)))
    assert [(one.id, one.domain) for one in admitted(seen)] == [("a", "gpu0"), ("b", "gpu1")]
    assert [one.id for one in refused(seen)] == ["c"]


def test_a_request_whose_program_is_gone_is_forgotten() -> None:
    gone = replace(waiting("a", 1), holder_alive=False)
    assert Forget("a") in decide(view(waits=(gone,)), POLICY)


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_only_a_ready_domain_takes_new_programs(state: State) -> None:
    records = (record(0, state, reason="because"), record(1, state))
    (found,) = refused(view(records=records, waits=(waiting("a", 1),)))
    assert found.reason.endswith(f"; gpu0 is {after_is(state)}: because; gpu1 is {after_is(state)}")
    assert not found.for_ever


@pytest.mark.parametrize(
    "state", [State.WEDGED, State.DOWN, State.STARTING, State.REFUSED, State.DRAINED]
)
def test_a_daemon_that_may_not_answer_is_told_nothing(state: State) -> None:
    assert decide(view(records=(record(0, state),)), POLICY) == ()


def test_a_grant_too_small_for_a_context_is_refused_for_ever() -> None:
    tiny = replace(waiting("a", 1), request=replace(waiting("a", 1).request, memory_mib=100))
    (found,) = refused(view(waits=(tiny,)))
    assert found.for_ever
    assert "234 MiB" in found.reason


def small_worlds() -> Iterator[NodeView]:
    """Every mix of two grants (alive or not, with a client or not), two requests, and the limits
    that may be known."""
    confirmed = [
        frozenset[ServerLimit](),
        frozenset({ServerLimit(None, 0, 12288), ServerLimit(500, 0, DENY_MIB)}),
    ]
    for first, second, alive, has_client, asks, limits, state in product(
        (0, 3, 12),
        (0, 11, 20),
        (False, True),
        (False, True),
        ((), (2,), (12, 12), (23, 1)),
        confirmed,
        (State.READY, State.FAULT),
    ):
        held = tuple(
            HeldGrant(grant(name, gib, gpu), alive)
            for name, gib, gpu in (("x", first, 0), ("y", second, 1))
            if gib
        )
        yield view(
            grants=held,
            waits=tuple(waiting(f"w{n}", gib) for n, gib in enumerate(asks)),
            clients=(client_of("x"),) if has_client else (),
            limits=limits,
            records=(record(0, state), record(1)),
        )


@pytest.mark.parametrize("policy", [POLICY, SPREAD], ids=["binpack", "spread"])
def test_after_every_action_of_every_list_the_ledger_holds(policy: object) -> None:
    assert isinstance(policy, type(POLICY))
    for world in small_worlds():
        ledger = {held.grant.id: held.grant for held in world.grants}
        in_force = {
            (domain.name, limit.server, limit.ordinal): limit.memory_mib
            for domain in world.domains
            for limit in domain.limits
        }
        for action in decide(world, policy):
            match action:
                case EndGrant(ended):
                    del ledger[ended.id]
                case Admit(new):
                    ledger[new.id] = new
                case SetLimit(domain, limit):
                    in_force[domain, limit.server, limit.ordinal] = limit.memory_mib
            assert_no_gpu_is_promised_twice(tuple(ledger.values()))
            if isinstance(action, Admit):
                assert_every_server_lets_it_in(action.grant, in_force)


def assert_no_gpu_is_promised_twice(grants: tuple[Grant, ...]) -> None:
    for gpu in GPUS:
        here = [one for one in grants if gpu.uuid in one.gpus]
        assert sum(one.memory_mib for one in here) <= promised_mib(gpu, POLICY)
        assert sum(one.reserved_percent for one in here) <= 100
        assert sum(one.clients for one in here) <= gpu.capability.clients


def assert_every_server_lets_it_in(
    admitted: Grant, in_force: dict[tuple[str, int | None, int], int]
) -> None:
    for server in (None, 500):
        assert in_force[admitted.domain, server, 0] >= admitted.memory_mib


def test_once_everything_was_done_there_is_nothing_left_to_do() -> None:
    for world in small_worlds():
        actions = decide(world, POLICY)
        ended = {action.grant.id for action in actions if isinstance(action, EndGrant)}
        new = tuple(
            HeldGrant(action.grant, True) for action in actions if isinstance(action, Admit)
        )
        kept = tuple(held for held in world.grants if held.grant.id not in ended)
        after = {
            domain.name: {(one.server, one.ordinal): one for one in domain.limits}
            for domain in world.domains
        }
        for action in actions:
            if isinstance(action, SetLimit):
                after[action.domain][action.limit.server, action.limit.ordinal] = action.limit
        domains = tuple(
            replace(domain, limits=frozenset(after[domain.name].values()))
            for domain in world.domains
        )
        settled = replace(world, grants=(*kept, *new), waiting=(), domains=domains)
        assert decide(settled, POLICY) == ()


def test_limits_of_several_domains_are_set_at_once_and_nothing_else_is() -> None:
    for world in small_worlds():
        actions = decide(world, POLICY)
        done = list(stages(actions))
        flat = [action for stage in done for own in stage.values() for action in own]
        for domain in {domain_of(action) for action in actions}:
            assert [a for a in flat if domain_of(a) == domain] == [
                a for a in actions if domain_of(a) == domain
            ]
        for stage in done:
            several = [action for own in stage.values() for action in own]
            assert len(several) == 1 or all(isinstance(action, SetLimit) for action in several)


def test_no_limit_is_set_while_it_is_not_known_who_holds_what() -> None:
    """A limit for some of the grants would shut the others out."""
    for world in small_worlds():
        unsure = replace(world, grants_known=False)
        assert not any(isinstance(action, SetLimit) for action in decide(unsure, POLICY))


@pytest.mark.parametrize("free_gib", [0, 3, 23])
@pytest.mark.parametrize("gib", [(3, 3), (10, 1), (23, 23), (1, 1)])
def test_whoever_goes_on_waiting_has_a_reason_and_nobody_else(
    gib: tuple[int, int], free_gib: int
) -> None:
    held = tuple(
        HeldGrant(grant(f"held{gpu}", 23 - free_gib, gpu), True) for gpu in (0, 1) if free_gib < 23
    )
    queue = tuple(
        waiting(f"w{place}", wanted, deadline_s=NOW_S + 60) for place, wanted in enumerate(gib)
    )
    seen = view(grants=held, waits=queue)
    answered = {one.id for one in admitted(seen)}
    assert why_waiting(seen, POLICY).keys() == {one.id for one in queue} - answered
    assert all(why_waiting(seen, POLICY).values())


def test_who_is_gone_waits_for_nothing() -> None:
    gone = replace(waiting("gone", 23, deadline_s=NOW_S + 60), holder_alive=False)
    held = (HeldGrant(grant("a", 20), True), HeldGrant(grant("b", 20, gpu=1), True))
    assert why_waiting(view(grants=held, waits=(gone,)), POLICY) == {}


def test_a_request_waits_a_moment_for_a_gpu_to_be_watched_again() -> None:
    unwatched = replace(record(0), unwatched="nobody watches it")
    asked = replace(waiting("a", 7), asked_s=NOW_S)
    alone = view(waits=(asked,), records=(unwatched,))
    assert (admitted(alone), refused(alone)) == ([], [])
    (late,) = refused(replace(alone, now_s=NOW_S + DIVIDE_S + 1))
    assert "nobody watches it" in late.reason
    (elsewhere,) = admitted(view(waits=(waiting("a", 7),), records=(unwatched, record(1))))
    assert elsewhere.gpus == (UUIDS[1],)


def test_a_request_waits_for_a_gpu_that_mpsd_tries_unless_it_fits_elsewhere() -> None:
    tried = replace(record(0), held_until_s=NOW_S + 1)
    alone = view(waits=(waiting("a", 7),), records=(tried,))
    assert (admitted(alone), refused(alone)) == ([], [])
    assert admitted(replace(alone, now_s=NOW_S + 1))
    assert admitted(replace(alone, domains=view().domains))
    (elsewhere,) = admitted(view(waits=(waiting("a", 7),), records=(tried, record(1))))
    assert elsewhere.gpus == (UUIDS[1],)
    faulty = replace(tried, state=State.FAULT)
    assert refused(view(waits=(waiting("a", 7),), records=(faulty,)))
