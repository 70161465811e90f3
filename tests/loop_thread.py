"""An event loop in a thread of its own, beside which a test goes on."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_DEADLINE_S = 40.0  # far above what anything takes, however busy the machine


class LoopThread:
    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it there, and gives what it came to."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_DEADLINE_S)

    def hold(self, until: threading.Event) -> None:
        """Nothing runs there until then; connections stay open, and the kernel takes new ones."""
        self._loop.call_soon_threadsafe(until.wait, _DEADLINE_S)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._loop.run_forever()
        self._runner.close()  # which ends every task that is left, and then the loop
