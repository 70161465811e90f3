"""The groups of `mpsd bench`: the programs that each starts, and the rows that it reads from them.

A group calls `context.step` before everything that takes time.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from mpsd.bench import reactions
from mpsd.bench.rules.rows import (
    BatchWork,
    BenchGroup,
    CostRow,
    PriorityRow,
    Row,
    ShareRow,
    SharingMode,
    SharingRow,
    WorkKind,
)
from mpsd.bench.testbeds import (
    BenchContext,
    BenchShare,
    Measured,
    Testbed,
    UnderMpsd,
    first_line,
    gather,
)
from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY

_WINDOWS = 3  # of each measurement whose median counts


# -- sharing: the same in each mode; under mpsd as many as a GPU takes

_FEW = (1, 2, 4, 8)
_MANY = (16, 32, 48)
_SIMULATED_A_CORE = 4  # a simulated client waits for its turn at a real processor


def _loads(context: BenchContext, mode: SharingMode) -> list[tuple[WorkKind, int]]:
    loads = [
        (work, programs) for work in (WorkKind.SMALL, WorkKind.ARITHMETIC) for programs in _FEW
    ]
    if mode is SharingMode.MPSD:
        most = context.facts.fewest_clients
        if context.simulate:
            most = min(most, _SIMULATED_A_CORE * len(os.sched_getaffinity(0)))
        loads += [(WorkKind.SMALL, programs) for programs in _MANY if programs <= most]
    return loads


def sharing(context: BenchContext) -> Iterator[SharingRow | PriorityRow]:
    for mode in SharingMode:
        with context.testbed(mode) as testbed:
            for work, programs in _loads(context, mode):
                if programs <= testbed.gpu.memory_mib // 1024:
                    context.step(f"{programs} × {work}, {mode}")
                    yield at_once(context, testbed, work, programs)
    yield from priority(context)


def at_once(context: BenchContext, testbed: Testbed, work: WorkKind, programs: int) -> SharingRow:
    group = gather(testbed, work, [None] * programs, context.window_s, _WINDOWS)
    mpsd = testbed.mpsd if isinstance(testbed, UnderMpsd) else None
    began = time.monotonic()
    spent_s = mpsd.cpu_s() if mpsd else 0.0
    found = group.total(_WINDOWS)
    cores = mib = None
    if mpsd:
        cores = (mpsd.cpu_s() - spent_s) / (time.monotonic() - began)
        mib = mpsd.resident_mib()
    testbed.end_programs()
    rates = (found.launches_per_s, found.p50_ms, found.p99_ms)
    return SharingRow(testbed.mode, work, programs, *rates, group.starts_s, cores, mib)


# -- priority: requests at a fixed rate beside batch work that fills the GPU, by its priority

_LOAD = 0.2  # of the GPU's time, by the requests
_AFTER_S = 30.0  # beyond a window, for requests that came in it


def priority(context: BenchContext) -> Iterator[PriorityRow]:
    work = WorkKind.ARITHMETIC
    window_s = context.window_s
    with context.under_mpsd() as testbed:
        context.step("how long a request takes")
        request_s = gather(testbed, work, [BenchShare(1)], window_s).total().p50_ms / 1000
        testbed.end_programs()
        per_s = max(_LOAD / request_s, 2 / window_s)
        serving = [f"prepare={work}", *["step", f"serve={per_s:g},{window_s:g}"] * _WINDOWS]
        measured = [f"prepare={work}", *["step", f"measure={window_s:g}"] * _WINDOWS]
        for batch in BatchWork:
            programs = [testbed.start(serving, BenchShare(1))]
            if batch is not BatchWork.NONE:
                below = ("env", f"{CLIENT_PRIORITY}=1") if batch is BatchWork.BELOW_NORMAL else ()
                programs.append(
                    testbed.start_command((*below, *testbed.client, *measured), BenchShare(1))
                )
            for program in programs:
                first_line(testbed, program)
            for window in range(_WINDOWS):
                context.step(
                    f"requests beside batch work: {batch}, window {window + 1} of {_WINDOWS}"
                )
                for program in programs:
                    program.line_with("ready", _AFTER_S)
                for program in programs:
                    program.go_on()
                served = programs[0].line_with("requests", window_s + _AFTER_S)
                rates = [
                    one.line_with("launches_per_s", window_s + _AFTER_S)["launches_per_s"]
                    for one in programs[1:]
                ]
                yield PriorityRow(
                    batch, served["per_s"], served["p50_ms"], served["p99_ms"], sum(rates)
                )
            testbed.end_programs()


# -- shares: the same work under each percentage and two sizes of memory

_SMALL_GIB = 2
_BESIDE = ((10, 30, 60), (20, 80), (40, 50))
_BOTH_SIZES = (10, 50, 100)  # percent that are measured with much memory too
# Exactly 1:2 in SMs too where a card's SMs are given in pairs (26 and 52 of 132).
_ONE_TO_TWO = (20, 40)


def cases(large_gib: int) -> list[tuple[WorkKind, list[BenchShare]]]:
    """What is measured at the same time, with a large grant right after the small one that it is
    compared with."""
    cases = []
    for percent in range(10, 101, 10):
        cases.append((WorkKind.ARITHMETIC, _small([percent])))
        if percent in _BOTH_SIZES:
            cases.append((WorkKind.ARITHMETIC, [BenchShare(large_gib, percent)]))
    cases += [(WorkKind.ARITHMETIC, _small(percents)) for percents in _BESIDE]
    cases += [(work, _small(_ONE_TO_TWO)) for work in WorkKind]
    return cases


def _small(percents: Sequence[int]) -> list[BenchShare]:
    return [BenchShare(_SMALL_GIB, percent) for percent in percents]


def shares(context: BenchContext) -> Iterator[ShareRow]:
    with context.under_mpsd() as testbed:
        for work, wanted in cases(testbed.gpu.memory_mib * 3 // 4 // 1024):
            context.step(f"{work} with {' and '.join(map(str, wanted))}")
            yield from shared(context, testbed, work, wanted)


def shared(
    context: BenchContext, testbed: UnderMpsd, work: WorkKind, wanted: Sequence[BenchShare]
) -> Iterator[ShareRow]:
    group = gather(testbed, work, wanted, context.window_s, _WINDOWS)
    windows = [group.window() for _ in range(_WINDOWS)]
    testbed.end_programs()
    percents = tuple(share.percent for share in wanted)
    for place, share in enumerate(wanted):
        own = [window[place] for window in windows]
        beside = (*percents[:place], *percents[place + 1 :])
        rate = median(one.launches_per_s for one in own)
        yield ShareRow(share.percent, share.memory_gib, own[0].sms, beside, work, rate)


# -- cost: MPS alone and mpsd in pairs
# Never both at once; which goes first alternates, since a card warms up.

_COST_LOADS = ((WorkKind.ARITHMETIC, 1), (WorkKind.ARITHMETIC, 4), (WorkKind.SMALL, 4))
_ROUNDS_A_PAIR = 3  # a pair takes as long as so many rounds of reactions


def cost(context: BenchContext) -> Iterator[CostRow]:
    for pair in range(_pairs(context)):
        order = (SharingMode.MPS, SharingMode.MPSD)
        seen = {
            mode: _cost_of(context, mode, pair)
            for mode in (order if pair % 2 == 0 else order[::-1])
        }
        for (work, programs), mps, mpsd in zip(
            _COST_LOADS, *(seen[mode] for mode in order), strict=True
        ):
            yield CostRow(
                work,
                programs,
                pair,
                mps.launches_per_s,
                mpsd.launches_per_s,
                mps.p99_ms,
                mpsd.p99_ms,
            )


def _pairs(context: BenchContext) -> int:
    return max(1, context.rounds // _ROUNDS_A_PAIR)


def _cost_of(context: BenchContext, mode: SharingMode, pair: int) -> list[Measured]:
    found = []
    with context.testbed(mode) as testbed:
        for work, programs in _COST_LOADS:
            context.step(f"pair {pair + 1} of {_pairs(context)}: {programs} × {work}, {mode}")
            group = gather(testbed, work, [BenchShare(1)] * programs, context.window_s, _WINDOWS)
            found.append(group.total(_WINDOWS))
            testbed.end_programs()
    return found


# CannotMeasure where that is not possible here, LimitBroken where it makes no sense to go on.
GROUPS: dict[BenchGroup, Callable[[BenchContext], Iterator[Row]]] = {
    BenchGroup.SHARING: sharing,
    BenchGroup.SHARES: shares,
    BenchGroup.COST: cost,
    BenchGroup.REACTIONS: reactions.measure,
}
