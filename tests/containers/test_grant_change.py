"""A grant can be changed while it is used, and the ledger holds whatever is asked."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.rules.grant_change import changed
from mpsd.grants.rules.messages import GrantChangeRequest
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.grants import Grant, free_weight, promised_mib
from mpsd.model.identity import PodName
from mpsd.model.node_view import Client, UnreadableGrant
from mpsd.model.policy import CardCompute, Compute
from mpsd.model.problem import Problem
from mpsd.watchdog.rules.escapes import ClientBounds, escapes
from tests.containers.dialect_machine import A10_MIB
from tests.grants.card_worlds import Node, cards, egpu
from tests.model.worlds import POLICY, blind, identity

TWO = egpu((0, 10240, 25), (1, 20480, 50))
FIXED = replace(POLICY, compute=Compute(3, 10, {"1": CardCompute(5, None)}))


def cgpu(gib: int = 3, weight: int = 2, devices: str = "0") -> dict[str, str]:
    return {
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(gib),
        "ALIYUN_COM_GPU_MEM_DEV": "23",
        "ALIYUN_COM_GPU_SCHD_WEIGHT": str(weight),
        "NVIDIA_VISIBLE_DEVICES": devices,
    }


def granted(node: Node, environment: dict[str, str]) -> Grant:
    answer = node.ask(environment)
    assert isinstance(answer, Grant), answer
    return answer


def after(node: Node, grant: Grant, change: GrantChangeRequest) -> Grant:
    """What it becomes; the node has it then."""
    found = changed(grant, change, node.view(), node.policy)
    assert isinstance(found, Grant), found
    node.grants = tuple(found if one is grant else one for one in node.grants)
    return found


def refusals(node: Node, grant: Grant, change: GrantChangeRequest) -> list[Problem]:
    found = changed(grant, change, node.view(), node.policy)
    assert isinstance(found, tuple), found
    assert all(problem.message and problem.remedy for problem in found)
    return list(found)


def client(grant: Grant, used_mib: int | None, gpu: int = 0, pid: int = 900) -> Client:
    return Client(identity(pid), grant.gpus[gpu], used_mib, True, "train", grant.id)


def test_b3_memory_grows_on_one_card_or_on_all_as_far_as_it_is_free() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    one = after(node, grant, GrantChangeRequest(memory_mib=12288, gpu=grant.gpus[0]))
    assert [part.memory_mib for part in one.parts] == [12288, 20480]
    every = after(node, one, GrantChangeRequest(memory_mib=32768))
    assert [part.memory_mib for part in every.parts] == [32768, 32768]
    assert (every.thread_percent, every.parts[1].reserved_percent) == (25, 50)


def test_b3_growing_over_the_card_or_what_others_leave_of_it_is_refused_with_what_is_free() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    (over,) = refusals(node, grant, GrantChangeRequest(memory_mib=32769, gpu=grant.gpus[1]))
    assert (
        str(over)
        == "memory on gpu1 is 32769 MiB: 32768 of 32768 MiB are free for this grant, including what"
        " it has; write at most 32768"
    )
    granted(node, egpu((0, 20480, 10), (1, 1024, 10)))
    each = refusals(node, grant, GrantChangeRequest(memory_mib=32000))
    assert [(one.where, one.remedy) for one in each] == [
        ("memory on gpu0", "write at most 12288"),
        ("memory on gpu1", "write at most 31744"),
    ]


def test_b3_a_percentage_over_100_in_all_is_refused_with_what_is_free() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    granted(node, egpu((0, 1024, 60)))
    (over,) = refusals(node, grant, GrantChangeRequest(percent=41))
    assert (over.where, over.remedy) == ("the percentage on gpu0", "write at most 40")
    fits = after(node, grant, GrantChangeRequest(percent=40))
    assert [part.reserved_percent for part in fits.parts] == [40, 40]
    assert fits.thread_percent == 40


def test_the_cap_is_the_smallest_percentage_of_its_cards_and_0_takes_it_away() -> None:
    node = Node(cards())
    grant = after(node, granted(node, TWO), GrantChangeRequest(percent=90, gpu=cards()[0].uuid))
    assert (grant.thread_percent, [part.reserved_percent for part in grant.parts]) == (50, [90, 50])
    free = after(node, grant, GrantChangeRequest(percent=0))
    assert (free.thread_percent, [part.reserved_percent for part in free.parts]) == (100, [0, 0])


def test_a_grant_may_be_changed_to_one_percent() -> None:
    node = Node(cards())
    assert after(node, granted(node, TWO), GrantChangeRequest(percent=1)).thread_percent == 1


def test_memory_below_what_is_used_is_refused_unless_it_is_forced() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    node.clients = (client(grant, 4000), client(grant, 2000, pid=901), client(grant, 100, gpu=1))
    (used,) = refusals(node, grant, GrantChangeRequest(memory_mib=5999))
    assert (used.rule, used.where) == ("memory-in-use", "memory on gpu0")
    assert used.remedy == "write at least 6000, or force it"
    assert after(node, grant, GrantChangeRequest(memory_mib=6000)).memory_mib == 6000
    assert after(node, grant, GrantChangeRequest(memory_mib=5999, forced=True)).memory_mib == 5999


def test_memory_whose_use_nobody_knows_is_lowered_only_by_force() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    node.clients = (client(grant, None),)
    assert [
        one.rule
        for one in refusals(node, grant, GrantChangeRequest(memory_mib=8192, gpu=grant.gpus[0]))
    ] == ["use-unknown"]
    lower = GrantChangeRequest(memory_mib=8192)
    assert isinstance(changed(grant, lower, blind(node.view()), node.policy), tuple)
    forced = replace(lower, forced=True)
    assert isinstance(changed(grant, forced, blind(node.view()), node.policy), Grant)
    node.clients = ()
    first, second = [replace(lower, gpu=gpu) for gpu in grant.gpus]
    half_blind = blind(node.view(), grant.gpus[1])
    assert isinstance(changed(grant, first, half_blind, node.policy), Grant)
    assert isinstance(changed(grant, second, half_blind, node.policy), tuple)


def test_memory_that_holds_no_context_is_refused_even_by_force() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    found = refusals(node, grant, GrantChangeRequest(memory_mib=10, forced=True))
    assert {one.rule for one in found} == {"memory-below-context"}


def test_b3_a_weight_is_another_cap_where_the_cards_policy_is_a_share_by_weight() -> None:
    node = Node(cards(A10_MIB), policy=FIXED)
    grant = granted(node, cgpu())
    assert (grant.thread_percent, grant.parts[0].weight) == (20, 2)
    heavier = after(node, grant, GrantChangeRequest(weight=4))
    assert (heavier.thread_percent, heavier.parts[0].reserved_percent, heavier.parts[0].weight) == (
        40,
        40,
        4,
    )


def test_b3_a_weight_says_nothing_under_other_policies_and_for_other_dialects() -> None:
    node = Node(cards(A10_MIB), policy=FIXED)
    native = refusals(node, granted(node, cgpu(devices="1")), GrantChangeRequest(weight=4))
    assert [one.rule for one in native] == ["weight-meaningless"]
    assert "MPS has no weights" in native[0].message
    assert [
        one.rule
        for one in refusals(node, granted(node, egpu((0, 1024, 10))), GrantChangeRequest(weight=4))
    ] == ["weight-not-cgpus"]


def test_b3_free_weight_is_what_the_containers_leave_of_max_inst() -> None:
    node = Node(cards(A10_MIB), policy=FIXED)
    first, second = granted(node, cgpu(weight=2)), granted(node, cgpu(weight=5))
    assert [free_weight(gpu, node.grants, node.policy.compute) for gpu in node.gpus] == [
        3,
        None,
        10,
    ]
    (over,) = [
        one
        for one in refusals(node, first, GrantChangeRequest(weight=6))
        if one.rule == "weight-over-free"
    ]
    assert over.remedy == "write at most 5"
    assert after(node, first, GrantChangeRequest(weight=5)).thread_percent == 50
    assert free_weight(node.gpus[0], node.grants, node.policy.compute) == 0
    assert after(node, second, GrantChangeRequest(weight=1)).thread_percent == 10


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (GrantChangeRequest(), ["nothing-to-change"]),
        (GrantChangeRequest(percent=10, weight=2), ["threads-twice"]),
        (GrantChangeRequest(percent=101), ["percent-range"]),
        (GrantChangeRequest(percent=-1), ["percent-range"]),
        (GrantChangeRequest(weight=0), ["weight-range"]),
        (GrantChangeRequest(memory_mib=1024, gpu="GPU-another"), ["gpu-not-granted"]),
        (GrantChangeRequest(gpu="GPU-another", percent=200), ["gpu-not-granted", "percent-range"]),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_everything_that_is_wrong(
    change: GrantChangeRequest, rules: list[str]
) -> None:
    node = Node(cards())
    assert [one.rule for one in refusals(node, granted(node, TWO), change)] == rules


def test_the_share_of_a_pod_is_kubelets_to_change() -> None:
    node = Node(cards())
    of_pod = replace(granted(node, TWO), holder=PodName("default", "train", "a-uid"))
    assert [one.rule for one in refusals(node, of_pod, GrantChangeRequest(percent=10))] == [
        "grant-of-pod"
    ]


def test_nothing_is_changed_while_a_gpu_or_the_grants_are_not_seen() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    away = replace(node.view(), gpus=node.gpus[1:])
    found = changed(grant, GrantChangeRequest(percent=10), away, node.policy)
    assert isinstance(found, tuple)
    assert [one.rule for one in found] == ["gpu-away"]
    other = UnreadableGrant("another", "another.json", "is empty")
    for unknown in ({"grants_known": False}, {"unreadable": (other,)}):
        seen = replace(node.view(), **unknown)
        found = changed(grant, GrantChangeRequest(percent=10, gpu=grant.gpus[0]), seen, node.policy)
        assert isinstance(found, tuple)
        assert [one.rule for one in found] == ["grants-unknown"]


def test_what_a_program_was_started_with_before_the_change_is_no_escape() -> None:
    node = Node(cards())
    grant = granted(node, TWO)
    running = environment(ClientLimit(grant.memory_mib, grant.thread_percent), "/run/mpsd/client")
    less = after(node, grant, GrantChangeRequest(memory_mib=2048, percent=10))
    again = after(node, less, GrantChangeRequest(memory_mib=1024, percent=5))
    for now in (less, again):
        assert all(
            escapes(running, gpu, ClientBounds(now, now.memory_mib, now.gpus)) == ()
            for gpu in now.gpus
        )


SHARES = st.tuples(st.integers(600, 20_000), st.integers(1, 60))
ASKED = st.builds(
    lambda first, second: egpu((0, *first), (1, *second)), SHARES, SHARES
) | st.builds(cgpu, st.integers(1, 20), st.integers(1, 10), st.sampled_from(["0", "1", "0,2"]))
CHANGES = st.builds(
    GrantChangeRequest,
    memory_mib=st.none() | st.integers(0, 40_000),
    percent=st.none() | st.integers(-1, 110),
    weight=st.none() | st.integers(0, 12),
    gpu=st.none() | st.sampled_from([gpu.uuid for gpu in cards()]),
    forced=st.booleans(),
)


@given(
    st.lists(ASKED, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), CHANGES), max_size=15),
)
def test_no_change_promises_beyond_the_card_and_a_refused_one_changes_nothing(
    asked: list[dict[str, str]], changes: list[tuple[int, GrantChangeRequest]]
) -> None:
    node = Node(cards(), policy=FIXED)
    for container in asked:
        node.ask(container)
    for which, change in changes:
        old = node.grants[which % len(node.grants)]
        found = changed(old, change, node.view(), node.policy)
        if isinstance(found, tuple):
            assert found
            continue
        node.grants = tuple(found if one is old else one for one in node.grants)
        assert (found.id, found.holder, found.gpus) == (old.id, old.holder, old.gpus)
        untouched = [part for part in old.parts if change.gpu not in (None, part.gpu)]
        assert all(part in found.parts for part in untouched)
        assert (
            1 <= found.thread_percent <= min(part.reserved_percent or 100 for part in found.parts)
        )
        for gpu in node.gpus:
            held = [grant.part_of(gpu.uuid) for grant in node.grants]
            assert sum(part.memory_mib for part in held) <= promised_mib(gpu, node.policy)
            assert sum(part.reserved_percent for part in held) <= 100
            assert (free_weight(gpu, node.grants, node.policy.compute) or 0) >= 0
