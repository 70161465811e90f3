"""One pod of the simulated kubelet: its containers, from the first init container to the last end.

Before every start of a container its devices are asked for again; what fails then is tried again,
with the reason in the status, until the pod is deleted.
"""

import asyncio
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mpsd.model.container import Role
from mpsd.simulator.kubelet.claims import ClaimManager
from mpsd.simulator.kubelet.containers import (
    CannotCreate,
    ContainerRun,
    Containers,
    Ended,
    NotStarted,
    Running,
)
from mpsd.simulator.kubelet.devices import DeviceManager
from mpsd.simulator.kubelet.plugins import PluginFailed
from mpsd.simulator.kubelet.pods import KubeletPace, SimContainer, SimPod

# What the simulated kubelet says of a pod: its status, in the API's form.


@dataclass(frozen=True, slots=True)
class ContainerWaiting:
    """Why a container does not run: a reason in CamelCase, and words."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class ContainerStatus:
    """Where one container stands. before: how it ended the last time, if it has run before."""

    container: SimContainer
    now: ContainerWaiting | Running | Ended = field(
        default_factory=lambda: ContainerWaiting("PodInitializing")
    )
    before: Ended | None = None
    restarts: int = 0
    id: str = ""

    def written(self) -> dict[str, Any]:
        runs = isinstance(self.now, Running)
        return {
            "name": self.container.name,
            "image": "",
            "imageID": "",
            "ready": runs,
            "started": runs,
            "restartCount": self.restarts,
            "state": _state(self.now),
            "lastState": {} if self.before is None else _state(self.before),
            **({"containerID": f"containerd://{self.id}"} if self.id else {}),
        }


def pod_status(phase: str, containers: Iterable[ContainerStatus], started: float) -> dict[str, Any]:
    """The status of a pod that was admitted. started: when, in seconds since 1970."""
    written = [(each.container.role, each.written()) for each in containers]
    main = [status for role, status in written if role is Role.MAIN]
    ready = phase == "Running" and all(status["ready"] for status in main)
    return {
        "phase": phase,
        "startTime": _shown(started),
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "initContainerStatuses": [status for role, status in written if role is not Role.MAIN],
        "containerStatuses": main,
    }


def rejection(reason: str, message: str) -> Mapping[str, Any]:
    """The status of a pod that was not admitted, which is final."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": _shown(datetime.now(UTC).timestamp()),
    }


def _state(state: ContainerWaiting | Running | Ended) -> dict[str, Any]:
    match state:
        case ContainerWaiting(reason, message):
            return {
                "waiting": {"reason": reason, "message": message} if message else {"reason": reason}
            }
        case Running(started=started):
            return {"running": {"startedAt": _shown(started)}}
        case Ended(code, started, finished):
            times = {"startedAt": _shown(started), "finishedAt": _shown(finished)}
            return {
                "terminated": {
                    "exitCode": code,
                    "reason": "Error" if code else "Completed",
                    **times,
                }
            }


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_CANNOT_START = 128  # the exit code of a container whose command is none
_LONGEST_WAIT = 30  # times the first
_LONGEST_KILL_S = 10.0


class PodWorker:
    """A pod that was admitted."""

    def __init__(
        self,
        pod: SimPod,
        devices: DeviceManager,
        claims: ClaimManager,
        containers: Containers,
        pace: KubeletPace,
    ) -> None:
        self.pod = pod
        self._devices = devices
        self._claims = claims
        self._containers = containers
        self._pace = pace
        self._phase = "Pending"
        self._started = time.time()
        self._statuses = {each.name: ContainerStatus(each) for each in pod.containers}
        self._work = asyncio.create_task(self._run())

    @property
    def has_ended(self) -> bool:
        return self._phase in {"Succeeded", "Failed"}

    @property
    def status(self) -> Mapping[str, Any]:
        return pod_status(self._phase, self._statuses.values(), self._started)

    async def leave(self) -> None:
        """Kubelet stops: what runs goes on."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def kill(self, grace_s: float) -> None:
        """Ends every container, and then what the pod has of resource claims."""
        await self.leave()
        await self._end(self.pod.containers, grace_s)
        await self._let_go()

    async def _run(self) -> None:
        await self._prepare()
        phase = await self._play()
        await self._let_go()
        self._phase = phase

    async def _prepare(self) -> None:
        """Tries until every resource claim of the pod is prepared."""
        while True:
            try:
                await self._claims.prepare(self.pod)
                return
            except PluginFailed as error:
                for status in self._statuses.values():
                    status.now = ContainerWaiting("FailedPrepareDynamicResources", str(error))
            await asyncio.sleep(self._pace.retry_s)

    async def _let_go(self) -> None:
        while True:
            try:
                await self._claims.unprepare(self.pod.uid)
                return
            except PluginFailed:
                await asyncio.sleep(self._pace.retry_s)

    async def _play(self) -> str:
        """Runs its containers; the phase in which it ends."""
        sidecars = []
        try:
            for container in self.pod.containers:
                if container.role is Role.SIDECAR:
                    sidecars.append(asyncio.create_task(self._keep_running(container, "Always")))
                elif container.role is Role.INIT and not await self._keep_running(
                    container, self._init_restart
                ):
                    return "Failed"
            main = [each for each in self.pod.containers if each.role is Role.MAIN]
            ended_well = await asyncio.gather(
                *(self._keep_running(each, self.pod.restart) for each in main)
            )
            await self._end(
                (each for each in self.pod.containers if each.role is Role.SIDECAR),
                self.pod.grace_s,
            )
            return "Succeeded" if all(ended_well) else "Failed"
        finally:
            for sidecar in sidecars:
                sidecar.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)

    @property
    def _init_restart(self) -> str:
        return "Never" if self.pod.restart == "Never" else "OnFailure"

    async def _keep_running(self, container: SimContainer, restart: str) -> bool:
        """Runs it again as often as `restart` says; whether it ended well at last."""
        status = self._statuses[container.name]
        run = self._containers.last_run(self.pod, container)  # that an earlier kubelet started
        wait_s = self._pace.retry_s
        while True:
            ended = await self._to_its_end(run or await self._start(container), status)
            if restart == "Never" or (restart == "OnFailure" and ended.exit_code == 0):
                return ended.exit_code == 0
            run = None
            status.before = ended
            status.now = ContainerWaiting(
                "CrashLoopBackOff", f"back-off {wait_s:g}s restarting failed container"
            )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT * self._pace.retry_s)

    async def _start(self, container: SimContainer) -> ContainerRun:
        """Tries until there is a container."""
        status = self._statuses[container.name]
        while True:
            try:
                given = await self._devices.prepare(self.pod, container)
                claimed = self._claims.given(self.pod, container)
                return self._containers.start(self.pod, container, given, claimed)
            except PluginFailed as error:
                status.now = ContainerWaiting("CreateContainerConfigError", str(error))
            except CannotCreate as error:
                status.now = ContainerWaiting("CreateContainerError", str(error))
            await asyncio.sleep(self._pace.retry_s)

    async def _to_its_end(self, run: ContainerRun, status: ContainerStatus) -> Ended:
        status.restarts, status.id = run.attempt, self._containers.spec(run)["id"]
        while True:
            match run.state():
                case Ended() as ended:
                    status.now = ended
                    return ended
                case Running() as running:
                    status.now, self._phase = running, self._phase_now()
                case NotStarted(reason) if reason:
                    now = time.time()
                    status.now = Ended(_CANNOT_START, now, now)
                    return status.now
                case NotStarted():
                    status.now = ContainerWaiting("ContainerCreating")
            await asyncio.sleep(self._pace.look_s)

    def _phase_now(self) -> str:
        main = (status for status in self._statuses.values() if status.container.role is Role.MAIN)
        return "Running" if any(isinstance(status.now, Running) for status in main) else self._phase

    async def _end(self, containers: Iterable[SimContainer], grace_s: float) -> None:
        runs = [run for each in containers if (run := self._containers.last_run(self.pod, each))]
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _LONGEST_KILL_S)):
            ends = time.monotonic() + wait_s
            signalled: set[ContainerRun] = set()
            while any(run.may_run for run in runs) and time.monotonic() < ends:
                signalled.update(run for run in runs if run not in signalled and run.signal(number))
                await asyncio.sleep(self._pace.look_s)
