"""A simulated kubelet: it speaks with device plugins as a real one does, and runs containers as processes.

One rule: everything that a real kubelet survives a restart with is on disk, and nothing else is.
What is left out: images, networks, volumes, probes, CPU and memory, the topology manager.
"""

import asyncio
import random
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpsd.simulator.kubelet.containers import Containers, Running
from mpsd.simulator.kubelet.kubelet_devices import DeviceManager
from mpsd.simulator.kubelet.kubelet_pace import Pace
from mpsd.simulator.kubelet.kubelet_plugins import PluginFailed
from mpsd.simulator.kubelet.kubelet_pod_resources import PodResources
from mpsd.simulator.kubelet.kubelet_pod_worker import PodWorker
from mpsd.simulator.kubelet.kubelet_status import rejection
from mpsd.simulator.kubelet.kubelet_version import OLDEST, Version
from mpsd.simulator.kubelet.pods import SimPod, read_pod
from mpsd.simulator.kubelet.sources import PodSource, SourceAway


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """folder: kubelet's root. command: what every container runs in place of its own; empty: its own.

    seed: of whatever kubelet leaves to chance. cgroup_root: below which the cgroups of pods are made; empty: the top.
    """

    folder: Path
    version: Version = OLDEST
    command: tuple[str, ...] = ()
    pace: Pace = field(default_factory=Pace)
    seed: int | None = None
    cgroup_root: str = ""


@dataclass(slots=True)
class _Known:
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
    """Serves until `stop`. Nothing happens to pods but in `sync`, which one task at a time may call."""

    def __init__(self, settings: KubeletSettings, source: PodSource) -> None:
        self._settings = settings
        self._source = source
        self._pods: dict[str, _Known] = {}
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
        self._resources = PodResources(
            settings.folder / "pod-resources" / "kubelet.sock", settings.version, self.devices, self._listed
        )

    async def start(self) -> None:
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
        """Admits the pods that are new, one after the other, ends those that go, and says how all of them are."""
        try:
            await self._sync({pod.uid: pod for pod in map(read_pod, await self._source.pods())})
        except SourceAway as away:
            if not self._is_away:
                print(f"kubelet goes on alone: {away}", file=sys.stderr, flush=True)
            self._is_away = True
        else:
            self._is_away = False

    async def _sync(self, wanted: Mapping[str, SimPod]) -> None:
        for uid, pod in wanted.items():
            if uid in self._pods:
                self._pods[uid].pod = pod
            elif not pod.is_deleted or self.containers.all_runs(uid):
                self._pods[uid] = await self._admit(pod)
            else:
                await self._source.remove(pod)
        self.has_heard = True
        self._end_those_that_go(wanted)
        await self._say_all()

    async def _admit(self, pod: SimPod) -> _Known:
        if pod.has_ended:
            return _Known(pod, None)
        self._pods[pod.uid] = _Known(pod, None, {"phase": "Pending"})  # it counts as active from now on
        try:
            for container in pod.containers:
                last = self.containers.last_run(pod, container)
                runs = last is not None and isinstance(last.state(), Running)
                await self.devices.allocate(pod, container, runs=runs)
        except PluginFailed as error:
            words = f"{self._settings.version.rejected}Allocate failed due to {error}, which is unexpected"
            return _Known(pod, None, rejection("UnexpectedAdmissionError", words))
        worker = PodWorker(pod, self.devices, self.containers, self._settings.pace, self._settings.command)
        return _Known(pod, worker)

    def _end_those_that_go(self, wanted: Mapping[str, SimPod]) -> None:
        for uid, known in self._pods.items():
            if known.ending is None and (uid not in wanted or known.pod.is_deleted):
                known.ending = asyncio.create_task(self._end(known))
        for orphan in self.containers.pods() - wanted.keys() - self._pods.keys():  # deleted while no kubelet ran
            runs = self.containers.all_runs(orphan)
            for run in runs:
                run.signal(signal.SIGKILL)
            if not any(run.may_run for run in runs):
                self.containers.forget(orphan)

    async def _end(self, known: _Known) -> None:
        if known.worker:
            await known.worker.kill(known.pod.grace_s)
        while True:
            with suppress(SourceAway):
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


if __name__ == "__main__":
    from mpsd.simulator.kubelet.kubelet_program import main

    raise SystemExit(main())
