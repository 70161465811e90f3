"""`mpsd up` as a process of one's own, in a run directory of its own, and programs under it.

It starts, asks and stops, and knows nothing of what should happen.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from mpsd.model.node_report import DomainReport, NodeReport
from mpsd.platform import local_api
from mpsd.platform.settings import settings
from mpsd.simulator.programs import JsonProgram, wait_until

_DEADLINE_S = 20.0
_MPSD = (sys.executable, "-m", "mpsd")


class OwnMpsd:
    """Its run directory is folder/run, its log folder/mpsd.log."""

    def __init__(
        self, folder: Path, options: Sequence[str], environment: Mapping[str, str] = os.environ
    ) -> None:
        """options: of `mpsd up`."""
        self._settings = settings(run_directory=str(folder / "run"), environment={})
        self._log = folder / "mpsd.log"
        self._environment = {**environment, "MPSD_RUN_DIR": str(self._settings.run_directory)}
        self._programs: list[JsonProgram] = []
        with self._log.open("ab") as log:
            self._up = subprocess.Popen(
                [*_MPSD, "up", "--log-format", "json", *options],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
                # so that Ctrl-C in the terminal reaches mpsd by way of stop() alone
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of `mpsd up`."""
        return self._up.pid

    def cpu_s(self) -> float:
        """Processor time of `mpsd up` so far, its control commands included."""
        return sum(psutil.Process(self.pid).cpu_times()[:4])

    def resident_mib(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 1024**2

    @property
    def run_directory(self) -> Path:
        return self._settings.run_directory

    def node(self) -> NodeReport:
        """What it says of this machine. NotRunning, TimeoutError."""
        _status, body = local_api.ask(self._settings.socket, "GET", "/v1/node")
        return msgspec.json.decode(body, type=NodeReport)

    def domain(self, name: str) -> DomainReport:
        return next(domain for domain in self.node().domains if domain.name == name)

    def wait_until_ready(self, deadline_s: float = _DEADLINE_S) -> float:
        """Waits until every domain takes programs; the seconds that took. TimeoutError; EOFError
        where it has ended."""
        began = time.monotonic()
        wait_until(
            self._is_ready, deadline_s, f"every domain is ready; {self._log} says why not", 0.005
        )
        return time.monotonic() - began

    def _is_ready(self) -> bool:
        if self._up.poll() is not None:
            raise EOFError(f"mpsd ended with code {self._up.returncode}: {self._log.read_text()}")
        try:
            node = self.node()
        except local_api.NotRunning:
            return False
        return len(node.domains) == len(node.gpus) and all(
            domain.state == "ready" for domain in node.domains
        )

    def run_command(self, options: Sequence[str], command: Sequence[str]) -> JsonProgram:
        """Starts any command under `mpsd run` with these options."""
        program = JsonProgram([*_MPSD, "run", *options, "--", *command], self._environment)
        self._programs.append(program)
        return program

    def stop(self, deadline_s: float = _DEADLINE_S) -> int:
        """Ends every program, then mpsd as Ctrl-C would; its exit code.
        subprocess.TimeoutExpired."""
        for program in self._programs:
            program.end()
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGINT)
        return self._up.wait(deadline_s)


# -- what a demo or measurement may leave behind: processes, cgroups, a folder
# Whatever it starts descends from it, even after its parent has ended, so nothing can get lost.

_BECOME_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_CGROUPS = Path("/sys/fs/cgroup")
_CLEANING_DEADLINE_S = 10.0


def adopt_orphans(*, adopted: bool = True) -> None:
    """Whether a descendant whose parent ends becomes a child of this process."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, int(adopted), 0, 0, 0)


def processes() -> list[psutil.Process]:
    """All descendants that run."""
    found = psutil.Process().children(recursive=True)
    return [
        process
        for process in found
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def cgroups(name: str) -> list[Path]:
    """The cgroups below the one of this name at the top of any hierarchy, it last."""
    tops = [top for top in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if top.is_dir()]
    return [cgroup for top in tops for cgroup in (*_below(top), top)]


def mounts(folder: Path) -> list[str]:
    """Those of this process's mounts that have something to do with the folder."""
    return [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line
    ]


def remove(folder: Path, cgroup: str) -> None:
    """Kills what still runs, then removes the rest. TimeoutError where something cannot be
    killed."""
    end_all()
    for each in cgroups(cgroup):
        _remove_cgroup(each)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(spared: Collection[psutil.Process] = ()) -> None:
    """Kills every descendant but these, and theirs. TimeoutError where one cannot be killed."""
    ends = time.monotonic() + _CLEANING_DEADLINE_S
    while left := _not_of(spared):
        if time.monotonic() > ends:
            raise TimeoutError(f"cannot be ended: {left}")
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _not_of(spared: Collection[psutil.Process]) -> list[psutil.Process]:
    """The descendants that neither are among these nor descend from one of them; those that have
    ended too."""
    found = psutil.Process().children(recursive=True)
    for process in spared:
        with suppress(psutil.NoSuchProcess):
            found = [
                one for one in found if one not in {process, *process.children(recursive=True)}
            ]
    return found


def _remove_cgroup(cgroup: Path) -> None:
    """The kernel lets go of its last process a moment after that has ended."""
    ends = time.monotonic() + _CLEANING_DEADLINE_S
    while time.monotonic() < ends:
        try:
            cgroup.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.005)
        else:
            return


def _below(top: Path) -> Iterator[Path]:
    """The innermost first."""
    for folder, _folders, _files in os.walk(top, topdown=False):
        if folder != str(top):
            yield Path(folder)
