"""A value that tasks follow.

One rule: whoever follows sees the value as it is now, then the newest one after each change; what lay between is lost.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Newest(Generic[Value]):
    """One value; to be used in one event loop."""

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
