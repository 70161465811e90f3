"""How long kubelet waits for NodePrepareResources, beside a server on such a socket that only
stores what it is asked.

`mpsd control` and `mpsd agent --dra` are processes as they always are. The benchmark is the
scheduler, which allocates claims, and the kubelet that has them prepared and gives them up, one by
one, while 40 are held on 8 GPUs. Simplified: the largest claim of each GPU stays, so that no limit
is raised; that takes a control command, and the simulator's is a Python program.
"""

import asyncio
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count, cycle
from pathlib import Path

import grpc

from mpsd.kubelet.api import dra_pb2 as wire
from mpsd.kubelet.api import dra_pb2_grpc as services
from mpsd.kubelet.client import dial
from mpsd.platform import event_loop, records
from mpsd.platform.event_loop import until
from tests.bench.agent import DEADLINE_S, GPUS, serving
from tests.bench.cluster import OneNode, one_node
from tests.bench.rows import Row

HELD, WARM, CALLS = 40, 20, 300
MOST_RATIO = 20.0
_DRIVER = "gpu.mpsd.io"
_LARGEST, _SIZES = 16, (1, 2, 4, 7, 12)  # GiB: of those that stay, and of those that come and go


def claims() -> Iterator[tuple[str, Row]]:
    """p99 and p50 of preparing a claim, in turns with the server that only stores."""
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
        found = asyncio.run(_measured(Path(folder)))
    (own_50, own_99), (stored_50, stored_99) = map(_percentiles, found)
    about = f"of NodePrepareResources over the agent's socket, {HELD} claims held on {GPUS} GPUs"
    baseline = "baseline: a server that only stores the request"
    yield "prepare_p99", Row(own_99, "ms", None, stored_99, f"p99 {about}; {baseline}")
    yield "prepare_p50", Row(own_50, "ms", None, stored_50, f"p50 {about}; {baseline}")
    yield (
        "prepare_p99_ratio",
        Row(own_99 / stored_99, "×", MOST_RATIO, None, "the p99 above, by its baseline"),
    )


def _percentiles(took_ms: list[float]) -> tuple[float, float]:
    in_order = sorted(took_ms)
    return in_order[len(in_order) // 2], in_order[len(in_order) * 99 // 100]


async def _measured(folder: Path) -> tuple[list[float], list[float]]:
    """What each call took, in ms: of the agent, and of the server that only stores."""
    words = ("--dra", _DRIVER, "--cdi-dir", str(folder / "cdi"))
    async with one_node(folder) as cluster, serving(folder, cluster, *words, resources=1) as node:
        await until(
            node.is_ready,
            DEADLINE_S,
            f"every domain serves and is registered; see {folder}/*.log",
            0.2,
        )
        devices = [gpu.uuid.lower() for gpu in node.status().gpus]
        socket = cluster.kubelet_folder / "plugins_registry" / f"{_DRIVER}-reg.sock"
        async with dial(socket) as channel, _storing(folder) as stored:
            return await _come_and_go(_Claims(cluster, channel), _Claims(cluster, stored), devices)


async def _come_and_go(
    own: "_Claims", stored: "_Claims", devices: list[str]
) -> tuple[list[float], list[float]]:
    took: tuple[list[float], list[float]] = [], []
    names, sizes, places = (f"claim-{number}" for number in count()), cycle(_SIZES), cycle(devices)
    for device in devices:
        await own.prepare(own.allocate(next(names), device, _LARGEST))
    held: deque[wire.Claim] = deque()
    for number in range(HELD - len(devices) + WARM + CALLS):
        claim = own.allocate(next(names), next(places), next(sizes))
        calls = ((own, took[0]), (stored, took[1]))
        for claims_of, found in calls if number % 2 else reversed(calls):
            found.append(await claims_of.prepare(claim))
        held.append(claim)
        if len(held) + len(devices) > HELD:
            await own.give_up(held.popleft())
    return took[0][-CALLS:], took[1][-CALLS:]


class _Claims:
    """Allocated as the scheduler does it, and prepared by whoever serves the channel."""

    def __init__(self, cluster: OneNode, channel: grpc.aio.Channel) -> None:
        self._cluster, self._stub = cluster, services.DRAPluginStub(channel)

    def allocate(self, name: str, device: str, gib: int) -> wire.Claim:
        return wire.Claim(
            namespace="default", name=name, uid=self._cluster.allocate(name, _DRIVER, device, gib)
        )

    async def prepare(self, claim: wire.Claim) -> float:
        """How many ms it took."""
        asked, began = wire.NodePrepareResourcesRequest(claims=[claim]), time.perf_counter()
        answer = await self._stub.NodePrepareResources(
            asked, timeout=DEADLINE_S, wait_for_ready=True
        )
        took_ms = (time.perf_counter() - began) * 1000
        if why := answer.claims[claim.uid].error:
            raise RuntimeError(f"{claim.name}: {why}")
        return took_ms

    async def give_up(self, claim: wire.Claim) -> None:
        asked = wire.NodeUnprepareResourcesRequest(claims=[claim])
        answer = await self._stub.NodeUnprepareResources(asked, timeout=DEADLINE_S)
        if why := answer.claims[claim.uid].error:
            raise RuntimeError(f"{claim.name}: {why}")
        self._cluster.free(claim.name)


@asynccontextmanager
async def _storing(folder: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the server that only stores."""
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, str(folder))
    try:
        async with dial(folder / "storing.sock") as channel:
            await until(
                (folder / "storing.sock").exists,
                DEADLINE_S,
                "the server that only stores is there",
                0.05,
            )
            yield channel
    finally:
        server.terminate()
        await server.wait()


class _Storing(services.DRAPluginServicer):
    """Stores each request as mpsd stores its journals, and answers."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def NodePrepareResources(  # noqa: N802
        self, request: wire.NodePrepareResourcesRequest, _context: object
    ) -> wire.NodePrepareResourcesResponse:
        (claim,) = request.claims
        records.write(
            self._file, {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
        )
        return wire.NodePrepareResourcesResponse(
            claims={claim.uid: wire.NodePrepareResourceResponse()}
        )


async def _serve(folder: Path) -> int:
    stop, server = event_loop.until_signalled(lambda: None), grpc.aio.server()
    services.add_DRAPluginServicer_to_server(_Storing(folder / "stored.json"), server)
    server.add_insecure_port(f"unix:{folder / 'storing.sock'}")
    await server.start()
    await stop.wait()
    await server.stop(None)
    return 0


if __name__ == "__main__":
    sys.exit(event_loop.run(_serve(Path(sys.argv[1]))))
