"""The event loop that every long-running process of mpsd runs in."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any, Generic, TypeVar

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes


def run(main: Coroutine[Any, Any, int]) -> int:
    """Runs `main` and gives its result. Children are awaited by pidfd, which costs no thread each."""
    with asyncio.Runner() as runner:
        if sys.version_info < (3, 12):
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(runner.get_loop())
            asyncio.set_child_watcher(watcher)
        return runner.run(main)


def expect_long_life() -> None:
    """For a server that has started: the garbage collector passes over what is there now, and looks less often.

    A full look over a started webhook took 26 ms and a partial one 1 ms, in which nobody is answered. Requests leave no
    cycles, so that few looks are enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def on_stop_signals(first: Callable[[], None], again: Callable[[], None]) -> None:
    """Calls `first` at the first SIGINT or SIGTERM, and `again` at each one after it."""
    received = 0

    def handle() -> None:
        nonlocal received
        received += 1
        (first if received == 1 else again)()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, handle)


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Waits for the first of them to end; raises what it ended by, where that was an error."""
    done, _going_on = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


class DeathWatch:
    """Calls back, once, when a process ends: seen by pidfd within milliseconds, whoever its parent is."""

    def __init__(self, process: ProcessIdentity, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._descriptor = processes.open_pidfd(process)
        if self._descriptor is None:
            asyncio.get_running_loop().call_soon(on_end)
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._ended)

    @property
    def alive(self) -> bool:
        return self._descriptor is not None

    def _ended(self) -> None:
        self.close()
        self._on_end()

    def close(self) -> None:
        """Stops watching; may be called again."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


Value = TypeVar("Value")


class Watchable(Generic[Value]):
    """A value that tasks follow: each sees it as it is now, then the newest one after each change. What lies between is
    lost. To be used in one event loop.
    """

    def __init__(self, value: Value) -> None:
        self._value = value
        self._replaced = asyncio.Event()

    def set(self, value: Value) -> None:
        """Wakes those who follow, if it differs."""
        if value != self._value:
            self._value = value
            self._replaced.set()
            self._replaced = asyncio.Event()

    async def follow(self) -> AsyncIterator[Value]:
        while True:
            replaced = self._replaced
            yield self._value
            await replaced.wait()


class Throttle:
    """Calls `act` at most `apart_s` seconds after it is asked to, and never twice within that time; what is asked
    meanwhile is one call. To be used in one event loop.
    """

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
