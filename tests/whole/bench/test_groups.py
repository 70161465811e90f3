"""Each group of the benchmark measures what it says, on simulated GPUs, and leaves nothing behind.

The simulator plays what was measured on real ones: the figures say how programs are started and
read, and nothing of a GPU.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mpsd.bench.groups import at_once, cases, priority, shared
from mpsd.bench.rules.rows import (
    BatchWork,
    SharingMode,
    WorkKind,
)
from mpsd.bench.testbeds import BenchContext, BenchShare, CannotMeasure, gather
from mpsd.platform.limits_files import load_limits

WINDOW_S = 0.05
OURS = f"mpsd-bench-{os.getpid()}-"  # other tests may run beside these


@pytest.fixture
def context() -> Iterator[BenchContext]:
    yield BenchContext("H200", load_limits(None).facts, WINDOW_S, 1, lambda _what: None)
    assert not list(Path("/tmp").glob(f"{OURS}*"))
    assert not [line for line in _commands() if OURS in line]


def _commands() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue


def test_programs_are_measured_at_once_and_so_is_what_mpsd_takes(context: BenchContext) -> None:
    for mode in (SharingMode.MPS, SharingMode.MPSD):
        with context.testbed(mode) as testbed:
            row = at_once(context, testbed, WorkKind.SMALL, 2)
        assert (row.mode, row.programs) == (mode, 2)
        assert min(row.launches_per_s, row.p50_ms, row.p99_ms, row.starts_s) > 0
        assert (row.mpsd_cores is None, row.mpsd_mib is None) == ((mode is SharingMode.MPS,) * 2)


def test_requests_are_served_beside_each_kind_of_batch_work(context: BenchContext) -> None:
    rows = list(priority(context))
    assert {row.batch for row in rows} == set(BatchWork)
    assert all(row.p99_ms > 0 for row in rows)
    assert all(bool(row.batch_per_s) is (row.batch is not BatchWork.NONE) for row in rows)


def test_two_programs_with_20_and_40_percent_do_one_to_two(context: BenchContext) -> None:
    with context.under_mpsd() as testbed:
        for work, wanted in cases(104)[-len(WorkKind) :]:
            one, two = shared(context, testbed, work, wanted)
            assert (one.work, one.percent, one.sms, one.beside) == (work, 20, 26, (40,))
            assert (two.work, two.percent, two.sms, two.beside) == (work, 40, 52, (20,))
            if work is WorkKind.ARITHMETIC:
                assert two.launches_per_s / one.launches_per_s == pytest.approx(2, rel=0.1)


def test_where_gpus_differ_the_one_that_mpsd_fills_first_is_measured_and_no_program_on_another(
    context: BenchContext,
) -> None:
    with replace(context, simulate="H200,T4").under_mpsd() as testbed:
        (first,) = gather(testbed, WorkKind.SMALL, [BenchShare(2)], WINDOW_S).first
        assert (testbed.gpu.name, first["uuid"]) == ("Tesla T4", testbed.gpu.uuid)
        testbed.end_programs()
        with pytest.raises(
            CannotMeasure, match="gpu1 is measured, but a program was placed on gpu0"
        ):
            gather(testbed, WorkKind.SMALL, [BenchShare(20)], WINDOW_S)
        with pytest.raises(EOFError, match="GiB"):  # the program never comes
            gather(testbed, WorkKind.SMALL, [BenchShare(4000)], WINDOW_S)
