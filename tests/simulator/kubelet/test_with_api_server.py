"""The simulated kubelet beside the simulated API server: a Job from its making to its end."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from mpsd.kubelet.client import register
from mpsd.kubelet.plugin_server import PluginServer
from mpsd.simulator.api_server.cluster import SimulatedCluster
from mpsd.simulator.api_server.server import ApiServer as Server
from mpsd.simulator.api_server.server import write_kubeconfig
from mpsd.simulator.kubelet.kubelet import Kubelet, SimulatedKubeletSettings
from mpsd.simulator.kubelet.pods import KubeletPace
from mpsd.simulator.kubelet.sources import ApiAccess, ApiServerSource, read_kubeconfig
from tests.simulator.kubelet.world import DEADLINE_S, MEMORY, Plugin, container

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


class OneNode:
    """A cluster of one node, asked as anybody asks it."""

    def __init__(self, access: ApiAccess, session: aiohttp.ClientSession, folder: Path) -> None:
        self.folder = folder
        self._access = access
        self._session = session

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        async with self._session.request(
            method, self._access.url + path, json=body, ssl=self._access.trusted or True
        ) as answer:
            return await answer.json()

    async def until(self, path: str, condition: Callable[[Any], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition(await self.ask("GET", path)):  # noqa: ASYNC110  an answer of a server
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[OneNode]:
    server = Server(SimulatedCluster())
    await server.start()
    access = read_kubeconfig(write_kubeconfig(server, folder))
    source = ApiServerSource(access, "gpu-1", {"gpu": "yes"})
    kubelet = Kubelet(
        SimulatedKubeletSettings(folder, pace=KubeletPace(retry_s=0.1, list_s=0.02, look_s=0.02)),
        source,
    )
    await kubelet.start()
    stopping = asyncio.Event()
    running = asyncio.create_task(kubelet.run(stopping))
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {server.token}"}
    ) as session:
        try:
            yield OneNode(access, session, folder)
        finally:
            stopping.set()
            await running
            await kubelet.switch_off()
            await source.close()
            await server.stop()


def test_a_job_waits_for_devices_runs_on_them_and_is_complete() -> None:
    async def story(here: OneNode) -> None:
        await here.until(
            "/api/v1/nodes/gpu-1", lambda node: node["metadata"].get("labels", {}).get("gpu")
        )
        main = container("main", {MEMORY: 2}, 'echo "$GOT"')
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": {"gpu": "yes"},
            "containers": [main | {"image": "x"}],
        }
        await here.ask(
            "POST", JOBS, {"metadata": {"name": "train"}, "spec": {"template": {"spec": spec}}}
        )
        await here.until(PODS, lambda pods: any(is_unschedulable(pod) for pod in pods["items"]))
        plugin = Plugin(MEMORY, 4, [])
        server = PluginServer(MEMORY, here.folder / "device-plugins", plugin.endpoint, plugin)
        await server.start()
        await register(here.folder / "device-plugins", plugin.endpoint, MEMORY)
        await here.until(f"{JOBS}/train", lambda job: job["status"].get("succeeded") == 1)
        [log] = here.folder.glob("containers/*/main/0/log")
        assert log.read_text() == f"{MEMORY}\n"
        [pod] = (await here.ask("GET", PODS))["items"]
        await here.ask("DELETE", f"{PODS}/{pod['metadata']['name']}")
        await here.until(PODS, lambda pods: not pods["items"])
        await server.stop()

    async def played() -> None:
        with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
            async with cluster(Path(made)) as here:
                await story(here)

    asyncio.run(played())


def is_unschedulable(pod: dict[str, Any]) -> bool:
    return any(
        each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions") or ()
    )
