"""Every form in which an environment was seen to lift a limit, and those that do not."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.cuda_limit_parser import (
    CLIENT_PRIORITY,
    CUDA_VISIBLE_DEVICES,
    MEMORY_LIMIT,
    PARTITIONING,
    THREAD_PERCENT,
)
from mpsd.model.grants import GpuShare
from mpsd.model.violations import ViolationKind
from mpsd.watchdog.rules.escapes import ClientBounds, escapes
from tests.model.gpu_worlds import pod_grant
from tests.model.worlds import UUIDS

GRANT = pod_grant("a", 1024, percent=30)
HELD = ClientBounds(GRANT, 2048, GRANT.gpus)
OURS = environment(ClientLimit(1024, 30), "/run/mpsd/client")


def found(
    changes: dict[str, str | None], held: ClientBounds = HELD, gpu: str = UUIDS[0]
) -> dict[ViolationKind, str]:
    """What is said of a client with these changes of what mpsd starts it with; None takes a
    variable away."""
    changed = {name: value for name, value in (OURS | changes).items() if value is not None}
    return {escape.kind: escape.message for escape in escapes(changed, gpu, held)}


def test_what_mpsd_writes_lifts_nothing() -> None:
    assert found({}) == {}


@pytest.mark.parametrize(
    "value",
    [
        "0=2147483648", "0=2097152K", "1G", "0=abc", "0=0", " 0=1G", "0=1G,1=1G", "5=1G", "garbage",
        "0=", "1=1G", f"{UUIDS[1]}=1G", "GPU-99999999=1G", ",",
    ],
)  # fmt: skip
def test_a_value_that_libcuda_takes_for_no_limit_lifts_it(value: str) -> None:
    said = found({MEMORY_LIMIT: value})[ViolationKind.LIMIT_LIFTED]
    assert "so no limit applies, not even the server's; 1024 MiB are granted; " in said


@pytest.mark.parametrize(
    "value", ["0=1G", "0=1024m", f"{UUIDS[0]}=1G", "GPU-00000000=1000M", "0 = 1G", "0=1G,"]
)
def test_a_value_that_holds_the_process_to_its_grant_lifts_nothing(value: str) -> None:
    assert found({MEMORY_LIMIT: value}) == {}


@pytest.mark.parametrize("value", ["0=1025M", "0=9G", "0=-1G"])
def test_a_limit_above_the_grant_lifts_it_as_far_as_the_servers(value: str) -> None:
    assert (
        "that exceeds its grant and allows"
        in found({MEMORY_LIMIT: value})[ViolationKind.LIMIT_LIFTED]
    )


def test_no_value_lifts_the_limit_where_the_server_allows_more_than_the_grant() -> None:
    assert (
        "is not set: only the server's limit of 2048 MiB applies"
        in found({MEMORY_LIMIT: None})[ViolationKind.LIMIT_LIFTED]
    )
    assert found({MEMORY_LIMIT: None}, ClientBounds(GRANT, 1024, GRANT.gpus)) == {}


@pytest.mark.parametrize("value", ["0=1T", "0=1.5G"])
def test_a_value_with_which_no_context_can_be_made_lifts_nothing(value: str) -> None:
    assert found({MEMORY_LIMIT: value}) == {}


def test_ordinals_count_the_devices_that_the_process_sees() -> None:
    sees_both = ClientBounds(GRANT, 1024, UUIDS)
    assert found({MEMORY_LIMIT: "1=1G", CUDA_VISIBLE_DEVICES: None}, sees_both, UUIDS[1]) == {}
    assert found({MEMORY_LIMIT: "0=1G", CUDA_VISIBLE_DEVICES: UUIDS[1]}, sees_both, UUIDS[1]) == {}
    assert found(
        {MEMORY_LIMIT: "1=1G", CUDA_VISIBLE_DEVICES: UUIDS[1]}, sees_both, UUIDS[1]
    ).keys() == {ViolationKind.LIMIT_LIFTED}


def test_a_process_on_a_gpu_that_it_should_not_see_is_not_judged_by_its_ordinals() -> None:
    assert found({MEMORY_LIMIT: "garbage"}, gpu=UUIDS[1]) == {}


@pytest.mark.parametrize(
    ("value", "read"), [("31", "31"), ("100", "100"), ("0", "100"), ("abc", "100"), (None, "100")]
)
def test_a_thread_percentage_above_the_grant_lifts_it(value: str | None, read: str) -> None:
    said = found({THREAD_PERCENT: value})[ViolationKind.LIMIT_LIFTED]
    assert f"which means {read} %; 30 % are granted" in said


def test_a_smaller_thread_percentage_lifts_nothing() -> None:
    assert found({THREAD_PERCENT: "29.5"}) == {}


def test_partitioning_is_a_kind_of_its_own() -> None:
    assert found({PARTITIONING: "1"}).keys() == {ViolationKind.PARTITIONING_ENABLED}
    assert found({PARTITIONING: None}) == {}


@pytest.mark.parametrize("value", ["0", None, "", "-1", "2", "abc"])
def test_a_priority_that_is_not_below_normal_raises_that_of_a_grant_which_is(
    value: str | None,
) -> None:
    below = ClientBounds(replace(GRANT, priority=1), 2048, GRANT.gpus)
    assert found({CLIENT_PRIORITY: value}, below).keys() == {ViolationKind.PRIORITY_RAISED}
    assert found({CLIENT_PRIORITY: "1"}, below) == {}
    assert found({CLIENT_PRIORITY: value}) == {}, "of a grant that is normal nothing is raised"


@given(st.text(max_size=40), st.text(max_size=10), st.text(max_size=10))
@example("\x1b[2J", "", "0")
@example("0=a", "", "0")
def test_whatever_a_tenant_writes_what_is_said_of_it_is_one_short_line(
    memory: str, percent: str, devices: str
) -> None:
    told = found(
        {MEMORY_LIMIT: memory * 50, THREAD_PERCENT: percent, CUDA_VISIBLE_DEVICES: devices}
    )
    assert all(len(message) < 900 and message.isprintable() for message in told.values())


@given(
    st.lists(st.tuples(st.integers(100, 50_000), st.integers(0, 100)), min_size=1, max_size=4),
    st.integers(1, 100),
    st.integers(0, 50_000),
    st.data(),
)
def test_what_mpsd_writes_lifts_nothing_on_any_gpu_of_an_uneven_grant(
    amounts: list[tuple[int, int]], thread_percent: int, others_mib: int, data: st.DataObject
) -> None:
    uuids = [f"GPU-{n:08d}-0000-0000-0000-000000000000" for n in range(len(amounts))]
    parts = tuple(GpuShare(uuid, *amount) for uuid, amount in zip(uuids, amounts, strict=True))
    grant = replace(GRANT, parts=parts, thread_percent=thread_percent)
    held = ClientBounds(grant, max(grant.memory_mib, others_mib), grant.gpus)
    ours = environment(ClientLimit(grant.memory_mib, grant.thread_percent), "/run/mpsd/client")
    narrowed = data.draw(st.permutations(uuids))[: data.draw(st.integers(1, len(uuids)))]
    for visible in ({}, {CUDA_VISIBLE_DEVICES: ",".join(narrowed)}):
        for gpu in uuids:
            assert escapes(ours | visible, gpu, held) == ()


def test_more_than_the_largest_part_of_an_uneven_grant_lifts_its_limit() -> None:
    parts = (GpuShare(UUIDS[0], 1024, 0), GpuShare(UUIDS[1], 3072, 0))
    held = ClientBounds(replace(GRANT, parts=parts), 9216, UUIDS)
    assert "3072 MiB are granted" in found({MEMORY_LIMIT: "0=4G"}, held)[ViolationKind.LIMIT_LIFTED]
    assert found({MEMORY_LIMIT: "0=3G"}, held) == {}
