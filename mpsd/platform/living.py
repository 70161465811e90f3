"""Which of many processes still live, in one question to the kernel.

One rule: a process is in here only with a pidfd of its own, so a later one with the same pid can never stand for it.
"""

import os
import select
import weakref
from collections.abc import Container

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes


class Living:
    """Those that lived when `ask` was called last."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._pids: dict[int, int] = {}  # by pidfd
        self._pidfds: dict[int, int] = {}  # by pid
        weakref.finalize(self, _close, self._pids)

    def add(self, process: ProcessIdentity) -> None:
        """Nothing happens where it is gone, or where there are no pidfds left: then it is not in here."""
        if process.pid in self._pidfds:
            return
        try:
            pidfd = processes.open_pidfd(process)
        except OSError:
            return
        if pidfd is not None:
            self._pids[pidfd], self._pidfds[process.pid] = process.pid, pidfd
            self._poll.register(pidfd, select.POLLIN)

    def __contains__(self, pid: object) -> bool:
        return pid in self._pidfds

    def ask(self) -> set[int]:
        """The pids of those that have ended since, which are in here no more."""
        ended = {self._pids[pidfd] for pidfd, _events in self._poll.poll(0)}
        for pid in ended:
            self._remove(pid)
        return ended

    def keep_only(self, pids: Container[int]) -> None:
        for pid in [pid for pid in self._pidfds if pid not in pids]:
            self._remove(pid)

    def _remove(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid)
        del self._pids[pidfd]
        self._poll.unregister(pidfd)
        os.close(pidfd)


def _close(pidfds: dict[int, int]) -> None:
    for pidfd in pidfds:
        os.close(pidfd)
