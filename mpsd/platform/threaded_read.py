"""Reads that may never end, each in a thread of its own, which is left behind then.

The kernel reads the environment, command and mappings of a process as that process would: it waits
for a page that nobody fills in (userfaultfd(2), a file of FUSE), and for an exec that does not end.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")
_MOST = 128  # threads that have not ended
_MOST_OF_ONE = 32  # of these; who keeps more reads from ending hides itself alone


class ThreadedRead(Generic[Value]):
    """It begins at once, unless no thread can be had. owner: whose processes are read; nobody's
    reads take the threads of others."""

    _left: Counter[Hashable] = Counter()  # noqa: RUF012 - of all reads, by owner
    _lock = threading.Lock()

    def __init__(self, read: Callable[[], Value], owner: Hashable = None) -> None:
        self._read = read
        self._owner = owner
        self._has_ended = threading.Event()
        self._value: Value | None = None
        self._error: BaseException | None = None
        self.has_begun = self._begins()

    def _begins(self) -> bool:
        with self._lock:
            if self._left.total() >= _MOST or self._left[self._owner] >= _MOST_OF_ONE:
                return False
            self._left[self._owner] += 1
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except (RuntimeError, MemoryError):  # for want of threads, or of memory
            self._leave()
            return False
        return True

    def _leave(self) -> None:
        with self._lock:
            self._left[self._owner] -= 1
            if not self._left[self._owner]:
                del self._left[self._owner]

    def _run(self) -> None:
        try:
            self._value = self._read()
        except BaseException as error:
            self._error = error
        finally:
            self._leave()
            self._has_ended.set()

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    @property
    def goes_on(self) -> bool:
        """False where it could not begin, too."""
        return self.has_begun and not self._has_ended.is_set()

    def value(self, within_s: float) -> Value:
        """What was read, or its error; TimeoutError while it has not ended, or could not begin."""
        if not self.has_begun or not self._has_ended.wait(within_s):
            raise TimeoutError
        if self._error:
            raise self._error
        return self._value  # type: ignore[return-value]
