"""Hostile processes that fork, end, exec, are traced, stopped or killed while they are read: a scan
comes to its end, stays small, and sees the neighbour.

    python -m tests.fuzz.hostile_processes 60          # as root, with a new seed
    python -m tests.fuzz.hostile_processes 60 SEED     # the same processes again

tests/watchdog/test_hostile_processes.py has a short run.
"""

import ctypes
import faulthandler
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.simulator.card import MPS_CLIENT, ContextClaim
from mpsd.watchdog.managed_memory import ManagedMemory
from mpsd.watchdog.scanner import Owners
from tests.fuzz.control_socket import a_seed
from tests.watchdog.test_scanner import World, one_gpu

_HOSTILE = str(Path(__file__).parents[1] / "world/hostile_process.py")
_MIB, _TIB = 1024**2, 1024**4
_HOW = (
    *(("range", 100 * _TIB), ("range", 4096), ("region", 1024 * _MIB), ("region", 6_000_000)),
    *(("stuck", 0), ("maps", 64_000), ("maps", 2000), ("named", 0), ("renamed", 512 * _MIB)),
)
_MOST_MIB = 96  # that this process may grow by
_HANGS_S = 120  # after which a round is given up
_SEIZE, _INTERRUPT = 0x4206, 0x4207  # of linux/ptrace.h


def _trace(pid: int) -> None:
    ptrace = ctypes.CDLL(None).ptrace
    if ptrace(_SEIZE, pid, None, None) == 0 and ptrace(_INTERRUPT, pid, None, None) == 0:
        os.waitpid(pid, 0)  # its stop, which `Popen` would take for its end


def _sends(signum: signal.Signals) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, signum)


MEANWHILE: Mapping[str, Callable[[int], None]] = {
    "stays": _sends(signal.SIGCONT),
    "forks": _sends(signal.SIGUSR1),
    "execs": _sends(signal.SIGUSR2),
    "ends": _sends(signal.SIGTERM),
    "is killed": _sends(signal.SIGKILL),
    "is stopped": _sends(signal.SIGSTOP),
    "is traced": _trace,
}
Round = tuple[str, int, str, int]  # how, its size, what it does meanwhile, and before which scan


def rounds(seed: int) -> Iterator[Round]:
    """Without end."""
    choice = random.Random(seed)
    while True:
        how, size = choice.choice(_HOW)
        yield how, size, choice.choice([*MEANWHILE]), choice.randrange(4)


class Scanned:
    """A GPU on which a neighbour's process is, and a hostile one at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scanner = world.scanner()
        self._neighbour = world.put(MPS_CLIENT, "a", **{MEMORY_LIMIT: "0=1G"})
        self._now = 0.0
        self._before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def play(self, played: Round) -> None:
        how, size, meanwhile, at = played
        command = [sys.executable, _HOSTILE, how, str(size)]
        with subprocess.Popen(command, stdout=-1, env={"MPSD_GRANT": "a"}) as process:
            try:
                assert process.stdout
                assert process.stdout.readline(), played
                self._world.card.claim(ContextClaim(process.pid, MPS_CLIENT, 100 * _MIB))
                memory = ManagedMemory(24_000)
                for number in range(6):
                    if number == at:
                        MEANWHILE[meanwhile](process.pid)
                    self._scan(process.pid, memory, number, played)
            finally:
                process.kill()

    def _scan(self, pid: int, memory: ManagedMemory, number: int, played: Round) -> None:
        owners = Owners(grants=frozenset({"a"}), holders={pid: "a"}, capped=frozenset({"a"}))
        scan = self._scanner.scan(owners, sure=True)
        assert not scan.unseen, played
        (neighbour,) = (one for one in scan.clients if one.pid == self._neighbour)
        assert neighbour.environment, played
        assert neighbour.environment[MEMORY_LIMIT] == "0=1G", played
        self._now += 1.0
        uses = ((pid, 0), (self._neighbour, 0))
        memory.look(300 + 200 * number, uses, lambda _pid: 1, self._now)
        assert self._neighbour not in memory.of, played
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._before_kib
        assert grown_kib < _MOST_MIB * 1024, played


def main() -> None:
    seed = a_seed()
    if len(sys.argv) > 2:
        seed = int(sys.argv[2])
    print(f"hostile processes: {sys.argv[1]} s, seed {seed}", flush=True)
    ends = time.monotonic() + float(sys.argv[1])
    count = 0
    with tempfile.TemporaryDirectory() as folder, one_gpu(Path(folder)) as world:
        scanned = Scanned(world)
        for played in rounds(seed):
            if time.monotonic() >= ends:
                break
            faulthandler.dump_traceback_later(_HANGS_S, exit=True)
            scanned.play(played)
            count += 1
        faulthandler.cancel_dump_traceback_later()
    print(f"  {count} processes; their neighbour was seen at every scan")


if __name__ == "__main__":
    main()
