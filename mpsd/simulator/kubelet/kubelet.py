"""A simulated kubelet: it speaks with device plugins as a real one does, and runs containers as
processes.

Everything that a real kubelet survives a restart with is on disk, and nothing else is.
What is left out: images, networks, volumes, probes, CPU and memory, the topology manager.
"""

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from mpsd.kubelet.api import podresources_pb2 as wire
from mpsd.kubelet.api import podresources_pb2_grpc as services
from mpsd.model.container import Role
from mpsd.simulator.kubelet.claims import ClaimManager
from mpsd.simulator.kubelet.containers import Containers, Running
from mpsd.simulator.kubelet.devices import DeviceManager
from mpsd.simulator.kubelet.plugins import PluginFailed
from mpsd.simulator.kubelet.pods import OLDEST, KubeletPace, SimPod, Version, read_pod
from mpsd.simulator.kubelet.sources import (
    ApiServerSource,
    PodSource,
    SourceUnavailable,
    read_kubeconfig,
)
from mpsd.simulator.kubelet.worker import PodWorker, rejection

# -- the PodResources API
# It says no more than kubelet's does: nothing of init containers, and nothing of what was not
# allocated.


class PodResources(services.PodResourcesListerServicer):
    """pods: those that kubelet knows, of 1.36 only those that have not ended."""

    def __init__(
        self,
        socket: Path,
        version: Version,
        devices: DeviceManager,
        pods: Callable[[], Iterable[SimPod]],
    ) -> None:
        self._socket = socket
        self._version = version
        self._devices = devices
        self._pods = pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        services.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def List(  # noqa: N802
        self, _request: wire.ListPodResourcesRequest, _context: object
    ) -> wire.ListPodResourcesResponse:
        self._devices.free_ended()
        return wire.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    def _pod(self, pod: SimPod) -> wire.PodResources:
        listed = {Role.MAIN, Role.SIDECAR} if self._version.lists_sidecars else {Role.MAIN}
        containers = [
            wire.ContainerResources(
                name=container.name, devices=self._entries(pod.uid, container.name)
            )
            for container in pod.containers
            if container.role in listed
        ]
        return wire.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)

    def _entries(self, uid: str, container: str) -> Iterator[wire.ContainerDevices]:
        for resource, ids in self._devices.held(uid, container).items():
            for entry in [[each] for each in ids] if self._version.entry_a_device else [ids]:
                yield wire.ContainerDevices(resource_name=resource, device_ids=entry)


@dataclass(frozen=True, slots=True)
class SimulatedKubeletSettings:
    """folder: kubelet's root.

    seed: of whatever kubelet leaves to chance. cgroup_root: below which the cgroups of pods are
    made; empty: the top. cdi: where the container runtime finds the devices of resource claims;
    None for a folder below kubelet's root.
    """

    folder: Path
    version: Version = OLDEST
    pace: KubeletPace = field(default_factory=KubeletPace)
    seed: int | None = None
    cgroup_root: str = ""
    cdi: Path | None = None


@dataclass(slots=True)
class _KnownPod:
    """A pod that this kubelet has seen. worker: None where it was refused, or had ended before."""

    pod: SimPod
    worker: PodWorker | None
    refusal: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    ending: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        return self.worker.has_ended if self.worker else self.refusal.get("phase") != "Pending"

    @property
    def status(self) -> Mapping[str, Any]:
        return self.worker.status if self.worker else self.refusal


class Kubelet:
    """Serves until `stop`. Nothing happens to pods but in `sync`, which one task at a time may
    call."""

    def __init__(self, settings: SimulatedKubeletSettings, source: PodSource) -> None:
        self._settings = settings
        self._source = source
        self._pods: dict[str, _KnownPod] = {}
        self._written_amounts: object = None
        self._is_away = False
        self.has_heard = False  # kubelet's sourcesReady
        self.containers = Containers(settings.folder / "containers", settings.cgroup_root)
        self.devices = DeviceManager(
            settings.folder / "device-plugins",
            settings.version,
            self._active,
            random.Random(settings.seed),  # noqa: S311
            settings.pace,
        )
        folder = settings.folder
        self.claims = ClaimManager(folder, settings.cdi or folder / "cdi", source, settings.pace)
        self._resources = PodResources(
            settings.folder / "pod-resources" / "kubelet.sock",
            settings.version,
            self.devices,
            self._listed,
        )

    async def start(self) -> None:
        self.claims.load()
        await self.devices.start()
        await self._resources.start()

    async def run(self, stopping: asyncio.Event) -> None:
        """Looks at the pods again and again."""
        while not stopping.is_set():
            await self.sync()
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._settings.pace.list_s)

    async def stop(self) -> None:
        """As a kubelet that is stopped: its containers go on."""
        for known in self._pods.values():
            if known.ending:
                known.ending.cancel()
            if known.worker:
                await known.worker.leave()
        await self._resources.stop()
        await self.devices.stop()

    async def switch_off(self) -> None:
        """As a machine that loses its power: nothing runs any more, and what is on disk stays."""
        await self.stop()
        runs = [run for uid in self.containers.pods() for run in self.containers.all_runs(uid)]
        while any(run.may_run for run in runs):
            for run in runs:
                run.signal(signal.SIGKILL)
            await asyncio.sleep(self._settings.pace.look_s)

    async def sync(self) -> None:
        """Admits the pods that are new, one after the other, ends those that go, and says how all
        of them are."""
        try:
            await self._sync({pod.uid: pod for pod in map(read_pod, await self._source.pods())})
        except SourceUnavailable as away:
            if not self._is_away:
                print(f"kubelet goes on alone: {away}", file=sys.stderr, flush=True)
            self._is_away = True
        else:
            self._is_away = False

    async def _sync(self, wanted: Mapping[str, SimPod]) -> None:
        if not self.has_heard:  # [wipeResourceSlices]
            await self._source.remove_slices()
        await self.claims.look()
        for uid, pod in wanted.items():
            if uid in self._pods:
                self._pods[uid].pod = pod
            elif not pod.is_deleted or self.containers.all_runs(uid) or self.claims.holds(uid):
                self._pods[uid] = await self._admit(pod)
            else:
                await self._source.remove(pod)
        self.has_heard = True
        self._end_those_that_go(wanted)
        await self.claims.end_left(self._pods)
        await self._say_all()

    async def _admit(self, pod: SimPod) -> _KnownPod:
        if pod.has_ended:
            return _KnownPod(pod, None)
        # it counts as active from now on
        self._pods[pod.uid] = _KnownPod(pod, None, {"phase": "Pending"})
        try:
            for container in pod.containers:
                last = self.containers.last_run(pod, container)
                runs = last is not None and isinstance(last.state(), Running)
                await self.devices.allocate(pod, container, runs=runs)
        except PluginFailed as error:
            words = (
                f"{self._settings.version.rejected}Allocate failed due to {error}, which is"
                " unexpected"
            )
            return _KnownPod(pod, None, rejection("UnexpectedAdmissionError", words))
        worker = PodWorker(pod, self.devices, self.claims, self.containers, self._settings.pace)
        return _KnownPod(pod, worker)

    def _end_those_that_go(self, wanted: Mapping[str, SimPod]) -> None:
        for uid, known in self._pods.items():
            if known.ending is None and (uid not in wanted or known.pod.is_deleted):
                known.ending = asyncio.create_task(self._end(known))
        # deleted while no kubelet ran
        for orphan in self.containers.pods() - wanted.keys() - self._pods.keys():
            runs = self.containers.all_runs(orphan)
            for run in runs:
                run.signal(signal.SIGKILL)
            if not any(run.may_run for run in runs):
                self.containers.forget(orphan)

    async def _end(self, known: _KnownPod) -> None:
        if known.worker:
            await known.worker.kill(known.pod.grace_s)
        while True:
            with suppress(SourceUnavailable):
                await self._source.remove(known.pod)
                break
            await asyncio.sleep(self._settings.pace.retry_s)
        self.containers.forget(known.pod.uid)
        del self._pods[known.pod.uid]

    async def _say_all(self) -> None:
        """Writes what is new."""
        for known in list(self._pods.values()):
            status = known.status
            if status and status != known.written:
                await self._source.write_status(known.pod, status)
                known.written = status
        amounts = self.devices.amounts()
        if amounts != self._written_amounts:
            await self._source.write_amounts(*amounts)
            self._written_amounts = amounts

    def _active(self) -> set[str] | None:
        if not self.has_heard:
            return None
        return {uid for uid, known in self._pods.items() if not known.has_ended}

    def _listed(self) -> Iterable[SimPod]:
        ended_too = self._settings.version.lists_ended_pods
        return [known.pod for known in self._pods.values() if ended_too or not known.has_ended]


# -- the simulated kubelet as a program: its arguments, and what it says on standard error
# SIGTERM stops it as a real one is stopped, with its containers left running.


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    settings = SimulatedKubeletSettings(
        given.dir, seed=given.seed, cgroup_root=given.cgroup_root, cdi=given.cdi_dir
    )
    return asyncio.run(_serve(settings, given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mpsd.simulator.kubelet.kubelet", description="A simulated kubelet."
    )
    parser.add_argument(
        "--dir",
        type=Path,
        required=True,
        help="kubelet's root, for sockets, checkpoint and containers",
    )
    parser.add_argument("--node", required=True, help="the name of the node")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        required=True,
        help="a file that names the API server and a token",
    )
    parser.add_argument(
        "--node-labels", default="", metavar="KEY=VALUE,…", help="of a node that is made"
    )
    parser.add_argument(
        "--cgroup-root", default="", metavar="NAME", help="below which all cgroups of pods are made"
    )
    parser.add_argument(
        "--cdi-dir",
        type=Path,
        metavar="DIR",
        help="where CDI devices are described; DIR/cdi of kubelet",
    )
    parser.add_argument("--seed", type=int, help="of what a kubelet leaves to chance")
    return parser


async def _serve(settings: SimulatedKubeletSettings, given: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    labels = dict(label.split("=", 1) for label in given.node_labels.split(",") if label)
    api = ApiServerSource(read_kubeconfig(given.kubeconfig), given.node, labels)
    kubelet = Kubelet(settings, api)
    await kubelet.start()
    print(
        f"kubelet {settings.version.name} of {given.node} serves in {settings.folder}",
        file=sys.stderr,
        flush=True,
    )
    try:
        await kubelet.run(stopping)
    finally:
        await kubelet.stop()
        await api.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
