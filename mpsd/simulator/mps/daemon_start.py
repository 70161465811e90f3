"""Starting the control daemon: its settings, its files in the pipe directory, foreground or background.

One rule: one daemon a pipe directory, which the lock on `control_lock` says, so that whatever a killed one left behind
is no hindrance.
"""

import fcntl
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY, THREAD_PERCENT, VISIBLE_DEVICES, thread_percent_as_read
from mpsd.simulator.gpus import present_gpus, simulated_folder, visible_gpus
from mpsd.simulator.mps.control_daemon import PIPE_DIRECTORY as USUAL_PIPE_DIRECTORY
from mpsd.simulator.mps.daemon import ControlDaemon, DaemonSettings
from mpsd.simulator.mps.messages import MpsLog

LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
USUAL_LOG_DIRECTORY = "/var/log/nvidia-mps"


@dataclass(frozen=True, slots=True)
class _Directories:
    pipe: Path
    log: Path


def start(environment: Mapping[str, str], *, multiuser: bool, foreground: bool) -> int:
    """Run the daemon; returns its exit code, in the background at once."""
    directories = _directories(environment)
    if not directories.pipe.is_dir():
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={directories.pipe}", file=sys.stderr)
        return 1
    lock = _lock(directories.pipe / "control_lock")
    if lock is None:
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    log = MpsLog(1, 1) if foreground else _log_files(directories.log)
    folder = simulated_folder(environment)
    settings = DaemonSettings(
        folder=folder,
        pipe_directory=directories.pipe,
        gpus=visible_gpus(environment.get(VISIBLE_DEVICES), present_gpus(folder, environment)),
        thread_percent=thread_percent_as_read(environment.get(THREAD_PERCENT)),
        multiuser=multiuser,
        uid=os.geteuid(),
    )
    if not foreground and not _in_background():
        return 0
    Path("/proc/self/comm").write_text("nvidia-cuda-mps-control")
    with ControlDaemon(settings, log, lock) as daemon:
        if not foreground:
            _leave_starter()
        daemon.run()
    return 0


def _directories(environment: Mapping[str, str]) -> _Directories:
    """The two directories; only the usual ones are made where they are missing."""
    pipe = Path(environment.get(PIPE_DIRECTORY) or USUAL_PIPE_DIRECTORY)
    log = Path(environment.get(LOG_DIRECTORY) or USUAL_LOG_DIRECTORY)
    if pipe == Path(USUAL_PIPE_DIRECTORY):
        pipe.mkdir(exist_ok=True)
    return _Directories(pipe, log)


def _lock(path: Path) -> int | None:
    """The lock file, locked for as long as it stays open; None when another daemon has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    if os.fstat(file).st_uid == os.geteuid():
        os.fchmod(file, 0o666)
    return file


def _in_background() -> bool:
    """Fork: True in the daemon; False in the starter, once the daemon serves (or has died)."""
    serving, serves = os.pipe()
    if os.fork():
        os.close(serves)
        os.read(serving, 1)
        return False
    os.close(serving)
    os.setsid()
    os.dup2(serves, sys.stdout.fileno())
    os.close(serves)
    return True


def _leave_starter() -> None:
    """Let go of the starter's terminal, and of the pipe on which it waits."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())


def _log_files(directory: Path) -> MpsLog:
    directory.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return MpsLog(
        os.open(directory / "control.log", flags, 0o644),
        os.open(directory / "server.log", flags, 0o644),
    )
