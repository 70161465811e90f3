"""What agents ask of the API server: one of them on a node with 250 pods, counted there, and a thousand of them.

Requests are counted as they come, with the bytes of their bodies and answers; a watch counts as one, with the bytes of
what it brings. The kubelet beside it reads pods through another server, so that nothing here is its own. An agent has
no other traffic to the API server than what is counted.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web
from tenacity import AsyncRetrying, RetryCallState

from mpsd.platform.event_loop import until
from mpsd.platform.kube_mirror import BACK_OFF
from mpsd.simulator.api_server.server import ApiServer, write_kubeconfig
from tests.bench.agent import DEADLINE_S, PODS, fill, serving
from tests.bench.cluster import OneNode, one_node
from tests.bench.rows import Row

AGENTS = 1000
WATCHES = 3  # of an agent: its pods, its MPSNode, its Node
AWAY_S = 10.0
STEADY_S, SETTLE_S = 60.0, 20.0
_LEASE_S = 10.0  # how often a kubelet renews its Node's lease: nodeLeaseDurationSeconds 40 of its configuration, by 4


def api_load() -> Iterator[tuple[str, Row]]:
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
        yield from asyncio.run(_measured(Path(folder))).items()
    every = AGENTS * WATCHES
    about = f"of {AGENTS} agents' {every} watches, in the busiest second once a server is back after {AWAY_S:g} s"
    yield "api_herd", Row(_herd(every) / every, "of them", 0.25, 1.0, f"{about}; baseline: all at once")


def _herd(watches: int) -> int:
    """How many try again in the same second, the first time that there is a server, by the pauses of the mirrors."""
    found = Counter[int]()
    for _watch in range(watches):
        state, at_s = RetryCallState(AsyncRetrying(), None, (), {}), random.uniform(0, 1)
        while at_s < AWAY_S:
            at_s += BACK_OFF(state)
            state.attempt_number += 1
        found[int(at_s)] += 1
    return max(found.values())


@dataclass(slots=True)
class Traffic:
    requests: int = 0
    lists: int = 0
    bytes: int = 0

    def now(self) -> "Traffic":
        return replace(self)

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(self.requests - before.requests, self.lists - before.lists, self.bytes - before.bytes)


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
        self.traffic.bytes += (request.content_length or 0) + (len(sent) if isinstance(sent, bytes) else 0)
        return response

    async def _sent(self, response: web.StreamResponse, line: bytes) -> None:
        self.traffic.bytes += len(line)
        await super()._sent(response, line)


async def _measured(folder: Path) -> dict[str, Row]:
    async with one_node(folder) as cluster:
        server = CountingServer(cluster.simulated)
        await server.start()
        try:
            own = folder / "counted"
            own.mkdir()
            counted = OneNode(cluster.simulated, write_kubeconfig(server, own), cluster.kubelet_folder)
            return await _counted(folder, counted, server)
        finally:
            await server.stop()


async def _counted(folder: Path, cluster: OneNode, server: CountingServer) -> dict[str, Row]:
    async with serving(folder, cluster) as node:
        await until(node.is_ready, DEADLINE_S, "every domain serves and is registered", 0.2)
        await fill(cluster, node)
        await asyncio.sleep(SETTLE_S)
        still, began = server.traffic.now(), time.monotonic()
        await asyncio.sleep(STEADY_S)
        steady, took_s = server.traffic.since(still), time.monotonic() - began
        before = server.traffic.now()
        await server.stop()
        await server.start()
        await asyncio.sleep(SETTLE_S)
        returned = server.traffic.since(before)
        before = server.traffic.now()
        node.agent.kill()
        node.start_agent_again()
        await until(node.is_ready, DEADLINE_S, "the next agent has registered", 0.2)
        await asyncio.sleep(SETTLE_S)
        rolled = server.traffic.since(before)
    a_minute = 60 / took_s
    about = f"an agent, {PODS} pods, nothing changes"
    of_all = (
        f"{AGENTS} agents: {steady.requests * AGENTS / took_s:.0f}/s, {steady.bytes * AGENTS / took_s / 1e6:.2f} MB/s"
    )
    lease = "baseline: a kubelet's lease alone"
    return {
        "api_requests": Row(steady.requests * a_minute, "a minute", 6.0, 60 / _LEASE_S, f"{about}; {lease}; {of_all}"),
        "api_kilobytes": Row(steady.bytes * a_minute / 1e3, "kB a minute", None, None, "the same, bodies both ways"),
        "api_after_server": Row(returned.requests, "requests", 30, None, f"{SETTLE_S:g} s after the server came back"),
        "api_after_server_lists": Row(
            returned.lists, "lists", 0, None, "of these, lists: watches go on where they were"
        ),
        "api_after_roll": Row(rolled.requests, "requests", 60, None, f"an agent's start and {SETTLE_S:g} s"),
        "api_after_roll_kilobytes": Row(rolled.bytes / 1e3, "kB", None, None, "the same, bodies both ways"),
    }
