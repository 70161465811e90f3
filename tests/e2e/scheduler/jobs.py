"""A Job of more pods than fit at once, watched from its beginning to its end."""

import time
from dataclasses import dataclass, field

from tests.e2e.cluster import Object
from tests.e2e.installation import UNITS, Installation
from tests.e2e.scheduler.shares_waiting import shared
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_UNIT_MIB = 1024


@dataclass(slots=True)
class WatchedJob:
    """Pods of so many GiB, all at once. running: the most that ran together. too_much: what a GPU once had given away
    beyond what it has.
    """

    mpsd: Installation
    pods: Pods
    name: str
    gib: int
    times: int
    running: int = 0
    too_much: list[Object] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def start(self, *actions: str) -> None:
        """actions: what each pod does."""
        pod = shared(self.pods, self.name, self.gib, *actions)
        template = {"metadata": {"labels": {"e2e": self.name}}, "spec": pod["spec"]}
        spec = {"completions": self.times, "parallelism": self.times, "backoffLimit": 0, "template": template}
        metadata = {"name": self.name}
        self.pods.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
        self._began = time.monotonic()

    def wait_until_running(self, pods: int) -> None:
        def are_running() -> bool:
            self.look()
            return self.running >= pods

        eventually(are_running, f"{pods} pods of {self.name} running")

    def wait_until_over(self) -> float:
        """Until all have succeeded or one has failed; gives the seconds since the start."""

        def is_over() -> bool:
            counts = self.look()
            return bool(counts.get("failed")) or counts.get("succeeded") == self.times

        eventually(is_over, f"{self.name} over", within_s=240.0)
        return time.monotonic() - self._began

    def look(self) -> Object:
        """The Job's own counts."""
        self.running = max(self.running, sum(pod["status"]["phase"] == "Running" for pod in self._listed()))
        self.too_much += [gpu for gpu in self.mpsd.told()["gpus"] if gpu["grantedMiB"] > UNITS * _UNIT_MIB]
        counts: Object = self.pods.cluster.get("job", self.name, "-n", self.pods.namespace)["status"]
        return counts

    def assert_none_failed(self) -> None:
        failed = [pod["status"] for pod in self._listed() if pod["status"]["phase"] != "Succeeded"]
        assert failed == []
        assert self.too_much == []

    def _listed(self) -> list[Object]:
        found: list[Object] = self.pods.cluster.get("pods", "-n", self.pods.namespace, "-l", f"e2e={self.name}")[
            "items"
        ]
        return found
