"""Each part of the benchmark measures what it says, on simulated GPUs, and leaves nothing behind.

The figures are played by the simulator from what was measured on real ones, so the shares that come out are real claims
about how programs are started and what is read of them, and none about a GPU.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mpsd.bench.parts import PARTS, cost, need, ratio
from mpsd.bench.rules.rows import BenchPart, CostRow, RatioRow, SharingMode, WorkKind
from mpsd.bench.testbeds import BenchContext, BenchShare, CannotMeasure, gather
from mpsd.platform.limits_files import load_limits

WINDOW_S = 0.05
# A simulated program looks every 50 ms who else computes. In one of so many windows both do for most of the time,
# whoever else wants the processors.
LONG_WINDOW_S, WINDOWS = 0.3, 4
OURS = f"mpsd-bench-{os.getpid()}-"  # other tests may run beside these


@pytest.fixture
def steps() -> list[str]:
    return []


@pytest.fixture
def context(steps: list[str]) -> Iterator[BenchContext]:
    yield BenchContext("H200", load_limits(None).facts, WINDOW_S, 1, steps.append)
    assert not list(Path("/tmp").glob(f"{OURS}*"))
    assert not [line for line in _commands() if OURS in line]


def _commands() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue


def test_a_program_that_needs_more_than_its_grant_is_refused_the_rest_and_one_that_needs_less_has_all(
    context: BenchContext, steps: list[str]
) -> None:
    under, over = need(context)
    assert (under.limit_mib, under.result) == (3072, "2:CUDA_ERROR_OUT_OF_MEMORY")
    assert under.got_mib < under.needs_mib
    assert (over.limit_mib, over.result, over.got_mib) == (8192, "0:CUDA_SUCCESS", over.needs_mib)
    assert len(steps) == PARTS[BenchPart.NEED].steps(context)


def test_two_programs_with_20_and_40_percent_have_sms_of_one_to_two_and_do_as_much(
    context: BenchContext, steps: list[str]
) -> None:
    rows: list[RatioRow] = list(ratio(context))
    assert {row.work for row in rows} == {str(work) for work in WorkKind}
    assert {row.sms for row in rows} == {(26, 52)}
    for row in rows:
        if row.work == WorkKind.ARITHMETIC:
            assert row.per_s[1] / row.per_s[0] == pytest.approx(2, rel=0.1)
    assert len(steps) == PARTS[BenchPart.RATIO].steps(context)


def test_the_same_programs_are_measured_under_mps_alone_and_under_mpsd(context: BenchContext, steps: list[str]) -> None:
    rows: list[CostRow] = list(cost(context))
    assert [(row.work, row.programs, row.pair) for row in rows] == [
        (WorkKind.ARITHMETIC, 1, 0),
        (WorkKind.ARITHMETIC, 4, 0),
        (WorkKind.SMALL, 4, 0),
    ]
    assert all(min(row.mps_per_s, row.mpsd_per_s, row.mps_p99_ms, row.mpsd_p99_ms) > 0 for row in rows)
    assert len(steps) == PARTS[BenchPart.COST].steps(context)


def test_without_mps_programs_take_turns_and_with_it_they_run_at_once(context: BenchContext) -> None:
    done = {}
    for mode in SharingMode:
        with context.testbed(mode) as testbed:
            group = gather(testbed, WorkKind.SMALL, [None] * 2, LONG_WINDOW_S, WINDOWS)
            windows = [group.window() for _ in range(WINDOWS)]
            done[mode] = min(sum(one.launches_per_s for one in window) for window in windows)
    # Less than a third where both compute all the time; as much where one begins when the other has ended.
    assert done[SharingMode.TIME_SLICED] < 0.75 * done[SharingMode.MPS]
    assert done[SharingMode.TIME_SLICED] < 0.75 * done[SharingMode.MPSD]


def test_programs_that_never_come_are_reported_and_nothing_of_the_testbed_is_left(context: BenchContext) -> None:
    with context.under_mpsd() as testbed, pytest.raises(EOFError, match="GiB"):
        gather(testbed, WorkKind.SMALL, [BenchShare(4000)], WINDOW_S)


def test_where_gpus_differ_the_one_that_mpsd_fills_first_is_measured_and_no_program_on_another(
    context: BenchContext,
) -> None:
    with replace(context, simulate="H200,T4").under_mpsd() as testbed:
        (first,) = gather(testbed, WorkKind.SMALL, [BenchShare(2)], WINDOW_S).first
        assert (testbed.gpu.name, first["uuid"]) == ("Tesla T4", testbed.gpu.uuid)
        testbed.end_programs()
        with pytest.raises(CannotMeasure, match="gpu1 is measured, but a program was placed on gpu0"):
            gather(testbed, WorkKind.SMALL, [BenchShare(20)], WINDOW_S)


def test_no_more_programs_are_played_than_real_processors_can_turn(context: BenchContext) -> None:
    assert 0 < PARTS[BenchPart.CLIENTS].steps(context) <= 7
