"""What the simulated kubelet says of a pod: its status, in the API's form."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mpsd.model.container import Role
from mpsd.simulator.kubelet.containers import Ended, Running
from mpsd.simulator.kubelet.pods import SimContainer


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run: a reason in CamelCase, and words."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class ContainerStatus:
    """Where one container stands. before: how it ended the last time, if it has run before."""

    container: SimContainer
    now: Waiting | Running | Ended = field(default_factory=lambda: Waiting("PodInitializing"))
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
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": _shown(datetime.now(UTC).timestamp())}


def _state(state: Waiting | Running | Ended) -> dict[str, Any]:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}
        case Running(started=started):
            return {"running": {"startedAt": _shown(started)}}
        case Ended(code, started, finished):
            times = {"startedAt": _shown(started), "finishedAt": _shown(finished)}
            return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **times}}


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
