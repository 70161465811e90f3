"""Which GPU a request gets: the fullest that has room, or the emptiest; always the same one."""

from itertools import permutations

import pytest

from mpsd.grants.rules.placement import InsufficientResources, Placed, find_gpus, place
from mpsd.model.grants import GpuCapacity, Grant, Request, rooms
from tests.model.worlds import GPUS, POLICY, SPREAD, UUIDS, grant

APART = {UUIDS[0]: "gpu0", UUIDS[1]: "gpu1"}
TOGETHER = dict.fromkeys(UUIDS, "gpu0-1")
SEVEN = Request(7 * 1024, None, 1)
CROWD = tuple(grant(f"g{n}", 1) for n in range(6))  # as many clients as a GPU takes


def rooms_with(
    *grants: tuple[int, int], domain_of: dict[str, str] = APART
) -> tuple[GpuCapacity, ...]:
    """Rooms beside grants given as (GiB, GPU)."""
    held = [grant(f"g{n}", gib_, gpu) for n, (gib_, gpu) in enumerate(grants)]
    return rooms(GPUS, domain_of, held, POLICY)


def test_binpack_fills_the_fullest_gpu_that_has_room() -> None:
    assert place(SEVEN, rooms_with((10, 1)), POLICY) == Placed("gpu1", (UUIDS[1],))
    assert place(SEVEN, rooms_with((17, 1)), POLICY) == Placed("gpu0", (UUIDS[0],))


def test_spread_takes_the_emptiest() -> None:
    assert place(SEVEN, rooms_with((3, 0)), SPREAD) == Placed("gpu1", (UUIDS[1],))


def test_ties_go_to_the_lowest_ordinal_in_whatever_order_the_gpus_come() -> None:
    for policy in (POLICY, SPREAD):
        for order in permutations(rooms_with()):
            assert place(SEVEN, order, policy) == Placed("gpu0", (UUIDS[0],))


def refusal(
    request: Request, *grants: Grant, gpus: int = 2, domain_of: dict[str, str] = APART
) -> InsufficientResources:
    """Of a request that finds no room beside these grants, on so many GPUs."""
    refused = place(request, rooms(GPUS, domain_of, grants, POLICY)[:gpus], POLICY)
    assert isinstance(refused, InsufficientResources)
    return refused


@pytest.mark.parametrize(
    ("asked", "held", "lacks"),
    [
        (SEVEN, [grant(f"g{n}", 12) for n in range(2)], "0 of the needed 7 GiB"),
        (
            Request(1024, 30, 1),
            [grant(f"g{n}", 1, reserved_percent=60) for n in range(2)],
            "0 of the needed 30 % of the threads",
        ),
        (SEVEN, [*CROWD, grant("more", 1)], "0 of the needed 8 clients"),
    ],
)
def test_of_what_is_promised_beyond_a_gpu_none_is_free(
    asked: Request, held: list[Grant], lacks: str
) -> None:
    """As after a policy that promises less."""
    assert f"gpu0 has {lacks} free" in refusal(asked, *held, gpus=1).reason


def test_several_gpus_come_from_one_domain() -> None:
    two = Request(7 * 1024, None, 2)
    assert place(two, rooms_with(domain_of=TOGETHER), POLICY) == Placed("gpu0-1", UUIDS)
    assert not refusal(two).ever


def test_of_named_gpus_alone_one_is_taken() -> None:
    for number, uuid in enumerate(UUIDS):
        found = find_gpus(SEVEN, rooms_with(), POLICY, only=[uuid])
        assert found == Placed(f"gpu{number}", (uuid,))
    assert find_gpus(SEVEN, rooms_with((20, 0)), POLICY, only=UUIDS[:1]) is None
    assert find_gpus(SEVEN, rooms_with(), POLICY, only=()) is None


def test_the_server_s_own_memory_is_never_promised() -> None:
    assert [room.memory_mib_total for room in rooms_with()] == [23 * 1024, 23 * 1024]


def test_a_share_of_the_threads_is_reserved_only_where_it_was_asked_for() -> None:
    held = [grant("half", 1, reserved_percent=50), grant("none", 1)]
    assert rooms(GPUS, APART, held, POLICY)[0].thread_percent == 50


def test_threads_that_are_reserved_are_not_promised_again() -> None:
    assert refusal(Request(1024, 30, 1), grant("most", 1, reserved_percent=80), gpus=1).ever


def test_a_gpu_that_has_its_clients_takes_no_more() -> None:
    assert refusal(SEVEN, *CROWD, gpus=1).ever


def test_gpus_that_nobody_uses_are_had_together_and_one_in_use_is_not() -> None:
    two = Request(7 * 1024, None, 2)
    free = rooms(GPUS, APART, (), POLICY, UUIDS)
    assert place(two, free, POLICY) == Placed("gpu0-1", UUIDS)
    used = rooms(GPUS, APART, (grant("a", 1),), POLICY, UUIDS)
    refused = place(two, used, POLICY)
    assert isinstance(refused, InsufficientResources)
    assert refused.ever
    assert "gpu1 is unused; gpu0 is in use by others" in refused.reason


def test_one_gpu_of_a_joined_domain_is_had_alone_once_nobody_uses_any_of_them() -> None:
    empty = rooms(GPUS, TOGETHER, (), POLICY, UUIDS)
    assert place(SEVEN, empty, POLICY) == Placed("gpu0", UUIDS[:1])
    beside = rooms(GPUS, TOGETHER, (grant("a", 1, 1),), POLICY, UUIDS)
    assert place(SEVEN, beside, POLICY) == Placed("gpu0-1", UUIDS[1:])
