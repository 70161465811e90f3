"""Tells one client what changes: the body of a watch, a line a change.

One rule: every change after the version asked for is told, in order and once, or the client is told to list again.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from mpsd.simulator.api_server.api_kinds import Kind, Object
from mpsd.simulator.api_server.api_store import Store, Stored
from mpsd.simulator.api_server.refusals import Refused
from mpsd.simulator.api_server.selectors import Test


@dataclass(frozen=True, slots=True)
class Watched:
    """since None: tell what is there first. bookmark_s: between two bookmarks; None: none are wanted."""

    kind: Kind
    version: str
    namespace: str
    test: Test
    since: int | None
    lasting_s: float
    bookmark_s: float | None


async def changes(store: Store, watched: Watched) -> AsyncIterator[Object]:
    """The lines, as objects, until the watch has lasted as long as it was asked to."""
    now = time.monotonic()
    ends, bookmark_at = now + watched.lasting_s, now + (watched.bookmark_s or watched.lasting_s)
    position = store.version if watched.since is None else watched.since
    if watched.since is None:
        for _key, thing in store.all(watched.kind, watched.namespace):
            if watched.test(thing):
                yield _line("ADDED", thing, watched)
    while True:
        try:
            for change in store.since(position):
                line = _told(change, watched)
                if line:
                    yield line
                position = change.version
        except Refused as error:
            yield {"type": "ERROR", "object": error.status()}
            return
        now = time.monotonic()
        if watched.bookmark_s is not None and now >= min(bookmark_at, ends):
            bookmark_at = now + watched.bookmark_s
            yield _line("BOOKMARK", {"metadata": {"resourceVersion": str(position)}}, watched)
        if now >= ends:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(bookmark_at, ends) - now):
                await store.changed(position)


def _told(change: Stored, watched: Watched) -> Object | None:
    """The line for one change; None where it is of no concern here. What no longer matches is gone for this client."""
    key = change.key
    if (key.group, key.plural) != (watched.kind.group, watched.kind.plural):
        return None
    if watched.namespace not in ("", key.namespace):
        return None
    was = change.before is not None and watched.test(change.before)
    if change.now is not None and watched.test(change.now):
        return _line("MODIFIED" if was and change.before else "ADDED", change.now, watched)
    if was and change.before:
        metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
        return _line("DELETED", {**change.before, "metadata": metadata}, watched)
    return None


def _line(kind: str, thing: Object, watched: Watched) -> Object:
    typed = {"kind": watched.kind.name, "apiVersion": watched.kind.api(watched.version)}
    return {"type": kind, "object": {**thing, **typed}}
