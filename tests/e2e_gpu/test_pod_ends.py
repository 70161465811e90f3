"""Pods that are deleted, evicted and rolled amid kernels of 100 ms and products, beside a Job that
computes on.

The simulator's half is tests/whole/node/test_pod_ends.py.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tests.e2e.cluster import Object
from tests.e2e.driver_upgrades import changed_policy
from tests.e2e.shares import Pods, share
from tests.e2e.waiting import eventually
from tests.e2e_gpu import frameworks
from tests.e2e_gpu.installation import SIMULATE, GpuInstallation

TRIES = 3
_GIB = 4  # three matrices of 512 MiB, a context, and what PyTorch and cuBLAS take beside them
_SIZE = 16384  # 12 ms each on an H200
_MARK = "mpsd.io/e2e"
Record = Callable[[str, object], None]
_STARTED_S = 120.0  # PyTorch, several at once

# Neither handles SIGTERM. Half a second is queued of the first, an eighth of the second, so that
# all of a round run dry within the 3 s of the policy.
_KERNELS = ("kernel=100", "work=0.3", "launch=600")
_PYTORCH = f"""
import json, torch
a, b, c = (torch.randn({_SIZE}, {_SIZE}, dtype=torch.half, device="cuda") for _ in range(3))
while True:
    for _ in range(10):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize()
    print(json.dumps({{"launches": 10}}), flush=True)
"""
# What stands in for torchrun: the parent of a program, which passes SIGTERM on to it at once.
_LIKE_TORCHRUN = """
import signal, subprocess, sys
program = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: program.send_signal(signal.SIGTERM))
code = program.wait()
sys.exit(code if code >= 0 else 128 - code)
"""
_STARTS = {
    "pid1": (),
    "tini": ("/opt/mpsd/init/tini", "-s", "--"),
    "torchrun": ("python", "-c", _LIKE_TORCHRUN),
}
_PRODUCTS_ELSEWHERE = "products: MPSD_E2E_FRAMEWORKS names no Python with PyTorch"


def _container(pods: Pods, kernels: str, start: str) -> tuple[Object, Object]:
    asks, spec = pods.asks(_GIB, *_KERNELS), {}
    asks["env"] = [{"name": "HOME", "value": "/tmp"}]
    if kernels == "products" and SIMULATE:
        asks = pods.asks(_GIB, f"gemm={_SIZE}", *_KERNELS[1:])
    elif kernels == "products":
        spec = frameworks.runs_python(asks, _PYTORCH)
    asks["command"] = [*_STARTS[start], *asks["command"]]
    return asks, spec


def _kinds() -> Sequence[str]:
    if frameworks.PYTHON or SIMULATE:
        return ("kernels", "products")
    print(f"\nleft out: {_PRODUCTS_ELSEWHERE}")
    return ("kernels",)


def _job(name: str, mark: str, pod: Object) -> Object:
    metadata = {"name": name, "labels": {_MARK: mark}}
    template = {"metadata": {"labels": {_MARK: mark}}, "spec": pod["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"backoffLimit": 0, "template": template},
    }


def _deployment(name: str, mark: str, pod: Object) -> Object:
    """That ends the old pod before it makes a new one, as does who has only one share."""
    labels = {_MARK: mark, "app": name}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"] | {"restartPolicy": "Always"}}
    spec = {
        "selector": {"matchLabels": labels},
        "strategy": {"type": "Recreate"},
        "template": template,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


@dataclass(frozen=True, slots=True)
class Round:
    """Programs of each kind and each start that compute on one GPU, and are ended together. mark:
    their label."""

    mpsd: GpuInstallation
    pods: Pods
    mark: str
    names: list[str] = field(default_factory=list)

    def begin(self, kind: Callable[[str, str, Object], Object]) -> None:
        for kernels in _kinds():
            for start in _STARTS:
                asks, spec = _container(self.pods, kernels, start)
                name = f"{self.mark}-{kernels}-{start}"
                self.pods.create(kind(name, self.mark, share("pod", asks, **spec)))

    def wait_until_computing(self) -> None:
        wanted = len(_kinds()) * len(_STARTS)

        def compute() -> bool:
            found = [one for one in self._there() if one not in self.names]
            assert len(found) == wanted, found
            for name in found:
                assert any("launches" in line for line in self.pods.said(name)), self.pods.why(name)
            self.names[:] = found
            return True

        eventually(compute, f"all of {self.mark} compute", within_s=_STARTED_S)

    def assert_beside(self, neighbour: "NeighbourJob") -> None:
        """On its GPU, whatever else there is."""

        def together() -> bool:
            named = {*self.names, neighbour.pod}
            grants = [
                one
                for one in self.mpsd.status()["grants"]
                if one["pod"].rpartition("/")[2] in named
            ]
            assert len(grants) == len(named), grants
            return len({gpu for one in grants for gpu in one["gpus"]}) == 1

        eventually(together, "all on one GPU")

    def wait_until_gone(self) -> None:
        """Those that computed; others may have come for them."""
        eventually(lambda: not {*self.names} & {*self._there()}, f"{self.mark} gone", within_s=60.0)

    def _there(self) -> list[str]:
        found = self.pods.cluster.get(
            "pods", "-n", self.pods.namespace, "-l", f"{_MARK}={self.mark}"
        )["items"]
        return [one["metadata"]["name"] for one in found]

    def do(self, *words: str) -> None:
        self.pods.cluster.do(*words, "-n", self.pods.namespace, "-l", f"{_MARK}={self.mark}")

    def evict(self) -> None:
        for name in self.names:
            metadata = {"name": name, "namespace": self.pods.namespace}
            path = f"/api/v1/namespaces/{self.pods.namespace}/pods/{name}/eviction"
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
            self.pods.cluster.do("create", "--raw", path, "-f", "-", given=eviction)


@dataclass(frozen=True, slots=True)
class NeighbourJob:
    pods: Pods
    name: str

    def begin(self) -> None:
        asks = self.pods.asks(2, "work")
        self.pods.create(_job(self.name, self.name, share("pod", asks)))
        eventually(lambda: self.said, f"{self.name} computes", within_s=60.0)

    @property
    def pod(self) -> str:
        (found,) = self.pods.cluster.get(
            "pods", "-n", self.pods.namespace, "-l", f"{_MARK}={self.name}"
        )["items"]
        return found["metadata"]["name"]

    @property
    def said(self) -> list[Object]:
        return [line for line in self.pods.said(self.pod) if {"launches", "broke"} & line.keys()]

    def assert_computes_on(self) -> None:
        said = len(self.said)
        eventually(
            lambda: len(self.said) > said or "broke" in self.said[-1], f"{self.name} goes on"
        )
        assert "broke" not in self.said[-1], self.said[-1]

    def complete(self) -> None:
        """By SIGTERM, which it handles."""
        self.pods.run_in(self.pod, "kill", f"-{signal.SIGTERM.value}", "1")
        job = ("job", self.name, "-n", self.pods.namespace)
        eventually(
            lambda: self.pods.cluster.get(*job)["status"].get("succeeded") == 1,
            f"{self.name} completes",
        )


@pytest.fixture(scope="module")
def neighbour(pods: Pods) -> NeighbourJob:
    job = NeighbourJob(pods, "neighbour")
    job.begin()
    return job


@dataclass(frozen=True, slots=True)
class Trial:
    """Rounds beside the neighbour. tries: how many. record: keeps a figure."""

    mpsd: GpuInstallation
    pods: Pods
    neighbour: NeighbourJob
    tries: int
    record: Record

    def end_jobs(self, how: str, end: Callable[[Round], None]) -> None:
        before, ended = self._stops(), 0
        for number in range(self.tries):
            doomed = Round(self.mpsd, self.pods, f"{how}{number}")
            doomed.begin(_job)
            doomed.wait_until_computing()
            doomed.assert_beside(self.neighbour)
            end(doomed)
            doomed.do("delete", "job")
            doomed.wait_until_gone()
            self.neighbour.assert_computes_on()
            ended += len(doomed.names)
        self._say(how, ended, self._stops() - before)

    def roll(self) -> None:
        before, ended = self._stops(), 0
        rolled = Round(self.mpsd, self.pods, "rolled")
        rolled.begin(_deployment)
        for _ in range(self.tries):
            rolled.wait_until_computing()
            rolled.assert_beside(self.neighbour)
            rolled.do("rollout", "restart", "deployment")
            rolled.wait_until_gone()
            self.neighbour.assert_computes_on()
            ended += len(rolled.names)
        self._say("rolled", ended, self._stops() - before)
        rolled.wait_until_computing()
        rolled.do("delete", "deployment")
        rolled.wait_until_gone()
        self.neighbour.assert_computes_on()

    def _stops(self) -> int:
        lines = self.mpsd.logs("agent").splitlines()
        return sum('"client stopped"' in line and '"pod deleted"' in line for line in lines)

    def _say(self, how: str, ended: int, stopped: int) -> None:
        figures = {"pods": ended, "clients stopped": stopped, "neighbour": "lives"}
        self.record(how, figures)
        print(f"\n{how}: {figures}")
        assert stopped == ended, "each has one client, which no signal of kubelet's ended"


@pytest.fixture
def trial(
    request: pytest.FixtureRequest,
    mpsd: GpuInstallation,
    pods: Pods,
    neighbour: NeighbourJob,
    record_property: Record,
) -> Trial:
    return Trial(
        mpsd, pods, neighbour, request.config.getoption("--tries") or TRIES, record_property
    )


def test_pods_of_jobs_that_are_deleted_leave_their_neighbour_alone(trial: Trial) -> None:
    trial.end_jobs("deleted", lambda _: None)


def test_pods_of_jobs_that_are_evicted_leave_their_neighbour_alone(trial: Trial) -> None:
    trial.end_jobs("evicted", Round.evict)


def test_pods_that_are_rolled_leave_their_neighbour_alone(trial: Trial) -> None:
    trial.roll()


def test_their_neighbour_completes(neighbour: NeighbourJob) -> None:
    neighbour.complete()


def test_where_the_policy_leaves_them_to_kubelet_the_neighbour_dies(
    mpsd: GpuInstallation, pods: Pods, record_property: Record
) -> None:
    """Which shows that the tests above can fail."""
    doomed, left = NeighbourJob(pods, "doomed"), Round(mpsd, pods, "left")
    with changed_policy(mpsd, pod_ends=False):
        doomed.begin()
        left.begin(_job)
        left.wait_until_computing()
        left.assert_beside(doomed)
        left.do("delete", "job")
        eventually(lambda: "broke" in doomed.said[-1], "its neighbour's end", within_s=60.0)
        print(f"\npod_ends: false, the neighbour: {doomed.said[-1]}")
        record_property("neighbour", doomed.said[-1])
        assert doomed.said[-1]["broke"].startswith("700:")
        left.wait_until_gone()
        eventually(
            lambda: all(one["state"] == "ready" for one in mpsd.status().get("domains", ())),
            "all serve again",
        )
