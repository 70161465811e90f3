"""Whatever a pod does to have more of a GPU than it was given, it is ended for it, soon, alone, and
told why.

On one node, where processes may run beside MPS, with a neighbour who keeps to its grant.
"""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mpsd.model.node_report import ViolationsReport
from mpsd.model.policy import Response
from mpsd.model.violations import ViolationKind
from mpsd.platform import local_api
from mpsd.simulator.card import MPS_SERVER
from mpsd.simulator.gpus import MIB
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import SOON_S, Service, eventually
from tests.whole.node.cluster import Cluster, Object, PodProgram, pod
from tests.whole.node.conftest import begun

pytestmark = needs_cgroups

LIMIT, PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
UNITS, TOLERANCE_MIB = 2, 32
MOST_CLIENTS = 5
RESTARTS = 9
BROKE = 4  # the exit code of a program whose server ended its work before SIGKILL came

# Sections 2 and 3 of mps-observed: each was seen to lift every memory limit, the server's too.
LIFTING = (
    "0=2147483648",
    "0=2097152K",
    "1G",
    "0=abc",
    "0=0",
    " 0=1G",
    "0=1G,1=1G",
    "1=1G",
    "5=1G",
    "garbage",
    "0=",
    "GPU-00000000-dead-beef-0000-000000000000=1G",
)

# A program that sets the variable itself: what it was started with shows nothing of that.
_EACH = """
import json, os, sys, time
from mpsd.simulator.cuda_client import main
for value in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        os.environ[sys.argv[1]] = value
        os._exit(main(["alloc=4000", "hold"]))
    print(json.dumps({"value": value, "status": os.waitpid(child, 0)[1]}), flush=True)
print(json.dumps({"ready": True, "through": True}), flush=True)
time.sleep(600)
"""


class Watched:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._card = cluster.card()
        self._neighbour = 0
        cluster.running("neighbour", 4, actions=("alloc=1000", "hold"))
        (self._neighbour,) = self.others()
        self._kept_mib = self.used_mib(self._neighbour)

    def others(self) -> set[int]:
        """Whoever is on the GPU beside the neighbour."""
        here = {holding.pid for holding in self._card.holdings() if holding.kind != MPS_SERVER}
        return here - {self._neighbour}

    def used_mib(self, *pids: int) -> int:
        """As NVML would say."""
        return (
            sum(holding.held_bytes for holding in self._card.holdings() if holding.pid in pids)
            // MIB
        )

    def until_through(self, name: str) -> None:
        program = PodProgram(self.cluster, name, "main")
        eventually(lambda: program.heard("through"), f"{name} is through", within_s=2 * SOON_S)

    def told(self, name: str, reason: str) -> str:
        told = eventually(lambda: self.cluster.events(reason, name), f"{name} hears of {reason}")
        return "\n".join(told)

    @property
    def violations(self) -> ViolationsReport:
        found = self.cluster.node().violations
        assert found is not None
        return found

    def is_judged_again(self) -> None:
        def looks() -> int:
            with suppress(local_api.NotRunning):
                found = self.violations
                return 0 if found.unjudged else found.looks
            return 0

        before = eventually(looks, "somebody judges")
        eventually(lambda: looks() > before, "and judges again")

    def counted(self, kind: ViolationKind, action: Response) -> int:
        return sum(
            one.count for one in self.violations.counts if (one.kind, one.action) == (kind, action)
        )

    def empty(self) -> None:
        """Deletes every pod but the neighbour, which has kept all that it had."""
        for item in self.cluster.ask("GET", "/api/v1/namespaces/default/pods")["items"]:
            if item["metadata"]["name"] != "neighbour":
                self.cluster.delete(item["metadata"]["name"])
        eventually(lambda: not self.others(), "nobody else is left on the GPU")
        assert self.used_mib(self._neighbour) == self._kept_mib
        assert self.cluster.phase("neighbour") == "Running"
        assert not self.cluster.events(name="neighbour")


def by_shell(name: str, script: str, units: int = UNITS, percent: int | None = None) -> Object:
    """A pod whose one container is a script, in which `sim-cuda` is a program on the GPU."""
    made = pod(name, units, percent)
    (container,) = made["spec"]["containers"]
    container["command"] = [
        "sh",
        "-c",
        script.replace("sim-cuda", f"{sys.executable} -m mpsd.simulator.cuda_client"),
    ]
    return made


def unasking(
    watched: Watched, name: str, script: str = "sim-cuda alloc=100 hold; sleep 600"
) -> Object:
    """A pod that asks for no GPU; its image brings it onto one all the same."""
    made = by_shell(name, script)
    (container,) = made["spec"]["containers"]
    container["resources"] = {}
    container["env"] = [
        {"name": "MPSD_SIMULATION", "value": str(watched.cluster.simulation.folder)}
    ]
    return made


def policy(cluster: Cluster, **actions: str) -> None:
    """The usual one, but for what is done about these kinds."""
    changed: dict[str, dict[str, Any]] = {
        kind: {"action": action} for kind, action in actions.items()
    }
    if "memory_over_grant" in changed:
        changed["memory_over_grant"]["tolerance_mib"] = TOLERANCE_MIB
    cluster.set_policy(
        exclusive_process=False,
        requests={"clients_per_grant": MOST_CLIENTS},
        violations=changed,
        graces={"command_s": 10, "start_s": 30},  # a busy machine is not a wedged daemon
    )


@pytest.fixture(scope="module")
def shared() -> Iterator[Watched]:
    cluster = Cluster()
    policy(cluster)
    for begun_one in begun(cluster):
        yield Watched(begun_one)


@pytest.fixture
def watched(shared: Watched) -> Iterator[Watched]:
    yield shared
    shared.empty()


def test_every_value_that_lifts_the_limits_is_contained(watched: Watched) -> None:
    made = pod("liar", UNITS)
    made["spec"]["containers"][0]["command"] = [
        sys.executable,
        "-c",
        _EACH,
        LIMIT,
        json.dumps(LIFTING),
    ]
    watched.cluster.apply(made)
    watched.until_through("liar")
    ended = {
        line["value"]: line["status"]
        for line in watched.cluster.program_of("liar").lines
        if "value" in line
    }
    assert ended.keys() == set(LIFTING)
    assert set(ended.values()) <= {int(signal.SIGKILL), BROKE << 8}
    assert "MiB of gpu0 are in use, 2048 MiB are granted" in watched.told(
        "liar", "GPUMemoryExceeded"
    )
    assert not watched.cluster.events("GPULimitLifted", "liar")
    assert watched.cluster.phase("liar") == "Running", "the process that uses no GPU is left alone"
    last = [one for one in watched.violations.last if one.kind == ViolationKind.MEMORY_OVER_GRANT][
        -1
    ]
    assert (last.pod, last.action) == ("default/liar", Response.KILL)


def test_the_policy_says_what_is_done(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.agent.kill()
    policy(cluster, memory_over_grant="warn", outside_mps="observe", without_grant="evict")
    cluster.agent = cluster.start_agent()
    cluster.apply(by_shell("warned", f"{LIMIT}=garbage exec sim-cuda alloc=4000 hold"))
    cluster.apply(by_shell("observed", f"{PIPE}=/nowhere exec sim-cuda hold", 3))
    cluster.apply(unasking(watched, "evicted"))
    assert watched.told("warned", "GPUMemoryExceeded")
    eventually(
        lambda: watched.counted(ViolationKind.OUTSIDE_MPS, Response.OBSERVE), "it is observed"
    )
    eventually(lambda: cluster.is_gone("evicted"), "it is evicted")
    assert "without a grant" in watched.told("evicted", "MPSEvicted")
    assert not watched.cluster.events(name="observed")
    assert len(watched.others()) == 2, "whoever is warned of or observed is left alone"
    policy(cluster)
    eventually(lambda: not watched.others(), "by the usual policy both are ended")


def test_no_innocent_pod_is_touched_however_often_the_agent_is_restarted(watched: Watched) -> None:
    """Killed as it begins, while kubelet has told it who holds what and the API not yet who that
    is, and later."""
    cluster = watched.cluster
    cluster.running("innocent", UNITS, actions=("alloc=1500", "hold"))
    here = {pid: watched.used_mib(pid) for pid in watched.others()}
    for number in range(RESTARTS):
        cluster.agent.kill()
        with frozen(cluster.api if number % 3 == 1 else None):
            agent = cluster.agent = cluster.launch_agent()
            if number % 3 == 1:
                watched.is_judged_again()
            elif number % 3 == 2:
                eventually(
                    lambda agent=agent: agent.logged("limit set"), "the agent has set the limit"
                )
    cluster.restart_agent()
    assert {pid: watched.used_mib(pid) for pid in watched.others()} == here
    assert not watched.cluster.events(name="innocent")


@contextmanager
def frozen(service: Service | None) -> Iterator[None]:
    if service:
        service.send(signal.SIGSTOP)
    try:
        yield
    finally:
        if service:
            service.send(signal.SIGCONT)
