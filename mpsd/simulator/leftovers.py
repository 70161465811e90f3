"""What a verb that plays or measures may leave behind, found and removed: processes, cgroups, a folder.

One rule: whatever it starts descends from it, whoever its parent was, so nothing can get lost on the way.
"""

import ctypes
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_BECOME_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_CGROUPS = Path("/sys/fs/cgroup")
_DEADLINE_S = 10.0


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)


def processes() -> list[psutil.Process]:
    """All descendants that run."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def cgroups(name: str) -> list[Path]:
    """The cgroups below the one of this name at the top of any hierarchy, it last."""
    tops = [top for top in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if top.is_dir()]
    return [cgroup for top in tops for cgroup in (*_below(top), top)]


def mounts(folder: Path) -> list[str]:
    """Those of this process's mounts that have something to do with the folder."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]


def remove(folder: Path, cgroup: str) -> None:
    """Kills what still runs, then removes the rest. TimeoutError where something cannot be killed."""
    end_all()
    for each in cgroups(cgroup):
        _remove_cgroup(each)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(spared: Collection[psutil.Process] = ()) -> None:
    """Kills every descendant but these, and theirs. TimeoutError where one cannot be killed."""
    ends = time.monotonic() + _DEADLINE_S
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
    """The descendants that neither are among these nor descend from one of them; those that have ended too."""
    found = psutil.Process().children(recursive=True)
    for process in spared:
        with suppress(psutil.NoSuchProcess):
            found = [one for one in found if one not in {process, *process.children(recursive=True)}]
    return found


def _remove_cgroup(cgroup: Path) -> None:
    """The kernel lets go of its last process a moment after that has ended."""
    ends = time.monotonic() + _DEADLINE_S
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
