"""How long things take, beside the same thing without mpsd, in turns."""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, MEMORY_LIMIT, PIPE_DIRECTORY
from mpsd.platform.limits_files import load_limits
from mpsd.simulator.demo.machine import DemoMachine
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import cards_asked, create_node, open_node
from mpsd.simulator.programs import wait_until
from tests.bench.rows import Row

_ROUNDS = 7
_DEADLINE_S = 20.0


def reactions(machine: DemoMachine) -> Iterator[tuple[str, Row]]:
    """Rows about gpu0 of this machine, and about a bare daemon for its last GPU."""
    holder = machine.run_command(["--gpu-mem", "1"], ["sleep", "1000"])  # keeps the server from denying every client
    wait_until(lambda: machine.node().grants, _DEADLINE_S, "a grant is held")
    bare = BareDaemon(machine.run_directory.parent / "bare")
    try:
        served, by_hand = _alternately(lambda: _restart(machine), bare.restart)
        about = "SIGKILL of the control daemon until a new program has its context; baseline: restarted by hand"
        yield "daemon_killed_to_served", Row(served, "s", None, by_hand, about)
        under_mpsd, alone = _alternately(lambda: _run(machine), lambda: _program(bare.environment))
        about = "`mpsd run` until the program has its context; baseline: the program without mpsd"
        yield "run_to_context", Row(under_mpsd, "s", None, alone, about)
        escapes = [_escape(machine) for _round in range(_ROUNDS)]
        about = "a program that lifts its limit, from the first byte over its grant until its memory is back"
        about += f": the longest of {_ROUNDS}; baseline: the median"
        yield "escape_to_memory_back", Row(max(escapes), "s", None, statistics.median(escapes), about)
        asked, listed = _alternately(
            lambda: _timed(machine.node), lambda: _timed(lambda: list(Path("/proc").iterdir()))
        )
        yield (
            "status",
            Row(asked * 1000, "ms", None, listed * 1000, "a look at the node, asked for; baseline: ls /proc"),
        )
    finally:
        bare.stop()
        holder.end()


def _alternately(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Medians of both, taken in turns, so that whatever else the machine does hits both."""
    pairs = [(one(), other()) for _round in range(_ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _timed(what: Callable[[], object]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began


def _restart(machine: DemoMachine) -> float:
    """Seconds from the kill until a program that comes through the new client/ socket has its context."""
    socket = machine.run_directory / "gpu0" / "client" / "control"
    before, daemon = socket.stat().st_ctime_ns, machine.domain("gpu0").daemon_pid
    assert daemon
    simulation = open_node(machine.run_directory / "simulation")
    began = time.monotonic()
    os.kill(daemon, signal.SIGKILL)
    wait_until(
        lambda: socket.exists() and socket.stat().st_ctime_ns != before, _DEADLINE_S, "the new socket is offered"
    )
    _program(
        {**simulation.environment, PIPE_DIRECTORY: str(socket.parent), CUDA_VISIBLE_DEVICES: simulation.gpus[0].uuid}
    )
    return time.monotonic() - began


def _run(machine: DemoMachine) -> float:
    """Seconds until a program under `mpsd run` has its context."""
    began = time.monotonic()
    program = machine.run(1, ["hold"])
    program.line()
    took_s = time.monotonic() - began
    program.end()
    return took_s


def _program(environment: Mapping[str, str]) -> float:
    """Seconds until a program has its context and has ended."""
    return _timed(lambda: subprocess.run(["sim-cuda"], env=dict(environment), stdout=subprocess.DEVNULL, check=True))


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
        """Seconds from the kill until a program has its context, when somebody restarts it at once."""
        before = self._socket.stat().st_ctime_ns
        began = time.monotonic()
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = self._start()
        wait_until(
            lambda: self._socket.exists() and self._socket.stat().st_ctime_ns != before, _DEADLINE_S, "it listens"
        )
        _program(self.environment)
        return time.monotonic() - began

    def stop(self) -> None:
        self._daemon.kill()
        self._daemon.wait()


def _escape(machine: DemoMachine) -> float:
    """Seconds that a program which lifts its own limit has more than its grant of 1 GiB, looked at every 2 ms."""
    card = open_node(machine.run_directory / "simulation").card(0)
    script = f"{MEMORY_LIMIT}=garbage exec sim-cuda alloc=8000 hold"
    program = machine.run_command(["--gpu-mem", "1"], ["sh", "-c", script])

    def is_over() -> bool:
        return any(one.pid == program.pid and one.held_bytes > 1100 * MIB for one in card.holdings())

    wait_until(is_over, _DEADLINE_S, "it is over its grant")
    began = time.monotonic()
    wait_until(lambda: not is_over(), _DEADLINE_S, "its memory is back")
    took_s = time.monotonic() - began
    program.end()
    card.close()
    return took_s
