"""How long things take, beside the same thing without mpsd, in turns."""

import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, MEMORY_LIMIT, PIPE_DIRECTORY
from mpsd.model.identity import ProcessIdentity
from mpsd.platform.limits_files import load_limits, shipped_folder
from mpsd.platform.processes import identity_of, is_alive, is_stopped
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import cards_asked, create_node, open_node
from mpsd.simulator.own_mpsd import OwnMpsd
from mpsd.simulator.programs import wait_until
from tests.bench.rows import Row, median_row

_ROUNDS = 7
_DRAIN = "end_drain_s: 3"  # as shipped
_DEADLINE_S = 20.0


def reactions(machine: OwnMpsd) -> Iterator[tuple[str, Row]]:
    """Rows about gpu0 of this machine, and about a bare daemon for its last GPU."""
    # keeps the server from denying every client
    holder = machine.run_command(["--gpu-mem", "1"], ["sleep", "1000"])
    wait_until(lambda: machine.node().grants, _DEADLINE_S, "a grant is held")
    bare = BareDaemon(machine.run_directory.parent / "bare")
    try:
        served, by_hand = _alternately(lambda: _restart(machine), bare.restart)
        about = (
            "SIGKILL of the control daemon until a new program has its context; baseline: restarted"
            " by hand"
        )
        yield "daemon_killed_to_served", Row(served, "s", None, by_hand, about)
        under_mpsd, alone = _alternately(lambda: _run(machine), lambda: _program(bare.environment))
        about = "`mpsd run` until the program has its context; baseline: the program without mpsd"
        yield "run_to_context", Row(under_mpsd, "s", None, alone, about)
        yield from _escapes(machine)
        asked, listed = _alternately(
            lambda: _timed(machine.node), lambda: _timed(lambda: list(Path("/proc").iterdir()))
        )
        yield (
            "status",
            Row(
                asked * 1000,
                "ms",
                None,
                listed * 1000,
                "a look at the node, asked for; baseline: ls /proc",
            ),
        )
    finally:
        bare.stop()
        holder.end()


def _alternately(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Medians of both, taken in turns, so that whatever else the machine does hits both."""
    pairs = [(one(), other()) for _round in range(_ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(
        pair[1] for pair in pairs
    )


def _timed(what: Callable[[], object]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began


def _restart(machine: OwnMpsd) -> float:
    """Seconds from the kill until a program that comes through the new client/ socket has its
    context."""
    socket = machine.run_directory / "gpu0" / "client" / "control"
    before, daemon = socket.stat().st_ctime_ns, machine.domain("gpu0").daemon_pid
    assert daemon
    simulation = open_node(machine.run_directory / "simulation")
    began = time.monotonic()
    os.kill(daemon, signal.SIGKILL)
    wait_until(
        lambda: socket.exists() and socket.stat().st_ctime_ns != before,
        _DEADLINE_S,
        "the new socket is offered",
    )
    _program(
        {
            **simulation.environment,
            PIPE_DIRECTORY: str(socket.parent),
            CUDA_VISIBLE_DEVICES: simulation.gpus[0].uuid,
        }
    )
    return time.monotonic() - began


def _run(machine: OwnMpsd) -> float:
    """Seconds until a program under `mpsd run` has its context."""
    began = time.monotonic()
    program = machine.run_command(["--gpu-mem", "1"], ["sim-cuda", "hold"])
    program.line()
    took_s = time.monotonic() - began
    program.end()
    return took_s


def _program(environment: Mapping[str, str]) -> float:
    """Seconds until a program has its context and has ended."""
    return _timed(
        lambda: subprocess.run(
            ["sim-cuda"], env=dict(environment), stdout=subprocess.DEVNULL, check=True
        )
    )


class BareDaemon:
    """A control daemon that nobody supervises, on a simulated machine of its own."""

    def __init__(self, folder: Path) -> None:
        facts = load_limits(None).facts
        node = create_node(folder / "simulation", cards_asked("H200", facts), facts.capabilities)
        (folder / "pipe").mkdir()
        self._socket = folder / "pipe" / "control"
        self.environment = {
            **node.environment,
            PIPE_DIRECTORY: str(folder / "pipe"),
            CUDA_VISIBLE_DEVICES: node.gpus[0].uuid,
        }
        self._daemon = self._start()
        wait_until(self._socket.exists, _DEADLINE_S, "the bare daemon listens")

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["nvidia-cuda-mps-control", "-f", "-M"], env=self.environment, stdout=subprocess.DEVNULL
        )

    def restart(self) -> float:
        """Seconds from the kill until a program has its context, when somebody restarts it at
        once."""
        before = self._socket.stat().st_ctime_ns
        began = time.monotonic()
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = self._start()
        wait_until(
            lambda: self._socket.exists() and self._socket.stat().st_ctime_ns != before,
            _DEADLINE_S,
            "it listens",
        )
        _program(self.environment)
        return time.monotonic() - began

    def stop(self) -> None:
        self._daemon.kill()
        self._daemon.wait()


def _escapes(machine: OwnMpsd) -> Iterator[tuple[str, Row]]:
    """Beside one whose policy has nobody stopped, in turns."""
    with _killing_at_once(machine.run_directory.parent / "at-once") as other:
        pairs = [(_escape(machine), _escape(other)) for _round in range(_ROUNDS)]
    at_once_s = statistics.median(killed.memory_back_s for _stopped, killed in pairs)
    who = "a program that lifts its limit, from the first byte over its grant"
    baseline = "baseline: until its memory is back, killed at once (end_drain_s: 0)"
    stopped_s = [stopped.stopped_s for stopped, _killed in pairs]
    about = f"{who} until it is stopped; {baseline}"
    yield "violation_to_stopped", median_row(stopped_s, "s", None, at_once_s, about)
    back_s = [stopped.memory_back_s for stopped, _killed in pairs]
    about = f"{who} until its memory is back, {_DRAIN} of it for what it had queued; {baseline}"
    yield "violation_to_memory_back", median_row(back_s, "s", None, at_once_s, about)


@contextmanager
def _killing_at_once(folder: Path) -> Iterator[OwnMpsd]:
    limits = folder / "limits"
    shutil.copytree(shipped_folder(), limits)
    policy = limits / "policy.yaml"
    policy.write_text(policy.read_text().replace(_DRAIN, "end_drain_s: 0"))
    machine = OwnMpsd(folder, ["--simulate", "H200", "--limits", str(limits)])
    try:
        machine.wait_until_ready()
        yield machine
    finally:
        machine.stop()


@dataclass(frozen=True, slots=True)
class _Escape:
    """Seconds from the first look that shows it over its grant, looked at every 2 ms."""

    stopped_s: float
    memory_back_s: float


def _escape(machine: OwnMpsd) -> _Escape:
    """By a program which lifts its own limit of 1 GiB."""
    card = open_node(machine.run_directory / "simulation").card(0)
    script = f"{MEMORY_LIMIT}=garbage exec sim-cuda alloc=8000 hold"
    program = machine.run_command(["--gpu-mem", "1"], ["sh", "-c", script])
    process = identity_of(program.pid)
    assert process

    def is_over() -> bool:
        return any(
            one.pid == program.pid and one.held_bytes > 1100 * MIB for one in card.holdings()
        )

    wait_until(is_over, _DEADLINE_S, "it is over its grant")
    began = time.monotonic()
    wait_until(partial(_is_held, process), _DEADLINE_S, "it is stopped")
    stopped_s = time.monotonic() - began
    wait_until(lambda: not is_over(), _DEADLINE_S, "its memory is back")
    memory_back_s = time.monotonic() - began
    program.end()
    card.close()
    return _Escape(stopped_s, memory_back_s)


def _is_held(process: ProcessIdentity) -> bool:
    """Whether it takes nothing more: stopped, or gone."""
    return is_stopped(process) or not is_alive(process)
