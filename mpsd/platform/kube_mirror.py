"""Keeps a copy of some objects of the Kubernetes API: lists them, then watches what changes.

The copy is what the server said last, and it never becomes empty because the server is away: how long it has
been out of sync is said beside it.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from mpsd.platform.kube import ChangeKind, Expired, Kube, KubeError, Object, Resource, Unavailable, WatchEvent
from mpsd.platform.logs import logger

T = TypeVar("T")

_ANY_VERSION = "0"  # whatever the server has in memory, which costs it least
_SHORTEST_S = 1.0  # a watch that ends sooner has told that the server is in trouble
_BACK_OFF = wait_random_exponential(multiplier=0.5, max=30.0)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects. query: such as `{"fieldSelector": "spec.nodeName=a"}`."""

    resource: Resource
    namespace: str = ""
    query: Mapping[str, str] = field(default_factory=dict)


class Mirror(Generic[T]):
    """A copy of a selection, each object as `read` makes it.

    read: None for an object that is not wanted. on_change: called in the loop when something that `read` made has
    come, changed or gone, and when the copy comes in sync for the first time; not for what is quiet. each: called
    before that for every single one of these, also for what is quiet, with what it was and is (None: not there).
    """

    def __init__(
        self,
        kube: Kube,
        selection: Selection,
        read: Callable[[Object], T | None],
        on_change: Callable[[], None] = lambda: None,
        is_quiet: Callable[[T], bool] = lambda _value: False,
        each: Callable[[T | None, T | None], None] = lambda _before, _now: None,
    ) -> None:
        self._kube = kube
        self._selection = selection
        self._read = read
        self._on_change = on_change
        self._is_quiet = is_quiet
        self._each = each
        self._objects: dict[tuple[str, str], T] = {}
        self._in_order: tuple[T, ...] | None = ()  # None: to be made anew
        self._version = _ANY_VERSION
        self._listed = False  # whether `_version` is one to go on watching from
        self._log = logger(watched=self.plural)
        self.synced = False
        self.out_of_sync_since: float | None = time.time()
        self.trouble: KubeError | None = None  # what the last attempt came to; None while it is in sync

    @property
    def plural(self) -> str:
        """What is mirrored, such as `pods`."""
        return self._selection.resource.plural

    def objects(self) -> tuple[T, ...]:
        """As last seen, in the order of namespace and name; empty until `synced`.

        The very same tuple as before where nothing has changed.
        """
        if self._in_order is None:
            self._in_order = tuple(self._objects[name] for name in sorted(self._objects))
        return self._in_order

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            retrying = AsyncRetrying(
                wait=_BACK_OFF, retry=retry_if_exception_type(KubeError), before_sleep=self._note_away
            )
            await retrying(self._follow)

    async def _follow(self) -> None:
        """One watch from its beginning to its end. KubeError where it lasted so short that the server needs a rest."""
        if not self._listed:
            await self._list()
        began = math.inf
        try:
            async with self._kube.watch(**self._selected(), since=self._version) as changes:
                began = time.monotonic()
                self._note_sync()
                async for change in changes:
                    self._take(change)
            trouble: KubeError = Unavailable(f"watch {self.plural}: ended as soon as it had begun")
        except KubeError as error:
            trouble = error
        if isinstance(trouble, Expired):
            self._listed = False
        if time.monotonic() - began < _SHORTEST_S:
            raise trouble  # else the next one goes on from where it broke, at once

    async def _list(self) -> None:
        query = {**self._selection.query, "resourceVersion": self._version}
        objects: dict[tuple[str, str], T] = {}
        version = ""
        try:
            async for page in self._kube.pages(self._selection.resource, self._selection.namespace, query):
                read = ((_name(found), self._read(found)) for found in page.items)
                objects |= {name: value for name, value in read if value is not None}
                version = page.version
        except Expired:
            self._version = ""  # the newest, whatever that costs the server
            raise
        before, changed = self._objects, not self.synced or self._loud(objects) != self._loud(self._objects)
        if objects != before:
            self._objects, self._in_order = objects, None
        self._version, self._listed, self.synced = version, True, True
        for name in before.keys() | objects.keys():
            if before.get(name) != objects.get(name):
                self._each(before.get(name), objects.get(name))
        if changed:
            self._on_change()

    def _take(self, change: WatchEvent) -> None:
        self._version = change.version
        if change.kind is ChangeKind.BOOKMARK:
            return
        name = _name(change.object)
        value = None if change.kind is ChangeKind.DELETED else self._read(change.object)
        before = self._objects.get(name)
        if value == before:
            return
        self._in_order = None
        if value is None:
            del self._objects[name]
        else:
            self._objects[name] = value
        self._each(before, value)
        if not all(each is None or self._is_quiet(each) for each in (before, value)):
            self._on_change()

    def _loud(self, objects: Mapping[tuple[str, str], T]) -> dict[tuple[str, str], T]:
        return {name: value for name, value in objects.items() if not self._is_quiet(value)}

    def _selected(self) -> dict[str, Any]:
        selection = self._selection
        return {"resource": selection.resource, "namespace": selection.namespace, "query": selection.query}

    def _note_sync(self) -> None:
        if self.out_of_sync_since is not None:
            self._log.info("in sync", objects=len(self._objects))
        self.out_of_sync_since = self.trouble = None

    def _note_away(self, attempt: RetryCallState) -> None:
        why = attempt.outcome.exception() if attempt.outcome else None
        self.trouble = why if isinstance(why, KubeError) else None
        if self.out_of_sync_since is not None and attempt.attempt_number > 1:
            return
        self.out_of_sync_since = self.out_of_sync_since or time.time()
        self._log.warning("out of sync", reason=str(why))


def _name(found: Object) -> tuple[str, str]:
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
