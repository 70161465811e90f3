"""The last few things that were worked out, by what they were worked out from: long lists that come again and again.

One rule: keys are compared, whole and never hashed, since a hash of thousands of names costs more than what it saves.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lately(Generic[Key, Value]):
    """Keeps `most` values, the last asked for. A key that is the very object of before is found without a comparison,
    so what is made from a key (names, from the bytes they came in) is worth keeping as one object.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._kept: list[tuple[Key, Value]] = []

    def get(self, key: Key) -> Value | None:
        """None for what was not asked for lately."""
        place = self._place(key)
        if place is None:
            return None
        found = self._kept[place]
        if place:
            del self._kept[place]
            self._kept.insert(0, found)
        return found[1]

    def _place(self, key: Key) -> int | None:
        for place, (kept, _value) in enumerate(self._kept):
            if kept is key:
                return place
        return next((place for place, (kept, _value) in enumerate(self._kept) if kept == key), None)

    def put(self, key: Key, value: Value) -> None:
        """For a key that `get` does not know."""
        self._kept.insert(0, (key, value))
        del self._kept[self._most :]

    def values(self) -> Iterator[Value]:
        return (value for _key, value in self._kept)

    def clear(self) -> None:
        self._kept.clear()
