"""Tells what happened, as Kubernetes Events.

One rule: `status.rules.events` says what is told and when; an event that the API server will not have is dropped, so that
it keeps no other from being told.

Rights: create, patch events.
"""

import asyncio
import time

from mpsd.model.events import Happening, Told, count_in, event_object, event_patch, is_told_by, node_subject
from mpsd.platform.kube import Away, Conflict, Kube, KubeError, NotFound, Object, PatchKind, Resource
from mpsd.platform.kube_time import stamp
from mpsd.platform.logs import logger
from mpsd.status.rules.events import EventBook, Writing, dropped_happening

EVENTS = Resource("v1", "events")


class EventsDuty:
    name = "events"

    def __init__(self, kube: Kube, node: str) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._book = EventBook()
        self._dropped = 0
        self._log = logger(role="agent", part="report")

    def note(self, happening: Happening) -> None:
        self._book.note(happening, time.time() if happening.at is None else happening.at)
        if self._book.dropped > self._dropped:
            self._dropped = self._book.dropped
            self._book.note(dropped_happening(node_subject(self._node)), time.time())
        self.changed.set()

    def due_in_s(self) -> float | None:
        now = time.time()
        due = self._book.next_due(now)
        return None if due is None else due - now

    async def tell(self) -> None:
        while writing := self._book.take(time.time()):
            try:
                await self._write(writing)
            except Away:
                raise
            except KubeError as error:  # its namespace is being deleted, or a right is missing
                self._book.refused(writing.told)
                self._dropped = self._book.dropped
                self._log.warning("event dropped", subject=str(writing.told.happening.subject), reason=str(error))

    async def _write(self, writing: Writing) -> None:
        told = writing.told
        namespace = told.happening.subject.event_namespace
        if writing.is_new:
            try:
                await self._kube.create(EVENTS, event_object(told, self._node, stamp), namespace)
            except Conflict:  # an agent before this one told it
                self._book.wrote(told, time.time(), await self._count_on(told, namespace))
                return
        else:
            try:
                await self._patch(told, event_patch(told, stamp), namespace)
            except NotFound:  # the API server keeps events for an hour
                self._book.gone(told)
                return
        self._book.wrote(told, time.time())

    async def _count_on(self, told: Told, namespace: str) -> int:
        """Adds our count to the one that is there; gives the sum. The first patch changes nothing: it reads."""
        found = await self._patch(told, {}, namespace)
        if is_told_by(found, told, stamp):
            return count_in(found)
        count = count_in(found) + told.count
        await self._patch(told, event_patch(told, stamp) | {"count": count}, namespace)
        return count

    async def _patch(self, told: Told, patch: Object, namespace: str) -> Object:
        return await self._kube.patch(EVENTS, told.name, patch, PatchKind.MERGE, namespace)
