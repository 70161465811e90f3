"""Reads that may never end, each in a thread of its own, which is left behind then.

The kernel reads the environment, command and mappings of a process as that process would: it waits
for a page that nobody fills in (userfaultfd(2), a file of FUSE), and for an exec that does not end.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")
_MOST = 128  # threads that have not ended


class ThreadedRead(Generic[Value]):
    """It begins at once; where no thread can be had it does not end."""

    _left: set[threading.Thread] = set()  # noqa: RUF012 - of all reads

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._has_ended = threading.Event()
        self._value: Value | None = None
        self._error: BaseException | None = None
        thread = threading.Thread(target=self._run, daemon=True)
        if len(self._left) < _MOST:
            self._left.add(thread)
            try:
                thread.start()
            except RuntimeError:  # for want of threads
                self._left.discard(thread)

    def _run(self) -> None:
        try:
            self._value = self._read()
        except BaseException as error:
            self._error = error
        finally:
            self._left.discard(threading.current_thread())
            self._has_ended.set()

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def value(self, within_s: float) -> Value:
        """What was read, or its error; TimeoutError while it has not ended."""
        if not self._has_ended.wait(within_s):
            raise TimeoutError
        if self._error:
            raise self._error
        return self._value  # type: ignore[return-value]
