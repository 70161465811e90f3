"""What agents ask of the API server: one of them, counted there while tests.bench.agent runs it,
and a thousand.

Requests are counted as they come, with the bytes of their bodies and answers; a watch counts as
one, with the bytes of what it brings. The kubelet beside it reads pods through another server, so
that nothing here is its own. An agent has no other traffic to the API server than what is counted.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from mpsd.simulator.api_server.server import ApiServer, write_kubeconfig
from tests.bench.cluster import OneNode
from tests.bench.rows import Row

AGENTS = 1000
SETTLE_S = 20.0
# how often a kubelet renews its Node's lease: nodeLeaseDurationSeconds 40 of its configuration, by
# 4
_LEASE_S = 10.0


@dataclass(slots=True)
class Traffic:
    requests: int = 0
    lists: int = 0
    bytes: int = 0

    def now(self) -> "Traffic":
        return replace(self)

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(
            self.requests - before.requests, self.lists - before.lists, self.bytes - before.bytes
        )


class CountingServer(ApiServer):
    """A server of the same cluster that counts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.traffic = Traffic()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.traffic.requests += 1
        self.traffic.lists += "limit" in request.query
        response = await super()._handle(request)
        sent = response.body if isinstance(response, web.Response) else b""
        self.traffic.bytes += (request.content_length or 0) + (
            len(sent) if isinstance(sent, bytes) else 0
        )
        return response

    async def _sent(self, response: web.StreamResponse, line: bytes) -> None:
        self.traffic.bytes += len(line)
        await super()._sent(response, line)


@asynccontextmanager
async def counting(folder: Path, cluster: OneNode) -> AsyncIterator[tuple[OneNode, CountingServer]]:
    """The same cluster, as whoever uses it through that server sees it."""
    server = CountingServer(cluster.simulated)
    await server.start()
    try:
        own = folder / "counted"
        own.mkdir()
        yield (
            OneNode(cluster.simulated, write_kubeconfig(server, own), cluster.kubelet_folder),
            server,
        )
    finally:
        await server.stop()


async def after_server(server: CountingServer) -> dict[str, Row]:
    """What is asked of it once it was away."""
    before = server.traffic.now()
    await server.stop()
    await server.start()
    await asyncio.sleep(SETTLE_S)
    returned = server.traffic.since(before)
    of_these = "of these, lists: watches go on where they were"
    return {
        "api_after_server": Row(
            returned.requests, "requests", 30, None, f"{SETTLE_S:g} s after the server came back"
        ),
        "api_after_server_lists": Row(returned.lists, "lists", 0, None, of_these),
    }


async def after_roll(server: CountingServer, roll: Callable[[], Awaitable[None]]) -> dict[str, Row]:
    """roll: ends the agent and starts another."""
    before = server.traffic.now()
    await roll()
    await asyncio.sleep(SETTLE_S)
    rolled = server.traffic.since(before)
    return {
        "api_after_roll": Row(
            rolled.requests, "requests", 60, None, f"an agent's start and {SETTLE_S:g} s"
        ),
        "api_after_roll_kilobytes": Row(
            rolled.bytes / 1e3, "kB", None, None, "the same, bodies both ways"
        ),
    }


def steadily(seen: Traffic, took_s: float, pods: int) -> dict[str, Row]:
    """seen: of an agent on a node with so many pods, while nothing changed."""
    a_minute, bytes_s = 60 / took_s, seen.bytes / took_s
    of_all = (
        f"{AGENTS} agents: {seen.requests * AGENTS / took_s:.0f}/s, {bytes_s * AGENTS / 1e6:.2f}"
        " MB/s"
    )
    about = f"an agent, {pods} pods, nothing changes; baseline: a kubelet's lease alone; {of_all}"
    return {
        "api_requests": Row(seen.requests * a_minute, "a minute", 6.0, 60 / _LEASE_S, about),
        "api_kilobytes": Row(
            bytes_s * 60 / 1e3, "kB a minute", None, None, "the same, bodies both ways"
        ),
    }
