"""Every object of the simulated API server, and what became of each.

One rule: a stored object is never changed, only replaced, and every replacement counts the one resourceVersion up.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mpsd.simulator.api_server.api_kinds import Kind, Object
from mpsd.simulator.api_server.refusals import expired

HISTORY = 10_000  # changes that a watch may go back


@dataclass(frozen=True, slots=True, order=True)
class Key:
    group: str
    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One change. before, now: None where the object was not there before, or is gone."""

    version: int
    key: Key
    before: Object | None
    now: Object | None


class Store:
    def __init__(self, history: int = HISTORY) -> None:
        self._objects: dict[Key, Object] = {}
        self._history: deque[Stored] = deque(maxlen=history)
        self._waiting: set[asyncio.Event] = set()
        self.version = 1

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def all(self, kind: Kind, namespace: str = "") -> list[tuple[Key, Object]]:
        """In the order of namespace and name. namespace: empty for all."""
        found = [
            (key, thing)
            for key, thing in self._objects.items()
            if (key.group, key.plural) == (kind.group, kind.plural) and namespace in ("", key.namespace)
        ]
        return sorted(found, key=lambda pair: pair[0])

    def everything(self) -> list[tuple[Key, Object]]:
        return list(self._objects.items())

    def put(self, key: Key, thing: Object) -> Object:
        """The object as it is stored; the one that is there where it is the same."""
        before = self._objects.get(key)
        thing = copy.deepcopy(thing)
        if before is not None and _unversioned(before) == _unversioned(thing):
            return before
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = thing
        self._note(Stored(self.version, key, before, thing))
        return thing

    def remove(self, key: Key) -> Object:
        """The object as it was last, with the version of its removal."""
        self.version += 1
        before = self._objects.pop(key)
        last: Object = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self._note(Stored(self.version, key, last, None))
        return last

    def since(self, version: int) -> Iterator[Stored]:
        """The changes after this version. Refused where they are no longer all known."""
        if version < self.oldest:
            raise expired(f"{version} ({self.oldest})")
        return (change for change in list(self._history) if change.version > version)

    @property
    def oldest(self) -> int:
        """The oldest version that a watch may start from."""
        return self._history[0].version - 1 if self._history else self.version

    def forget(self) -> None:
        """Forgets every change, as a server does with the old ones."""
        self._history.clear()

    async def changed(self, version: int) -> None:
        """Returns once there is a change after this version."""
        if self.version > version:
            return
        waiting = asyncio.Event()
        self._waiting.add(waiting)
        try:
            await waiting.wait()
        finally:
            self._waiting.discard(waiting)

    def _note(self, change: Stored) -> None:
        self._history.append(change)
        for waiting in self._waiting:
            waiting.set()


def _unversioned(thing: Object) -> Any:
    metadata = {key: value for key, value in thing["metadata"].items() if key != "resourceVersion"}
    return {**thing, "metadata": metadata}
