"""The parts of `mpsd bench`: the programs that each starts, and the rows that it reads from them.

A part calls `context.step` before everything that takes time, as often as `steps` of its entry in PARTS says, or less
often on a card that is too small for some of it. mpsd does not import PyTorch: resnet.py is a program of its own.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mpsd.bench import reactions
from mpsd.bench.rules.rows import (
    BatchWork,
    BenchPart,
    ClientsRow,
    CostRow,
    NeedRow,
    PriorityRow,
    RatioRow,
    Row,
    ShareRow,
    SharingMode,
    SharingRow,
    SizeRow,
    WorkKind,
)
from mpsd.bench.testbeds import BenchContext, BenchShare, CannotMeasure, Measured, Testbed, first_line, gather
from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY

_WINDOWS = 3  # of each measurement whose median counts


@dataclass(frozen=True, slots=True)
class Part:
    """One part. measure: CannotMeasure where that is not possible here, LimitBroken where it makes no sense to go on.

    steps: how often `measure` calls `step`, at most.
    """

    steps: Callable[[BenchContext], int]
    measure: Callable[[BenchContext], Iterator[Row]]


# -- sharing: the same programs and the same windows in each mode ----------------------------------------------------

_SHARING_LOADS = tuple((work, n) for work in (WorkKind.SMALL, WorkKind.ARITHMETIC) for n in (1, 2, 4, 8))


def sharing(context: BenchContext) -> Iterator[SharingRow]:
    for mode in SharingMode:
        with context.testbed(mode) as testbed:
            for work, programs in _SHARING_LOADS:
                context.step(f"{programs} × {work}, {mode}")
                found = gather(testbed, work, [None] * programs, context.window_s).total()
                testbed.end_programs()
                yield SharingRow(mode, work, programs, found.launches_per_s, found.p50_ms, found.p99_ms)


# -- shares: the same amount of arithmetic under every percentage, alone and beside others ---------------------------

_PERCENTS = (*((percent,) for percent in range(10, 101, 10)), (10, 30, 60), (20, 80), (40, 50))


def shares(context: BenchContext) -> Iterator[ShareRow]:
    with context.under_mpsd() as testbed:
        for percents in _PERCENTS:
            context.step(" and ".join(f"{percent} %" for percent in percents) + " of the threads")
            wanted = [BenchShare(2, percent) for percent in percents]
            group = gather(testbed, WorkKind.ARITHMETIC, wanted, context.window_s, _WINDOWS)
            windows = [group.window() for _ in range(_WINDOWS)]
            testbed.end_programs()
            for place, (percent, own) in enumerate(zip(percents, zip(*windows, strict=True), strict=True)):
                beside = (*percents[:place], *percents[place + 1 :])
                rate = median(one.launches_per_s for one in own)
                yield ShareRow(percent, own[0].sms, beside, WorkKind.ARITHMETIC, rate)


# -- ratio: two programs with shares of 1:2 --------------------------------------------------------------------------

# Exactly 1:2 in SMs too where a card's SMs are given in pairs (26 and 52 of 132).
_ONE_TO_TWO = (20, 40)


def ratio(context: BenchContext) -> Iterator[RatioRow]:
    with context.under_mpsd() as testbed:
        for work in WorkKind:
            wanted = [BenchShare(4, percent) for percent in _ONE_TO_TWO]
            group = gather(testbed, work, wanted, context.window_s, _WINDOWS)
            for window in range(_WINDOWS):
                context.step(f"two programs of {work}, 20 % and 40 %, window {window + 1} of {_WINDOWS}")
                one, two = group.window()
                rates = (one.launches_per_s, two.launches_per_s)
                yield RatioRow(work, None, _ONE_TO_TWO, (one.sms, two.sms), rates, "launches")
            testbed.end_programs()


# -- sizes: the same work under a small and a large grant of memory, one right after the other -----------------------

_SIZE_PERCENTS = (10, 50, 100)


def sizes(context: BenchContext) -> Iterator[SizeRow]:
    with context.under_mpsd() as testbed:
        large_gib = testbed.gpu.memory_mib * 3 // 4 // 1024
        for percent in _SIZE_PERCENTS:
            for memory_gib in (2, large_gib):
                context.step(f"{percent} % and {memory_gib} GiB")
                wanted = [BenchShare(memory_gib, percent)]
                found = gather(testbed, WorkKind.ARITHMETIC, wanted, context.window_s, _WINDOWS).total(_WINDOWS)
                testbed.end_programs()
                yield SizeRow(percent, memory_gib, found.launches_per_s)


# -- need: a program that takes memory piece by piece, under less and under more than it needs -----------------------

_NEEDS_MIB = 7600  # 7.6 GB, and the limits 3276 and 8192 MiB: the published report of eGPU
_LIMITS_GIB = (3, 8)  # grants are whole GiB
_ALLOCATED_S = 60.0


def need(context: BenchContext) -> Iterator[NeedRow]:
    with context.under_mpsd() as testbed:
        for limit_gib in _LIMITS_GIB:
            context.step(f"a program that needs {_NEEDS_MIB} MiB under {limit_gib} GiB")
            program = testbed.start([f"alloc={_NEEDS_MIB}"], BenchShare(limit_gib))
            first_line(testbed, program)
            line = program.line_with("alloc_MiB", _ALLOCATED_S)
            testbed.end_programs()
            yield NeedRow(_NEEDS_MIB, limit_gib * 1024, line["alloc_MiB"], line["rc"])


# -- cost: MPS alone and mpsd in pairs, never both at once; which goes first alternates, since a card warms up -------

_COST_LOADS = ((WorkKind.ARITHMETIC, 1), (WorkKind.ARITHMETIC, 4), (WorkKind.SMALL, 4))
_ROUNDS_A_PAIR = 3  # a pair takes as long as so many rounds of other parts


def cost(context: BenchContext) -> Iterator[CostRow]:
    for pair in range(_pairs(context)):
        order = (SharingMode.MPS, SharingMode.MPSD)
        seen = {mode: _cost_of(context, mode, pair) for mode in (order if pair % 2 == 0 else order[::-1])}
        for (work, programs), mps, mpsd in zip(_COST_LOADS, *(seen[mode] for mode in order), strict=True):
            yield CostRow(work, programs, pair, mps.launches_per_s, mpsd.launches_per_s, mps.p99_ms, mpsd.p99_ms)


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


# -- clients: more and more programs, up to as many as a GPU takes and has memory for --------------------------------

_CLIENTS = (1, 2, 4, 8, 16, 32, 48)
_SIMULATED_A_CORE = 4  # a simulated client waits for its turn at a real processor


def _client_counts(context: BenchContext) -> tuple[int, ...]:
    most = context.facts.fewest_clients
    if context.simulate:
        most = min(most, _SIMULATED_A_CORE * len(os.sched_getaffinity(0)))
    return tuple(number for number in _CLIENTS if number <= most)


def clients(context: BenchContext) -> Iterator[ClientsRow]:
    with context.under_mpsd() as testbed:
        for programs in _client_counts(context):
            if programs > testbed.gpu.memory_mib // 1024:
                return
            context.step(f"{programs} programs at once")
            group = gather(testbed, WorkKind.SMALL, [BenchShare(1)] * programs, context.window_s, _WINDOWS)
            began, spent_s = time.monotonic(), testbed.mpsd.cpu_s()
            found = group.total(_WINDOWS)
            cores = (testbed.mpsd.cpu_s() - spent_s) / (time.monotonic() - began)
            testbed.end_programs()
            rates = (found.launches_per_s, found.p50_ms, found.p99_ms)
            yield ClientsRow(programs, WorkKind.SMALL, *rates, group.starts_s, cores, testbed.mpsd.resident_mib())


# -- priority: requests at a fixed rate beside batch work that fills the GPU, by its priority -------------------------

_LOAD = 0.2  # of the GPU's time, by the requests
_AFTER_S = 30.0  # beyond a window, for requests that came in it


def priority(context: BenchContext) -> Iterator[PriorityRow]:
    work, window_s = WorkKind.ARITHMETIC, context.window_s
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
                programs.append(testbed.start_command((*below, *testbed.client, *measured), BenchShare(1)))
            for program in programs:
                first_line(testbed, program)
            for window in range(_WINDOWS):
                context.step(f"requests beside batch work: {batch}, window {window + 1} of {_WINDOWS}")
                for program in programs:
                    program.line_with("ready", _AFTER_S)
                for program in programs:
                    program.go_on()
                served = programs[0].line_with("requests", window_s + _AFTER_S)
                rates = [one.line_with("launches_per_s", window_s + _AFTER_S)["launches_per_s"] for one in programs[1:]]
                yield PriorityRow(batch, served["per_s"], served["p50_ms"], served["p99_ms"], sum(rates))
            testbed.end_programs()


# -- torch: ResNet-50 under the PyTorch of the user's own Python, with shares of 1:2 ---------------------------------

# What resnet.py calls it, what a reader does, and the batches.
TORCH_KINDS = (
    ("train", "ResNet-50 training", (16, 32, 64, 128)),
    ("infer", "ResNet-50 inference", (1, 8, 32, 128)),
    ("infer-graph", "ResNet-50 inference, CUDA graph", (1, 8, 32, 128)),
)
_TORCH_GIB = 16  # training with 128 images takes about 12
_LOADED_S = 240.0  # PyTorch is read from a disk that may be cold, and cuDNN looks for its fastest kernels
_PASS_S = 60.0  # a pass may be long with few SMs


def torch_steps(context: BenchContext) -> int:
    return 0 if _no_torch(context) else 1 + sum(len(batches) for _kind, _name, batches in TORCH_KINDS)


def torch(context: BenchContext) -> Iterator[RatioRow]:
    if obstacle := _no_torch(context):
        raise CannotMeasure(obstacle)
    with context.under_mpsd() as testbed:
        has_gib, needs_gib = testbed.gpu.memory_mib // 1024, len(_ONE_TO_TWO) * _TORCH_GIB + 1
        if has_gib < needs_gib:
            raise CannotMeasure(f"two programs need {needs_gib} GiB, and {testbed.gpu.name} has {has_gib}")
        program = str(Path(__file__).with_name("resnet.py"))
        yield from torch_pairs(context, testbed, (sys.executable, "-P", program))


def torch_pairs(context: BenchContext, testbed: Testbed, command: Sequence[str]) -> Iterator[RatioRow]:
    """Two programs that print resnet.py's lines go through every kind and batch, and begin each together."""
    context.step("loading PyTorch")
    wanted = [(kind, name, batch) for kind, name, batches in TORCH_KINDS for batch in batches]
    words = [*command, f"{context.window_s:g}", *(f"{kind}={batch}" for kind, _name, batch in wanted)]
    programs = [testbed.start_command(words, BenchShare(_TORCH_GIB, percent)) for percent in _ONE_TO_TWO]
    for _kind, name, batch in wanted:
        sms = [program.line_with("ready", _LOADED_S)["sms"] for program in programs]
        context.step(f"two programs of {name}, batch {batch}, 20 % and 40 %")
        for program in programs:
            program.go_on()
        per_s = [program.line_with("per_s", context.window_s + _PASS_S)["per_s"] for program in programs]
        yield RatioRow(name, batch, _ONE_TO_TWO, (sms[0], sms[1]), (per_s[0], per_s[1]), "images")
    testbed.end_programs()


def _no_torch(context: BenchContext) -> str:
    """Why ResNet-50 cannot be run; empty where it can."""
    if context.simulate:
        return "simulated GPUs run no PyTorch"
    missing = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    python = f"{sys.executable} has no {' and no '.join(missing)}"
    return f"{python}; `{sys.executable} -m pip install {' '.join(missing)}` brings it"


PARTS: dict[BenchPart, Part] = {
    BenchPart.SHARING: Part(lambda _context: len(SharingMode) * len(_SHARING_LOADS), sharing),
    BenchPart.SHARES: Part(lambda _context: len(_PERCENTS), shares),
    BenchPart.RATIO: Part(lambda _context: len(WorkKind) * _WINDOWS, ratio),
    BenchPart.SIZES: Part(lambda _context: 2 * len(_SIZE_PERCENTS), sizes),
    BenchPart.NEED: Part(lambda _context: len(_LIMITS_GIB), need),
    BenchPart.COST: Part(lambda context: 2 * _pairs(context) * len(_COST_LOADS), cost),
    BenchPart.CLIENTS: Part(lambda context: len(_client_counts(context)), clients),
    BenchPart.PRIORITY: Part(lambda _context: 1 + len(BatchWork) * _WINDOWS, priority),
    BenchPart.REACTIONS: Part(reactions.steps, reactions.measure),
    BenchPart.TORCH: Part(torch_steps, torch),
}
