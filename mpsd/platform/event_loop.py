"""The event loop of every long-running process of mpsd."""

import asyncio
import ctypes
import errno
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import life, processes
from mpsd.platform.logs import Logger


def expect_long_life() -> None:
    """For a server that has started: the garbage collector looks at less, and less often. A full
    look over a started webhook took 26 ms; requests leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


class Stop(asyncio.Event):
    """Set by the first SIGINT or SIGTERM, whose name is then in `signal`."""

    signal = ""
    hurried = False


def until_signalled(again: Callable[[], None]) -> Stop:
    """`again` is called at the second signal. The third ends the process at once."""
    stop = Stop()

    def signalled(signum: signal.Signals) -> None:
        if not stop.is_set():
            stop.signal = signum.name
            stop.set()
        elif not stop.hurried:
            stop.hurried = True
            again()
        else:
            life.give_up(f"ended by a third {signum.name}")

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, signalled, signum)
    return stop


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Waits for the first to end, and raises its error."""
    done, _going_on = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        life.notice(task)
        task.result()


_REMEDIES = {
    errno.EMFILE: "raise this process's limit of open files (LimitNOFILE), or see what holds them",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max), or see what holds them",
    errno.EAGAIN: "raise the limit of processes (TasksMax, kernel.pid_max), or see what runs",
    errno.ENOMEM: "free memory, or raise mpsd's limit of it",
}
_TELL_S = 60.0


class Shortages:
    """Lets a loop outlive a step that failed for want of descriptors, memory, space or processes;
    logged once a minute at most."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._reported_at = float("-inf")

    @contextmanager
    def survived(self, step: str) -> Iterator[None]:
        try:
            yield
        except (OSError, MemoryError) as error:
            if not processes.is_shortage(error):
                raise
            self.tell(step, error)

    def tell(self, step: str, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._reported_at >= _TELL_S:
            self._reported_at = now
            number = getattr(error, "errno", None) or errno.ENOMEM
            remedy = _REMEDIES.get(number, "free space where mpsd writes, such as /run")
            why = os.strerror(number)
            self._log.error("tried again later", step=step, reason=why, remedy=remedy)


_HOLD_AGAIN_S = 1.0


class DeathWatch:
    """Calls back, once, when a process ends: by pidfd. While there is no descriptor for it, it
    counts as alive, and is looked at every second.

    status: of `processes.exit_status`; None before, and where nobody says.
    """

    def __init__(self, process: ProcessIdentity, on_end: Callable[[], None]) -> None:
        self._process = process
        self._on_end = on_end
        self._descriptor: int | None = None
        self._again: asyncio.TimerHandle | None = None  # while there is no descriptor
        self.status: int | None = None
        self._hold()

    def _hold(self) -> None:
        loop = asyncio.get_running_loop()
        self._again = None
        try:
            self._descriptor = processes.open_pidfd(self._process)
            if self._descriptor is not None:
                loop.add_reader(self._descriptor, self._ended)
        except OSError as error:
            self.close()
            if not processes.is_shortage(error):
                raise
            self._again = loop.call_later(_HOLD_AGAIN_S, self._hold)
        else:
            if self._descriptor is None:
                loop.call_soon(self._on_end)

    @property
    def alive(self) -> bool:
        return self._descriptor is not None or self._again is not None

    def _ended(self) -> None:
        if self._descriptor is not None:
            self.status = processes.exit_status(self._descriptor, self._process)
        self.close()
        self._on_end()

    def close(self) -> None:
        if self._again:
            self._again.cancel()
            self._again = None
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


class FolderWatch:
    """Says when something in a folder has come, gone or been written to, by inotify(7).

    works: False where there can be no watch, as for want of instances; whoever waits must look.
    """

    # of linux/inotify.h: MODIFY … MOVED … DELETE_SELF
    _CREATED_WRITTEN_GONE = 0x002 | 0x008 | 0x040 | 0x080 | 0x100 | 0x200 | 0x400
    _FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(self._FLAGS)
        self._happened = asyncio.Event()
        self._watched: dict[Path, int] = {}
        self._failed = False
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    @property
    def works(self) -> bool:
        return self._descriptor >= 0 and not self._failed

    def follow(self, folders: set[Path]) -> None:
        """Follows these alone. A folder that was replaced is followed from the next call on."""
        if self._descriptor < 0:
            return
        for folder in self._watched.keys() - folders:
            self._libc.inotify_rm_watch(self._descriptor, self._watched.pop(folder))
        add = self._libc.inotify_add_watch
        for folder in folders:
            path = os.fsencode(folder)
            self._watched[folder] = add(self._descriptor, path, self._CREATED_WRITTEN_GONE)
        self._failed = any(number < 0 for number in self._watched.values())

    async def happened_within(self, seconds: float) -> bool:
        """Whether anything has since the last call; returns as soon as it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._happened.wait()
        happened = self._happened.is_set()
        self._happened.clear()
        return happened

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._descriptor, 65_536):
                self._happened.set()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)


Value = TypeVar("Value")


class Watchable(Generic[Value]):
    """A value that tasks follow: each sees it as it is now, then the newest after each change."""

    def __init__(self, value: Value) -> None:
        self._value = value
        self._replaced = asyncio.Event()

    def set(self, value: Value) -> None:
        if value != self._value:
            self._value = value
            self._replaced.set()
            self._replaced = asyncio.Event()

    async def follow(self, again_s: float | None = None) -> AsyncIterator[Value]:
        """again_s: the value comes again without a change; None for never."""
        while True:
            replaced = self._replaced
            yield self._value
            with suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await replaced.wait()


class Throttle:
    """Calls `act` soon after it is asked to, and never twice within `apart_s`."""

    def __init__(self, act: Callable[[], None], apart_s: float) -> None:
        self._act = act
        self._apart_s = apart_s
        self._acted_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None  # while it waits for its time

    def ask(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._acted_at + self._apart_s, self._now)

    def _now(self) -> None:
        self._timer = None
        self._acted_at = asyncio.get_running_loop().time()
        self._act()


async def until(
    condition: Callable[[], object], deadline_s: float, what: str, look_again_s: float = 0.002
) -> None:
    """TimeoutError saying `what` after `deadline_s`."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110 - whatever makes it true sets no event
                await asyncio.sleep(look_again_s)
    except TimeoutError:
        raise TimeoutError(f"waited {deadline_s:g} s until {what}") from None
