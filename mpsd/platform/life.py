"""The life of a long-running process of mpsd, from its first task to its exit code.

An error that nobody expects ends it within DYING_S, with one line that names the task and the
error. What it supervises is left as it is, as after a SIGKILL: the next mpsd takes it over.
"""

import asyncio
import faulthandler
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn, TypeVar

from mpsd.platform import logs, processes
from mpsd.platform.console import ExitCode, one_line
from mpsd.platform.logs import logger

DYING_S = 4.0  # from the first error to the end, whatever does not end by itself
STOPPING_S = 20.0  # for what follows a drain
_LAST_LINE_S = 1.0  # beyond a deadline, for a loop that is blocked, or a line that nobody reads
_OURS = str(Path(__file__).parents[1])

Value = TypeVar("Value")


def run(
    program: str,
    main: Callable[[], Coroutine[Any, Any, int]],
    expected: tuple[type[Exception], ...] = (),
) -> int:
    """The exit code. program: as its last line names it, such as `mpsd up`. expected: what `main`
    itself may raise, for the caller. Children are awaited by pidfd, which costs no thread each."""
    global _process
    processes.raise_file_limit()
    code: int = ExitCode.NO
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        if sys.version_info < (3, 12):
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(loop)
            asyncio.set_child_watcher(watcher)
        _process = process = _Process(program, loop)
        try:
            code = runner.run(process.live(main))
        except expected:
            raise
        except (Exception, asyncio.CancelledError) as error:
            process.cause = process.cause or ("", _first(error))
        finally:
            # else tasks that are left, and do not heed their cancellation, would hold it
            process.end_within(DYING_S)
        if process.cause:
            process.tell()
            code = ExitCode.NO
    return code


def end_within(seconds: float) -> None:
    """Ends this process by then, if it has not ended by itself."""
    if _process:
        _process.end_within(seconds)


def give_up(why: str) -> None:
    """Ends this process now."""
    if _process:
        _process.give_up(why)


class Tasks(asyncio.TaskGroup):
    """A group whose error counts from when it is raised, not from when its other tasks have
    ended."""

    def create_task(
        self,
        coro: Generator[Any, None, Value] | Coroutine[Any, Any, Value],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Value]:
        task = super().create_task(coro, name=name, context=context)
        task.add_done_callback(notice)
        return task


def background(work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
    """A task that nobody awaits for its error."""
    task = asyncio.create_task(work)
    task.add_done_callback(partial(notice, is_awaited=False))
    return task


def notice(task: asyncio.Task[Any], *, is_awaited: bool = True) -> None:
    """Begins the end of this process where the task has failed. is_awaited: whoever awaits the task
    raises its error."""
    if task.cancelled() or not (error := task.exception()):
        return
    if _process:
        _process.fail(_name(task), error, is_awaited=is_awaited)
    elif not is_awaited:
        about = {"message": "a task has failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(about)


class _Process:
    def __init__(self, program: str, loop: asyncio.AbstractEventLoop) -> None:
        self._program = program
        self._loop = loop
        self._log = logger()
        self._main: asyncio.Task[int] | None = None  # None before it begins
        # the first error, and where it was raised; empty for `main` itself
        self.cause: tuple[str, BaseException] | None = None
        self._is_told = False
        self._ends_at = math.inf  # of the loop's clock
        self._end: asyncio.TimerHandle | None = None
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        loop.set_exception_handler(self._on_error)
        threading.excepthook = self._on_thread_error

    async def live(self, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
        self._main = asyncio.current_task()
        return await main()

    # -- errors

    def fail(self, where: str, error: BaseException, *, is_awaited: bool = False) -> None:
        if self.cause:
            return
        self.cause = where, _first(error)
        self.end_within(DYING_S)
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(signum, self.give_up)
        if self._main and not is_awaited:
            self._main.cancel()

    def _on_error(self, _loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """A callback of ours ends the process too. What only passes through other projects' code,
        such as a connection's, or was of a task that nobody awaits any more, costs it nothing."""
        error = about.get("exception")
        callback = about.get("handle")
        if error and callback and _is_ours(error) and not processes.is_shortage(error):
            self.fail(_name(callback), error)
        else:
            self._log.error("error in the event loop", reason=about["message"], exc_info=error)

    def _on_thread_error(self, about: threading.ExceptHookArgs) -> None:
        name = about.thread.name if about.thread else "unknown"
        if about.exc_value:
            with suppress(RuntimeError):  # the loop is closed, and the process ends
                self._loop.call_soon_threadsafe(self.fail, f"thread {name}", about.exc_value)

    # -- the end

    def end_within(self, seconds: float) -> None:
        """The earliest end counts."""
        now = self._loop.time()
        self._ends_at = min(self._ends_at, now + seconds)
        if self._end:
            self._end.cancel()
        self._end = self._loop.call_at(self._ends_at, self.give_up)
        left_s = max(0.0, self._ends_at - now) + _LAST_LINE_S
        with suppress(RuntimeError):  # no thread, for want of processes
            faulthandler.dump_traceback_later(left_s, exit=True, file=self._nowhere)

    def give_up(self, why: str = "") -> NoReturn:
        """Ends it now. why: empty for the error, or else for what does not end."""
        try:
            self.tell(why)
        finally:
            os._exit(ExitCode.NO)

    def tell(self, why: str = "") -> None:
        """Once: by a line in the log, with a traceback where there is one, and one for people."""
        if self._is_told:
            return
        self._is_told = True
        error: BaseException | None = None
        where = ""
        if not why and self.cause:
            where, error = self.cause
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
        elif not why:
            names = {_name(task) for task in asyncio.all_tasks(self._loop)}
            why = f"ended before it had stopped, waiting for {', '.join(sorted(names))}"
        why = one_line(why)
        self._log.error("process ends", task=where, reason=why, exc_info=error)
        sys.stderr.write(": ".join(filter(None, (self._program, where, why))) + "\n")
        logs.flush()


_process: _Process | None = None  # None in programs that do not last


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised in mpsd's own code, or passed through it."""
    frames = walk_tb(_first(error).__traceback__)
    return any(frame.f_code.co_filename.startswith(_OURS) for frame, _line in frames)


def _name(thing: object) -> str:
    """Of a task, or the handle of a callback: its function's."""
    if isinstance(thing, asyncio.Task):
        thing = thing.get_coro()
    called = getattr(thing, "_callback", thing)
    called = getattr(called, "func", called)  # of a partial
    return str(getattr(called, "__qualname__", type(called).__name__)).replace(".<locals>", "")
