"""How soon a program over its grant is stopped and ended, a killed control daemon replaced, a GPU
ready after a fault.

A time counts only if the rest happened too: mpsd ended the program that escaped and its neighbour
computes on, the new program was held to its server's limit, the lingering process of a fault was
ended. Otherwise it is LimitBroken.
"""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from mpsd.bench.rules.rows import Reaction, ReactionRow
from mpsd.bench.testbeds import BenchContext, BenchShare, LimitBroken, UnderMpsd
from mpsd.model.domain import State
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_report import DomainReport, GpuReport
from mpsd.model.violations import ViolationKind
from mpsd.platform import clock, processes
from mpsd.platform.limits_files import load_limits
from mpsd.simulator.gpus import MIB
from mpsd.simulator.programs import JsonProgram, wait_until

# Each gives its client the whole card, whatever its server's limit (driver 580.159.04).
LIFTS = ("5=1G", "garbage", "0=0", "0=", "2147483648", "1G", "0=1G,1=1G")
STARTED_AT_ONCE = "a client of it, and a new program by mpsd run --wait"
_GRANTED_GIB = 2
_TAKEN_MIB = 8192
_FAULTS = 5  # at most: each takes its grace, and then some
_GRACE_S = 1.0
# in a row: mpsd waits before each further start
_EACH_DEATH_IS_THE_FIRST = {"stable_after_s": 0.001}
_DEADLINE_S = 30.0
_LOOK_AT_STATE_S = 0.005  # mpsd answers for it, and has a GPU to put in order


def measure(context: BenchContext) -> Iterator[ReactionRow]:
    with context.under_mpsd(
        restarts=_EACH_DEATH_IS_THE_FIRST, graces={"fault_grace_s": _GRACE_S}
    ) as testbed:
        for part in (_escapes, _restarts, _faults):
            yield from part(context, testbed)
            testbed.end_programs()


@dataclass(frozen=True, slots=True)
class _Escape:
    """How long a program was over its grant until each of its threads was stopped, and until its
    memory was back."""

    stopped_s: float
    memory_back_s: float


def _escapes(context: BenchContext, testbed: UnderMpsd) -> Iterator[ReactionRow]:
    drain_s = load_limits(context.limits).policy.graces.end_drain_s
    neighbour = testbed.start(["work"], BenchShare(4))
    gpu = neighbour.line_with("uuid", _DEADLINE_S)["uuid"]  # binpack puts the others beside it
    for number in range(context.rounds):
        value = LIFTS[number % len(LIFTS)]
        context.step(f"an escape by {value}")
        took = _escape(testbed, gpu, neighbour, value)
        yield ReactionRow(Reaction.STOPPED, number, value, took.stopped_s)
        yield ReactionRow(Reaction.MEMORY_BACK, number, value, took.memory_back_s, drain_s)


def _escape(testbed: UnderMpsd, gpu: str, neighbour: JsonProgram, value: str) -> _Escape:
    """From the first look at NVML that shows it over its grant."""
    program = testbed.start(
        [f"lift={value}", f"alloc={_TAKEN_MIB}", "hold"], BenchShare(_GRANTED_GIB)
    )
    who = f"a program that set its memory limit to {value}"
    granted = _GRANTED_GIB * 1024 * MIB
    process = processes.identity_of(program.pid)

    def used() -> int | None:
        """None: NVML does not say, and it is taken to be as it was."""
        return dict(testbed.nvml.uses(gpu)).get(program.pid, 0)

    def is_over() -> bool:
        return (now := used()) is not None and now > granted

    def is_within() -> bool:
        return (now := used()) is not None and now <= granted

    def is_stopped() -> bool:
        return process is None or processes.is_stopped(process) or not program.is_running

    wait_until(lambda: is_over() or not program.is_running, _DEADLINE_S, f"{who} is over its grant")
    began = time.monotonic()
    if not program.is_running and is_within():
        raise LimitBroken(f"{who} ended before it was seen over its grant: {_last_words(program)}")
    wait_until(is_stopped, _DEADLINE_S, f"{who} is stopped")
    stopped_s = time.monotonic() - began
    wait_until(is_within, _DEADLINE_S, f"{who} is not over its grant any more")
    memory_back_s = time.monotonic() - began
    _check_ended(testbed, program, who)
    _check_computes(neighbour, clock.wall_s(), who)
    program.end()
    return _Escape(stopped_s, memory_back_s)


def _check_ended(testbed: UnderMpsd, program: JsonProgram, who: str) -> None:
    """That mpsd has ended it for what it took."""

    def is_reported() -> bool:
        reported = testbed.mpsd.node().violations
        return reported is not None and any(
            (one.kind, one.pid) == (ViolationKind.MEMORY_OVER_GRANT, program.pid) and one.outcome
            for one in reported.last
        )

    try:
        code = program.exit_code(_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise LimitBroken(f"{who} gave its memory back and was not ended") from None
    if code >= 0:
        raise LimitBroken(f"{who} ended by itself, with code {code}: {_last_words(program)}")
    wait_until(is_reported, _DEADLINE_S, f"mpsd reports how {who} ended", _LOOK_AT_STATE_S)


def _check_computes(neighbour: JsonProgram, since: float, who: str) -> None:
    """since: seconds since 1970."""
    try:
        while neighbour.line_with("launches", _DEADLINE_S)["at"] < since:
            pass
    except EOFError as error:
        raise LimitBroken(f"{who} was ended, and its neighbour with it: {error}") from None


def _restarts(context: BenchContext, testbed: UnderMpsd) -> Iterator[ReactionRow]:
    for number in range(context.rounds):
        context.step("a new program after the control daemon was killed")
        there = testbed.start(["hold"], BenchShare(_GRANTED_GIB))
        gpu = there.line_with("uuid", _DEADLINE_S)["uuid"]
        there.line_with("ready", _DEADLINE_S)
        if number == 0:
            _take_others(testbed, gpu)
        served_s = _restart(testbed, _domain(testbed, gpu), there)
        yield ReactionRow(Reaction.DAEMON, number, STARTED_AT_ONCE, served_s)


def _take_others(testbed: UnderMpsd, gpu: str) -> None:
    """Grants every other GPU away, so that a new program has none but this one to wait for."""
    for one in _others(testbed, gpu):
        testbed.start_command(["sleep", "infinity"], BenchShare((one.promised_mib or 0) // 1024))
    all_taken = "every other GPU is granted"
    wait_until(
        lambda: all(one.granted_mib for one in _others(testbed, gpu)), _DEADLINE_S, all_taken, 0.05
    )


def _others(testbed: UnderMpsd, gpu: str) -> list[GpuReport]:
    return [one for one in testbed.mpsd.node().gpus if one.uuid != gpu]


def _restart(testbed: UnderMpsd, domain: DomainReport, there: JsonProgram) -> float:
    """Seconds from the kill until a program that is started right after it with `mpsd run --wait`,
    as a user does it, has had its context and has ended."""
    daemon = _daemon_of(domain)
    began = time.monotonic()
    if not processes.send_signal(daemon, signal.SIGKILL):
        raise LimitBroken(
            f"the control daemon of {domain.name} ({daemon}) ended before it was killed"
        )
    options = ["--wait", "--timeout", f"{_DEADLINE_S:g}", "--gpu-mem", str(_GRANTED_GIB)]
    program = testbed.mpsd.run_command(options, [*testbed.client, "info"])
    wait_until(
        lambda: not program.is_running, _DEADLINE_S, "a program after the daemon's death has ended"
    )
    served_s = time.monotonic() - began
    _check_served(program)
    _check_let_go(there)
    testbed.mpsd.wait_until_ready()
    return served_s


def _daemon_of(domain: DomainReport) -> ProcessIdentity:
    """The process that mpsd says is its daemon, if that is what it is."""
    found = processes.identity_of(domain.daemon_pid) if domain.daemon_pid else None
    if found is None or "nvidia-cuda-mps-control" not in processes.command_of(found.pid):
        raise LimitBroken(f"{domain.name} has no control daemon: {domain.reason or domain.state}")
    return found


def _check_served(program: JsonProgram) -> None:
    """That the new program had its context, within its grant: beside MPS it would have the whole
    card."""
    try:
        free_mib = program.line_with("meminfo_free_MiB")["meminfo_free_MiB"]
    except EOFError as error:
        raise LimitBroken(
            f"after the control daemon was killed a new program had no context: {error}"
        ) from None
    if program.exit_code() or free_mib > _GRANTED_GIB * 1024:
        what = (
            f"had {free_mib} MiB free under {_GRANTED_GIB} GiB, and ended with code"
            f" {program.exit_code()}"
        )
        raise LimitBroken(f"after the control daemon was killed a new program {what}")
    program.end()


def _check_let_go(there: JsonProgram) -> None:
    """That the client of the daemon that was killed saw it, with CUDA's error 806 or by its own
    end."""
    try:
        with suppress(EOFError):
            there.line_with("broke", _DEADLINE_S)
        there.exit_code()
    except (TimeoutError, subprocess.TimeoutExpired):
        raise LimitBroken(
            "a client of a control daemon that was killed runs on and has seen nothing"
        ) from None
    there.end()


def _faults(context: BenchContext, testbed: UnderMpsd) -> Iterator[ReactionRow]:
    for number in range(min(context.rounds, _FAULTS)):
        context.step("a fault whose process lingers")
        yield ReactionRow(Reaction.FAULT, number, "its process lingers", _fault(testbed), _GRACE_S)


def _fault(testbed: UnderMpsd) -> float:
    """Seconds from the program's own word until its domain serves again."""
    culprit = testbed.start(["fault", "linger"], BenchShare(_GRANTED_GIB))
    gpu = culprit.line_with("uuid", _DEADLINE_S)["uuid"]
    before = _domain(testbed, gpu).faults.count
    bad = culprit.line_with("bad", _DEADLINE_S)["bad"]
    began = time.monotonic()

    def is_over() -> bool:
        domain = _domain(testbed, gpu)
        return domain.state == State.READY and domain.faults.count > before

    # Before its end the GPU cannot serve, and mpsd is not kept from its work by questions.
    wait_until(
        lambda: not culprit.is_running,
        _GRACE_S + _DEADLINE_S,
        "a process that lingers after a fault is ended",
    )
    wait_until(
        is_over, _DEADLINE_S, f"the domain is ready again after a fault ({bad})", _LOOK_AT_STATE_S
    )
    took_s = time.monotonic() - began
    if (code := culprit.exit_code()) >= 0:
        raise LimitBroken(
            f"a process that lingered after a fault ended by itself, with code {code}"
        )
    culprit.end()
    return took_s


def _domain(testbed: UnderMpsd, gpu: str) -> DomainReport:
    return next(domain for domain in testbed.mpsd.node().domains if gpu in domain.gpus)


def _last_words(program: JsonProgram) -> str:
    """What it said that nobody has read, and what it complained of; it has ended, or is about
    to."""
    said: list[str] = []
    while True:
        try:
            said.append(str(program.line()))
        except (EOFError, TimeoutError) as error:
            return "; ".join([*said, str(error)])
