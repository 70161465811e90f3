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

from mpsd.bench import clients, cost, need, ratio
from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, CannotMeasure, gather
from mpsd.bench.rules.rows import CostRow, RatioRow, SharingMode, WorkKind
from mpsd.platform.limits_files import load_limits

WINDOW_S = 0.05
# A simulated program looks every 50 ms who else computes. In one of so many windows both do for most of the time,
# whoever else wants the processors.
LONG_WINDOW_S, WINDOWS = 0.3, 4
OURS = f"mpsd-bench-{os.getpid()}-"  # other tests may run beside these


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def here(said: list[str]) -> Iterator[BenchContext]:
    yield BenchContext("H200", load_limits(None).facts, WINDOW_S, 1, said.append)
    assert not list(Path("/tmp").glob(f"{OURS}*"))
    assert not [line for line in _commands() if OURS in line]


def _commands() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue


def test_a_program_that_needs_more_than_its_grant_is_refused_the_rest_and_one_that_needs_less_has_all(
    here: BenchContext, said: list[str]
) -> None:
    under, over = need.measure(here)
    assert (under.limit_mib, under.result) == (3072, "2:CUDA_ERROR_OUT_OF_MEMORY")
    assert under.got_mib < under.needs_mib
    assert (over.limit_mib, over.result, over.got_mib) == (8192, "0:CUDA_SUCCESS", over.needs_mib)
    assert len(said) == need.steps(here)


def test_two_programs_with_20_and_40_percent_have_sms_of_one_to_two_and_do_as_much(
    here: BenchContext, said: list[str]
) -> None:
    rows: list[RatioRow] = list(ratio.measure(here))
    assert {row.work for row in rows} == {str(work) for work in WorkKind}
    assert {row.sms for row in rows} == {(26, 52)}
    for row in rows:
        if row.work == WorkKind.ARITHMETIC:
            assert row.per_s[1] / row.per_s[0] == pytest.approx(2, rel=0.1)
    assert len(said) == ratio.steps(here)


def test_the_same_programs_are_measured_under_mps_alone_and_under_mpsd(here: BenchContext, said: list[str]) -> None:
    rows: list[CostRow] = list(cost.measure(here))
    assert [(row.work, row.programs, row.pair) for row in rows] == [
        (WorkKind.ARITHMETIC, 1, 0),
        (WorkKind.ARITHMETIC, 4, 0),
        (WorkKind.SMALL, 4, 0),
    ]
    assert all(min(row.mps_per_s, row.mpsd_per_s, row.mps_p99_ms, row.mpsd_p99_ms) > 0 for row in rows)
    assert len(said) == cost.steps(here)


def test_without_mps_programs_take_turns_and_with_it_they_run_at_once(here: BenchContext) -> None:
    done = {}
    for mode in SharingMode:
        with here.ground(mode) as ground:
            crowd = gather(ground, WorkKind.SMALL, [None] * 2, LONG_WINDOW_S, WINDOWS)
            windows = [crowd.measure(LONG_WINDOW_S) for _ in range(WINDOWS)]
            done[mode] = min(sum(one.launches_per_s for one in window) for window in windows)
    # Less than a third where both compute all the time; as much where one begins when the other has ended.
    assert done[SharingMode.TIME_SLICED] < 0.75 * done[SharingMode.MPS]
    assert done[SharingMode.TIME_SLICED] < 0.75 * done[SharingMode.MPSD]


def test_programs_that_never_come_are_said_and_nothing_of_the_ground_is_left(here: BenchContext) -> None:
    with here.under_mpsd() as ground, pytest.raises(EOFError, match="GiB"):
        gather(ground, WorkKind.SMALL, [BenchShare(4000)], WINDOW_S)


def test_where_gpus_differ_the_one_that_mpsd_fills_first_is_measured_and_no_program_on_another(
    here: BenchContext,
) -> None:
    with replace(here, simulate="H200,T4").under_mpsd() as ground:
        (said,) = gather(ground, WorkKind.SMALL, [BenchShare(2)], WINDOW_S).first
        assert (ground.gpu.name, said["uuid"]) == ("Tesla T4", ground.gpu.uuid)
        ground.end_programs()
        with pytest.raises(CannotMeasure, match="gpu1 is measured, and a program was put on gpu0"):
            gather(ground, WorkKind.SMALL, [BenchShare(20)], WINDOW_S)


def test_no_more_programs_are_played_than_real_processors_can_turn(here: BenchContext) -> None:
    assert 0 < clients.steps(here) <= 7
