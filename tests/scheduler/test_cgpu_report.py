"""gpushare's table: every GPU has one column, and what is shown adds up."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.model.grants import GpuName, Request
from mpsd.model.identity import PodName
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity, Taken, node_capacity
from mpsd.scheduler.rules.inspect_formats import cgpu_node, detailed, summary
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, held
from tests.status.cluster_worlds import cluster_node as node


def ledger(totals: list[tuple[int, int]], taken: tuple[Taken, ...] = ()) -> NodeCapacity:
    """totals: ordinals and MiB."""
    gpus = tuple((GpuName(f"GPU-{n}", ordinal), mib) for n, (ordinal, mib) in enumerate(totals))
    return NodeCapacity("node1", POLICY, (), (), taken, "", gpus)


def test_a_gpu_keeps_the_column_of_its_ordinal_and_one_without_takes_the_next_free() -> None:
    report = cgpu_node(
        ledger([(-1, 4 * GIB), (2, 5 * GIB), (0, 6 * GIB), (9999, 7 * GIB)]), "a", {}, GIB
    )
    assert [(gpu.column, gpu.total) for gpu in report.gpus] == [(0, 6), (1, 4), (2, 5), (3, 7)]


def test_mib_are_rounded_down_to_whole_units_and_the_unit_is_named() -> None:
    half = cgpu_node(ledger([(0, 15 * GIB + 1023)]), "a", {}, 512)
    assert (half.total, summary([half], 512).splitlines()[0].split("  ")[-1]) == (
        31,
        "GPU Memory(512MiB)",
    )


def test_what_was_only_promised_is_not_allocated() -> None:
    reserved = Taken(PodName("a", "b", "c"), ("GPU-0",), GIB, 0, AssignmentSource.RESERVED)
    assert cgpu_node(ledger([(0, 4 * GIB)], (reserved,)), "a", {}, GIB).allocated == 0


def test_a_silent_node_keeps_the_numbers_that_it_told() -> None:
    report = cgpu_node(
        node_capacity(changed(node(held=(held("a", 7),)), stale=True), "", (), (), POLICY),
        "a",
        {},
        GIB,
    )
    assert (report.allocated, report.total) == (7, 46)


@given(
    st.lists(st.tuples(st.integers(-1, 70), st.integers(0, 100_000)), max_size=5),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 6), max_size=3, unique=True),
            st.integers(0, 20),
            st.sampled_from(AssignmentSource),
        ),
        max_size=5,
    ),
)
def test_each_gpu_has_a_column_of_its_own_and_the_columns_add_up(
    totals: list[tuple[int, int]], pods: list[tuple[list[int], int, AssignmentSource]]
) -> None:
    taken = tuple(
        Taken(
            PodName("a", f"p{n}", f"u{n}"),
            tuple(f"GPU-{gpu}" for gpu in gpus),
            gib * GIB,
            0,
            source,
        )
        for n, (gpus, gib, source) in enumerate(pods)
    )
    report = cgpu_node(ledger(totals, taken), "a", {"u0": Request(GIB, None, 2)}, GIB)
    assert len({gpu.column for gpu in report.gpus}) == len(totals)
    assert report.total == sum(mib // GIB for _ordinal, mib in totals)
    for gpu in report.gpus:
        assert gpu.allocated == sum(pod.memory for pod in report.pods if gpu.column in pod.columns)
    assert detailed([report]).startswith("\nNAME:") or not totals
