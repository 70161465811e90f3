"""A simulated kubelet, device plugins that write down what they are asked, and pods."""

import asyncio
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpsd.kubelet.client import held_devices, register
from mpsd.kubelet.plugin_server import PluginServer
from mpsd.kubelet.rules.allocation import Answer, Device
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.platform import processes
from mpsd.platform.event_loop import until
from mpsd.simulator.kubelet.containers import ContainerRun, Running
from mpsd.simulator.kubelet.kubelet import Kubelet, SimulatedKubeletSettings
from mpsd.simulator.kubelet.pods import Json, KubeletPace, SimPod, Version
from mpsd.simulator.kubelet.sources import SourceUnavailable

MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
KINDS = {MEMORY: "memory", PERCENT: "percent"}
DEADLINE_S = 40.0  # others work on this machine, too; only a failing test waits so long


class Plugin:
    """Has `count` devices of a resource and does as it is told."""

    def __init__(self, resource: str, count: int, calls: list[tuple[str, ...]]) -> None:
        self.resource = resource
        self.endpoint = f"{resource.rpartition('/')[2]}.sock"
        self.calls = calls
        self.answer = Answer({"GOT": resource})
        self.prefers: Sequence[str] = ()
        self.refuses: dict[str, Exception] = {}  # by the name of the call
        self.streams = 0  # that were ever asked for
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._devices = tuple(Device(f"{resource}/{number}", True) for number in range(count))
        self._changed = asyncio.Condition()

    async def list(self, healthy: bool) -> None:
        self._devices = tuple(Device(device.id, healthy) for device in self._devices)
        async with self._changed:
            self._changed.notify_all()

    def times(self, call: str) -> int:
        return sum(made[:2] == (call, self.resource) for made in self.calls)

    async def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        self.streams += 1
        while True:
            yield self._devices
            async with self._changed:
                await self._changed.wait()

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        self.calls.append(("preferred", self.resource, *sorted(must_include)))
        await self._obey("preferred")
        return self.prefers

    async def allocate(self, ids: Sequence[str]) -> Answer:
        self.calls.append(("allocate", self.resource, *sorted(ids)))
        await self._obey("allocate")
        return self.answer

    async def pre_start(self, ids: Sequence[str]) -> None:
        self.calls.append(("pre_start", self.resource, *sorted(ids)))
        await self._obey("pre_start")

    async def _obey(self, call: str) -> None:
        await self.may_answer.wait()
        if call in self.refuses:
            raise self.refuses[call]


class PodsInMemory:
    """A list of pods in place of an API server. away: as one may be."""

    def __init__(self) -> None:
        self.away = False
        self._pods: dict[str, dict[str, Any]] = {}
        self.capacity: Mapping[str, int] = {}
        self.allocatable: Mapping[str, int] = {}

    def add(self, pod: Json) -> None:
        """pod: with a namespace, a name and a uid."""
        self._pods[pod["metadata"]["uid"]] = {**pod, "status": {"phase": "Pending"}}

    def delete(self, uid: str, grace_s: float | None = None) -> None:
        """As `kubectl delete`: the pod is gone once the kubelet has ended it."""
        metadata = self._pods[uid]["metadata"]
        ends = {} if grace_s is None else {"deletionGracePeriodSeconds": grace_s}
        deleted = {**metadata, "deletionTimestamp": datetime.now(UTC).isoformat(), **ends}
        self._pods[uid] = {**self._pods[uid], "metadata": deleted}

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def status(self, uid: str) -> Mapping[str, Any]:
        """What the kubelet said of a pod."""
        status: Mapping[str, Any] = self._pods[uid]["status"]
        return status

    async def pods(self) -> Sequence[Json]:
        if self.away:
            raise SourceUnavailable("away")
        return list(self._pods.values())

    async def write_status(self, pod: SimPod, status: Json) -> None:
        if pod.uid in self._pods:
            self._pods[pod.uid]["status"] = dict(status)

    async def remove(self, pod: SimPod) -> None:
        self._pods.pop(pod.uid, None)

    async def write_amounts(
        self, capacity: Mapping[str, int], allocatable: Mapping[str, int]
    ) -> None:
        self.capacity, self.allocatable = dict(capacity), dict(allocatable)

    async def claim(self, namespace: str, name: str) -> Json:
        """None is ever there."""
        return {}

    async def remove_slices(self) -> None:
        """None is ever there."""


class World:
    """A node. Its kubelet looks for pods all the time; `calls` is what all plugins were asked, in
    order."""

    def __init__(self, folder: Path, version: Version) -> None:
        self.folder = folder
        self.version = version
        self.pods = PodsInMemory()
        self.calls: list[tuple[str, ...]] = []
        self.servers: list[PluginServer] = []
        self._stopping = asyncio.Event()
        self._kubelet: Kubelet | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def plugins_folder(self) -> Path:
        return self.folder / "device-plugins"

    @property
    def kubelet(self) -> Kubelet:
        assert self._kubelet is not None
        return self._kubelet

    async def start_kubelet(self) -> None:
        pace = KubeletPace(retry_s=0.05, list_s=0.01, look_s=0.01, dial_s=0.5)
        settings = SimulatedKubeletSettings(self.folder, self.version, pace=pace)
        self._kubelet = Kubelet(settings, self.pods)
        await self._kubelet.start()
        self._stopping.clear()
        self._running = asyncio.create_task(self._kubelet.run(self._stopping))

    async def stop_kubelet(self) -> None:
        self._stopping.set()
        if self._running:
            await self._running
        await self.kubelet.stop()

    async def restart_kubelet(self) -> None:
        await self.stop_kubelet()
        await self.start_kubelet()

    async def plugin(self, resource: str = MEMORY, count: int = 4) -> Plugin:
        """One that is served, and whose devices kubelet knows."""
        made = Plugin(resource, count, self.calls)
        await self.serve(made)
        await self.until(
            lambda: self.pods.capacity.get(resource) == count,
            f"kubelet knows {count} of {resource}",
        )
        return made

    async def serve(self, plugin: Plugin, endpoint: str = "") -> PluginServer:
        endpoint = endpoint or plugin.endpoint
        server = PluginServer(plugin.resource, self.plugins_folder, endpoint, plugin)
        await server.start()
        self.servers.append(server)
        await register(self.plugins_folder, endpoint, plugin.resource)
        return server

    def pod(self, limits: Mapping[str, int], command: str = "exec sleep 60", **spec: Any) -> str:
        """Its uid. The pod has one container, `main`, that runs `command`; spec: whatever else its
        spec has."""
        uid = str(uuid.uuid4())
        main = container("main", limits, command)
        name = f"pod-{uid[:8]}"
        metadata = {"namespace": "default", "name": name, "uid": uid}
        self.pods.add(
            {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [main], **spec}}
        )
        return uid

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, DEADLINE_S, what)

    async def phase(self, uid: str, phase: str) -> None:
        await self.until(lambda: self.pods.status(uid)["phase"] == phase, f"{uid} is {phase}")

    async def gone(self, uid: str) -> None:
        await self.until(lambda: uid not in self.pods, f"{uid} is gone")

    def state(self, uid: str) -> dict[str, Any]:
        """The state of the container `main`."""
        state: dict[str, Any] = self.pods.status(uid).get("containerStatuses", [{"state": {}}])[0][
            "state"
        ]
        return state

    async def waits(self, uid: str, reason: str) -> str:
        """Until `main` waits for this reason; the message beside it."""
        await self.until(lambda: self.state(uid).get("waiting", {}).get("reason") == reason, reason)
        message: str = self.state(uid)["waiting"]["message"]
        return message

    def run_of(self, uid: str) -> ContainerRun:
        """The newest run of a container of the pod."""
        return max(
            self.kubelet.containers.all_runs(uid),
            key=lambda run: (run.folder.parent.name == "main", run.attempt),
        )

    def pid(self, uid: str) -> int:
        state = self.run_of(uid).state()
        assert isinstance(state, Running)
        return state.pid

    def kill(self, uid: str) -> None:
        """As a program that crashes."""
        self.run_of(uid).signal(signal.SIGKILL)

    async def held(self) -> tuple[ContainerDevices, ...]:
        """What PodResources says."""
        return (await held_devices(self.folder / "pod-resources" / "kubelet.sock", KINDS)).held

    async def reboot(self) -> None:
        self._stopping.set()
        if self._running:
            await self._running
        await self.kubelet.switch_off()
        await self.start_kubelet()

    async def end(self) -> None:
        self._stopping.set()
        if self._running:
            await asyncio.gather(self._running, return_exceptions=True)
        await self.kubelet.switch_off()
        for server in self.servers:
            await server.stop()
        for uid in self.kubelet.containers.pods():
            self.kubelet.containers.forget(uid)


def container(name: str, limits: Mapping[str, int], command: str, **more: Any) -> dict[str, Any]:
    amounts = {resource: str(amount) for resource, amount in limits.items()}
    return {
        "name": name,
        "command": ["sh", "-c", command],
        "resources": {"limits": amounts},
        **more,
    }


def lives(pid: int) -> bool:
    return processes.identity_of(pid) is not None  # a zombie does not


def play(version: Version, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Runs a story in a world with a kubelet of this version."""

    async def played() -> None:
        # short: a socket's path ends at 107 characters
        with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
            world = World(Path(folder), version)
            await world.start_kubelet()
            try:
                await story(world)
            finally:
                await world.end()

    asyncio.run(played())
