"""Watching and mirroring objects of an API server that expires, goes away and comes back."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import urllib3

from mpsd.model.times import DAY_S, HOUR_S
from mpsd.platform import event_loop, kube_mirror
from mpsd.platform.kube import (
    Access,
    Forbidden,
    Kube,
    NotFound,
    Object,
    PatchKind,
    Resource,
    Unavailable,
)
from mpsd.platform.kube_access import open_kube
from mpsd.platform.kube_mirror import ChangeKind, Mirror, Selection, WatchEvent, watch
from tests.listing import listing
from tests.simulated_api import SimulatedApi, simulated_api

MAPS = Resource("v1", "configmaps")
DEADLINE_S = 20.0
Ask = Callable[[Callable[[Kube], Awaitable[Any]]], Any]


@pytest.fixture
def api() -> Iterator[SimulatedApi]:
    with simulated_api() as running:
        yield running


@pytest.fixture
def ask(api: SimulatedApi, tmp_path: Path) -> Ask:
    """Runs questions; no thread of a watch outlives them."""

    def run(questions: Callable[[Kube], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            kube = open_kube(api.kubeconfig(tmp_path))
            try:
                await questions(kube)
            finally:
                kube.close()
            await until(lambda: not watching(), "every watch's thread ended")

        return asyncio.run(main())

    return run


def watching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kube-watch")]


async def until(condition: Callable[[], object], what: str) -> None:
    await event_loop.until(condition, DEADLINE_S, what, 0.01)


async def past_bookmarks(changes: AsyncIterator[WatchEvent]) -> WatchEvent:
    while (change := await anext(changes)).kind is ChangeKind.BOOKMARK:
        pass
    return change


def named(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "labels": {"mirrored": "yes"}}, "data": data}


# -- watches


def test_a_watch_that_is_left_ends_its_thread_whatever_it_waits_for(ask: Ask) -> None:
    async def questions(kube: Kube) -> None:
        async with watch(kube, Selection(MAPS, "default"), since="1") as changes:
            waiting = asyncio.create_task(past_bookmarks(changes))
            await until(lambda: watching() == ["kube-watch-configmaps"], "it waits")
        with pytest.raises((StopAsyncIteration, Unavailable)):
            await waiting

    ask(questions)


def test_a_stop_does_not_wait_for_a_server_that_hangs_while_a_watch_opens(tmp_path: Path) -> None:
    async def main() -> None:
        pool = urllib3.PoolManager()
        kube = Kube(
            Access(f"http://127.0.0.1:{hung.getsockname()[1]}", pool, dict), deadline_s=DEADLINE_S
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), watch(kube, Selection(MAPS)):
                pass
        assert [thread.daemon for thread in threading.enumerate() if thread.name in watching()] == [
            True
        ]

    with socket.create_server(("127.0.0.1", 0)) as hung:  # connects, and never answers
        asyncio.run(main())


def test_a_watch_that_may_not_be_or_is_of_nothing_says_so_before_it_begins(
    ask: Ask, tmp_path: Path
) -> None:
    async def questions(kube: Kube) -> None:
        with pytest.raises(NotFound):
            async with watch(kube, Selection(Resource("example.com/v1", "things"))):
                pass
        file = tmp_path / "kubeconfig"
        file.write_text(file.read_text().replace("token: ", "token: not-"))
        stranger = open_kube(file)
        with pytest.raises(Forbidden):
            async with watch(stranger, Selection(MAPS)):
                pass
        stranger.close()

    ask(questions)


def test_a_silent_watch_is_given_up_at_its_deadline(tmp_path: Path) -> None:
    with simulated_api(bookmark_s=60.0) as api:

        async def main() -> None:
            kube = open_kube(api.kubeconfig(tmp_path))
            since = (await listing(kube, MAPS, "default")).version
            with pytest.raises(Unavailable, match=r"nothing came for 0\.3 s"):
                async with watch(
                    kube, Selection(MAPS, "default"), since=since, silence_s=0.3
                ) as changes:
                    await anext(changes)
            kube.close()

        asyncio.run(main())


def test_a_server_that_hangs_with_its_connections_open_is_away_soon_and_a_quiet_one_never_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_mirror, "_QUIET_S", 0.3)
    monkeypatch.setattr(kube_mirror, "_ANSWER_S", 2.0)
    with simulated_api(bookmark_s=600.0) as api:

        async def main() -> None:
            kube = open_kube(api.kubeconfig(tmp_path))
            mirrors = [Mirrored(kube), Mirrored(kube)]
            for one in mirrors:
                await one.in_sync()
            await asyncio.sleep(1.2)  # of quiet
            assert [one.mirror.trouble for one in mirrors] == [None, None]
            began = time.time()
            with api.hanging():
                for one in mirrors:
                    await until(lambda mirror=one.mirror: mirror.trouble, "the server is away")  # type: ignore[misc]
                    assert isinstance(one.mirror.trouble, Unavailable)
                    assert one.mirror.out_of_sync_since
                    assert one.mirror.out_of_sync_since < began + 2.0, "since it was heard last"
                # a watch that nothing comes from is given up after 90 s
                assert time.time() - began < 30.0
            for one in mirrors:
                await one.in_sync()
            await kube.create(MAPS, named("a", key="1"), "default")
            for one in mirrors:
                await one.shows({"key": "1"})
                await one.stop()
            kube.close()

        asyncio.run(main())


# -- mirrors


class Mirrored:
    """A mirror of `data` that runs, and the number of times that it said that something changed."""

    def __init__(self, kube: Kube, quiet: str = "quiet") -> None:
        self.changes = 0
        selection = Selection(MAPS, "default", {"labelSelector": "mirrored=yes"})
        read = methodcaller("get", "data")
        self.mirror = Mirror[dict[str, str]](
            kube, selection, read, self._changed, lambda data: quiet in data
        )
        self._task = asyncio.create_task(self.mirror.run())

    def _changed(self) -> None:
        self.changes += 1

    async def shows(self, *data: dict[str, str]) -> None:
        await until(
            lambda: self.mirror.synced and self.mirror.objects() == data, f"the mirror shows {data}"
        )

    async def in_sync(self) -> None:
        await until(lambda: self.mirror.out_of_sync_since is None, "in sync")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def test_a_mirror_shows_what_is_there_and_every_change(ask: Ask) -> None:
    async def questions(kube: Kube) -> None:
        await kube.create(MAPS, named("a", key="1"), "default")
        mirrored = Mirrored(kube)
        assert not mirrored.mirror.synced
        await mirrored.shows({"key": "1"})
        await mirrored.in_sync()
        await kube.create(MAPS, named("b", key="2"), "default")
        await mirrored.shows({"key": "1"}, {"key": "2"})
        await kube.patch(MAPS, "a", {"data": {"key": "3"}}, PatchKind.MERGE, "default")
        await mirrored.shows({"key": "3"}, {"key": "2"})
        await kube.delete(MAPS, "a", "default")
        await mirrored.shows({"key": "2"})
        await kube.patch(
            MAPS, "b", {"metadata": {"labels": {"mirrored": "no"}}}, PatchKind.MERGE, "default"
        )
        await mirrored.shows()
        await mirrored.stop()

    ask(questions)


def test_only_what_is_read_of_an_object_counts_as_a_change(ask: Ask) -> None:
    async def questions(kube: Kube) -> None:
        await kube.create(MAPS, named("a", key="1"), "default")
        mirrored = Mirrored(kube)
        await mirrored.shows({"key": "1"})
        await mirrored.in_sync()
        await kube.patch(
            MAPS, "a", {"metadata": {"annotations": {"a": "b"}}}, PatchKind.MERGE, "default"
        )
        # no data
        await kube.create(
            MAPS, {"metadata": {"name": "empty", "labels": {"mirrored": "yes"}}}, "default"
        )
        await kube.create(MAPS, named("z", key="9"), "default")
        await mirrored.shows({"key": "1"}, {"key": "9"})
        assert mirrored.changes == 2  # the first list, and z
        await mirrored.stop()

    ask(questions)


def test_what_is_quiet_is_kept_and_wakes_nobody(ask: Ask) -> None:
    async def questions(kube: Kube) -> None:
        await kube.create(MAPS, named("a", quiet="1"), "default")
        mirrored = Mirrored(kube)
        await mirrored.shows({"quiet": "1"})
        await mirrored.in_sync()
        assert mirrored.changes == 1  # that it is in sync is news
        await kube.create(MAPS, named("b", quiet="2"), "default")
        await kube.patch(MAPS, "a", {"data": {"quiet": "3"}}, PatchKind.MERGE, "default")
        await mirrored.shows({"quiet": "3"}, {"quiet": "2"})
        await kube.delete(MAPS, "b", "default")
        await mirrored.shows({"quiet": "3"})
        assert mirrored.changes == 1
        await kube.patch(
            MAPS, "a", {"data": {"quiet": None, "key": "4"}}, PatchKind.MERGE, "default"
        )
        await mirrored.shows({"key": "4"})
        await kube.patch(MAPS, "a", {"data": {"quiet": "5"}}, PatchKind.MERGE, "default")
        await mirrored.shows({"key": "4", "quiet": "5"})
        assert mirrored.changes == 3  # from quiet and to quiet are both news
        await mirrored.stop()

    ask(questions)


def test_a_mirror_keeps_what_it_has_while_the_server_is_away_and_catches_up(
    api: SimulatedApi, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def questions(kube: Kube) -> None:
        await kube.create(MAPS, named("a", key="1"), "default")
        mirrored = Mirrored(kube)
        await mirrored.shows({"key": "1"})
        await mirrored.in_sync()
        before = time.time()
        await asyncio.to_thread(api.stop)
        await until(lambda: mirrored.mirror.out_of_sync_since is not None, "out of sync")
        assert mirrored.mirror.out_of_sync_since
        assert mirrored.mirror.out_of_sync_since >= before
        for ahead_s in (-2 * DAY_S, 2 * DAY_S):
            monkeypatch.setattr("mpsd.platform.clock.wall_s", lambda by=ahead_s: before + by)
            assert 0 < mirrored.mirror.out_of_sync_s < HOUR_S
        assert mirrored.mirror.objects() == ({"key": "1"},)
        await asyncio.to_thread(api.start)
        await mirrored.in_sync()
        await kube.create(MAPS, named("b", key="2"), "default")
        await mirrored.shows({"key": "1"}, {"key": "2"})
        await mirrored.stop()

    ask(questions)


def test_a_mirror_lists_again_where_the_server_has_forgotten_what_happened(
    api: SimulatedApi, ask: Ask
) -> None:
    async def questions(kube: Kube) -> None:
        for name in "ab":
            await kube.create(MAPS, named(name, key=name), "default")
        mirrored = Mirrored(kube)
        await mirrored.shows({"key": "a"}, {"key": "b"})
        await asyncio.to_thread(api.stop)
        key = next(
            key
            for key, _thing in api.cluster.store.everything()
            if key.name == "a" and key.plural == "configmaps"
        )
        api.do(lambda: api.cluster.store.remove(key))
        api.forget_history()
        await asyncio.to_thread(api.start)
        await mirrored.shows({"key": "b"})
        await mirrored.in_sync()
        await mirrored.stop()

    ask(questions)


def test_a_mirror_of_a_server_that_was_never_there_has_never_been_in_sync(
    api: SimulatedApi, ask: Ask
) -> None:
    async def questions(kube: Kube) -> None:
        await asyncio.to_thread(api.stop)
        mirrored = Mirrored(kube)
        await asyncio.sleep(0)
        assert (mirrored.mirror.synced, mirrored.mirror.objects()) == (False, ())
        await asyncio.to_thread(api.start)
        await mirrored.shows()
        assert mirrored.changes == 1  # that it is in sync is news
        await mirrored.stop()

    ask(questions)
