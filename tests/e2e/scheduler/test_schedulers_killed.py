"""Both replicas are killed while pods wait, are bound and start. The last file: a scheduler that
finds promises to pods that it never saw counts them for a minute.

Kubelet 1.20 may give a device twice where a pod ends meanwhile. Such a pod never starts: mpsd has
it made anew. No pod may fail in any other way.
"""

import json
from dataclasses import dataclass, field

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import GPUS, SYSTEM, UNITS, Installation
from tests.e2e.scheduler.shares_waiting import shared
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_UNIT_MIB = 1024
_MADE_ANEW = "LimitsMismatch: "  # the event on such a pod


@dataclass(slots=True)
class WatchedJob:
    """Pods of so many GiB, all at once. running: the most that ran together. too_much: what a GPU
    once had given away beyond what it has. failed: how, by the pod's name.
    """

    mpsd: Installation
    pods: Pods
    name: str
    gib: int
    times: int
    running: int = 0
    too_much: list[Object] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def start(self, *actions: str) -> None:
        pod = shared(self.pods, self.name, self.gib, *actions)
        template = {"metadata": {"labels": {"e2e": self.name}}, "spec": pod["spec"]}
        spec = {
            "completions": self.times,
            "parallelism": self.times,
            "backoffLimit": self.times,
            "template": template,
        }
        metadata = {"name": self.name}
        self.pods.create(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        )

    def wait_until_running(self, pods: int) -> None:
        def are_running() -> bool:
            self.look()
            return self.running >= pods

        eventually(are_running, f"{pods} pods of {self.name} running")

    def wait_until_over(self) -> None:
        eventually(
            lambda: self.look().get("succeeded") == self.times, f"{self.name} over", within_s=240.0
        )

    def look(self) -> Object:
        pods = self._listed()
        self.running = max(self.running, sum(pod["status"]["phase"] == "Running" for pod in pods))
        for pod in pods:
            if pod["status"]["phase"] == "Failed":
                name, status = pod["metadata"]["name"], json.dumps(pod["status"])
                self.failed[name] = (
                    f"{status}, {[_said(event) for event in self.pods.events(name)]}"
                )
        self.too_much += [
            gpu for gpu in self.mpsd.told()["gpus"] if gpu["grantedMiB"] > UNITS * _UNIT_MIB
        ]
        return self.pods.cluster.get("job", self.name, "-n", self.pods.namespace)["status"]

    def assert_none_failed(self) -> None:
        """But those made anew; and that no GPU ever gave away more than it has."""
        others = [said for said in self.failed.values() if _MADE_ANEW not in said]
        assert not others, "\n".join(others)
        assert self.too_much == []

    def _listed(self) -> list[Object]:
        return self.pods.cluster.get("pods", "-n", self.pods.namespace, "-l", f"e2e={self.name}")[
            "items"
        ]


def _said(event: Object) -> str:
    return f"{event['reason']}: {event['message']}"


_GIB = 7
_AT_ONCE = GPUS * (UNITS // _GIB)


def test_schedulers_killed_in_the_middle_give_nothing_away_twice(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    eventually(mpsd.is_ledger_at_zero, "nobody else on the GPUs", within_s=60.0)
    job = WatchedJob(mpsd, pods, "killed", _GIB, _AT_ONCE + 2)
    job.start("alloc=1000", "hold=6")
    job.wait_until_running(2)
    before = [pod["metadata"]["name"] for pod in mpsd.pods("scheduler")]
    cluster.do("delete", "pod", "-n", SYSTEM, "--grace-period=0", "--force", *before)
    job.wait_until_over()
    job.assert_none_failed()
    assert not set(before) & {pod["metadata"]["name"] for pod in mpsd.pods("scheduler")}
