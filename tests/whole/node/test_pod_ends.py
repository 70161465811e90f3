"""A deleted pod's clients are ended by the agent, in time and with care, and kubelet's signals find
nobody.

The simulated kubelet signals as soon as it hears of a deletion, for which a real one's runtime
takes some time: where it must not be the first, it hears of it once the agent has acted.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpsd.model.policy import POD_END_MARGIN_S
from mpsd.platform import local_api, processes
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import Line, eventually
from tests.whole.node.cluster import Cluster, Object, PodProgram, container, pod
from tests.whole.node.test_watchdog import frozen

pytestmark = needs_cgroups

_CLIENT = f"{sys.executable} -m mpsd.simulator.cuda_client"
_COMPUTES = f"{_CLIENT} kernel=100 launch=600"  # with several kernels of 100 ms queued all the time
DIES, IGNORES, HANDLES = (
    f"exec {_COMPUTES}",
    f"trap '' TERM; exec {_COMPUTES}",
    f"exec {_CLIENT} kernel=100 work",
)
KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
DRAIN_S = 2  # longer than what is queued takes
LONG_S = 600  # a grace that no test waits for
POLICY = {"graces": {"end_drain_s": DRAIN_S}}

# As tini and torchrun do: it passes TERM on, waits for its one program, and says how that ended.
_PASSING_ON = """
trap 'kill -TERM $program' TERM
sh -c "%s" &
program=$!
wait $program
code=$?
if kill -0 $program; then
    wait $program
    code=$?
fi
echo $code > %s
"""


class Program:
    """The one client of a pod, below a parent that passes SIGTERM on, once it holds its context."""

    def __init__(self, cluster: Cluster, name: str, code: Path) -> None:
        self._cluster, self._name, self._code = cluster, name, code
        program = PodProgram(cluster, name, "main")
        self.pid = eventually(lambda: program.heard("pid"), f"{name} holds its context")[0]
        eventually(lambda: cluster.grant(name).clients == 1, "its process is known")

    @property
    def exit_code(self) -> int:
        """How it ended, once its pod is gone: kubelet waits no longer than for its containers."""
        code = eventually(
            lambda: self._code.exists() and self._code.read_text(), f"{self._name} has ended"
        )
        eventually(lambda: self._cluster.is_gone(self._name), f"{self._name} is gone")
        return int(code)

    @property
    def lives(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    @property
    def stopped(self) -> list[Line]:
        return self._cluster.agent.logged("client stopped", pid=self.pid, reason="pod deleted")

    @property
    def end(self) -> list[Line]:
        return self._cluster.agent.logged("pod end begun", pod=f"default/{self._name}")


def code_file(cluster: Cluster, name: str) -> Path:
    """Where the parent of the pod's client writes how that ended."""
    return cluster.run_directory.parent / f"{name}.code"


def programs_pod(cluster: Cluster, name: str, command: str, **spec: object) -> Object:
    made: Object = pod(name, 2, **spec)
    made["spec"]["containers"][0]["command"] = [
        "sh",
        "-c",
        _PASSING_ON % (command, code_file(cluster, name)),
    ]
    return made


def started(cluster: Cluster, name: str, command: str, **spec: object) -> Program:
    cluster.apply(programs_pod(cluster, name, command, **spec))
    return Program(cluster, name, code_file(cluster, name))


@pytest.fixture
def neighbour(cluster: Cluster) -> Iterator[PodProgram]:
    """It computes on the same GPU, and still does so afterwards."""
    program = computing(cluster, "neighbour")
    yield program
    said = len(program.heard("launches"))
    eventually(
        lambda: len(program.heard("launches")) > said or program.heard("broke"), "it goes on"
    )
    assert not program.heard("broke")


def computing(cluster: Cluster, name: str) -> PodProgram:
    cluster.apply(pod(name, 2, actions=("work",)))
    program = PodProgram(cluster, name, "main")
    eventually(lambda: program.heard("launches"), f"{name} computes")
    return program


def deleted(cluster: Cluster, name: str) -> None:
    cluster.delete(name, LONG_S)


def evicted(cluster: Cluster, name: str) -> None:
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
    }
    cluster.ask("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", eviction)


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("end", [deleted, evicted])
def test_a_client_that_would_die_of_sigterm_is_stopped_before_it_comes(
    cluster: Cluster, end: Callable[[Cluster, str], None]
) -> None:
    name = end.__name__
    program = started(cluster, name, DIES, terminationGracePeriodSeconds=LONG_S)
    with frozen(cluster.kubelet):
        end(cluster, name)
        eventually(lambda: program.stopped, "it is stopped")
    assert program.exit_code == KILLED
    assert len(program.stopped) == 1
    assert [line["grace_s"] for line in program.end] == [LONG_S]


@pytest.mark.usefixtures("neighbour")
def test_a_client_that_handles_sigterm_ends_by_itself(cluster: Cluster) -> None:
    program = started(cluster, "handles", HANDLES)
    with frozen(cluster.kubelet):
        cluster.delete("handles", LONG_S)
        eventually(lambda: program.end, "its end is seen")
    assert program.exit_code == 0
    assert not program.stopped


@pytest.mark.usefixtures("neighbour")
def test_a_client_that_ignores_sigterm_is_ended_before_the_grace_is_over(cluster: Cluster) -> None:
    program = started(cluster, "ignores", IGNORES)
    cluster.delete("ignores", 4)
    assert program.exit_code == KILLED
    (end,) = program.end
    assert 0 < end["stop_in_s"] <= 4 - DRAIN_S - POD_END_MARGIN_S
    assert len(program.stopped) == 1


def test_the_next_agent_goes_on_with_the_grace_that_is_left(cluster: Cluster) -> None:
    program = started(cluster, "survives", IGNORES)
    cluster.delete("survives", LONG_S)
    (first,) = eventually(lambda: program.end, "its end is seen")
    cluster.restart_agent()
    (again,) = eventually(lambda: program.end, "the next agent knows it")
    assert again["grace_s"] == LONG_S
    assert again["stop_in_s"] < first["stop_in_s"]
    assert program.lives
    assert not program.stopped
    cluster.delete("survives", 1)
    assert program.exit_code == KILLED


def test_a_pod_removed_while_no_agent_ran_is_ended_by_the_next(cluster: Cluster) -> None:
    program = started(cluster, "unheard", IGNORES, terminationGracePeriodSeconds=LONG_S)
    cluster.delete("unheard", LONG_S)
    eventually(lambda: program.end, "its end is seen")
    cluster.agent.kill()
    cluster.delete("unheard", 0)
    cluster.agent = cluster.start_agent()
    assert program.exit_code == KILLED
    assert len(program.stopped) == 1


def test_where_the_policy_says_so_a_deleted_pod_is_left_to_kubelet(cluster: Cluster) -> None:
    with_policy(cluster, pod_ends=False)
    neighbour = computing(cluster, "neighbour")
    program = started(cluster, "left", DIES)
    cluster.delete("left", LONG_S)
    assert program.exit_code == TERMINATED
    assert not program.end
    assert not program.stopped
    eventually(lambda: neighbour.heard("broke"), "it takes its neighbour along")
    with_policy(cluster)


def with_policy(cluster: Cluster, **changes: object) -> None:
    """An agent that has the policy of these tests with these changes from its beginning."""
    cluster.agent.kill()
    cluster.set_policy(**POLICY, **changes)
    cluster.agent = cluster.start_agent()


@pytest.mark.usefixtures("neighbour")
def test_a_container_that_is_killed_alone_ends_alone(cluster: Cluster) -> None:
    """As mpsd-runtime asks, where a liveness probe fails."""
    made: Object = pod("probed", 2)
    made["spec"] |= {
        "containers": [
            container(name, 2, actions=("kernel=100", "launch=600"))
            for name in ("failing", "other")
        ],
        "restartPolicy": "Never",
    }
    cluster.apply(made)
    programs = [PodProgram(cluster, "probed", name) for name in ("failing", "other")]
    pids = [
        eventually(lambda one=one: one.heard("pid"), "it holds its context")[0] for one in programs
    ]
    eventually(lambda: cluster.grant("probed").clients == 2, "both processes are known")
    failing, other = map(processes.identity_of, pids)
    assert failing
    assert other
    asks = {
        "root": "/r",
        "id": "c1",
        "signum": 9,
        "pid": failing.pid,
        "start_ticks": failing.start_ticks - 1,
    }
    socket = cluster.run_directory / "mpsd.sock"
    code, body = local_api.ask(socket, "POST", "/v1/containers/end", asks)
    assert (code, json.loads(body)["ended"]) == (200, 0), "it is another life of that pid"
    code, body = local_api.ask(
        socket, "POST", "/v1/containers/end", asks | {"start_ticks": failing.start_ticks}
    )
    assert (code, json.loads(body)["ended"]) == (200, 1)
    assert [len(cluster.agent.logged("client stopped", pid=pid)) for pid in pids] == [1, 0]
    assert processes.is_alive(other)
    cluster.delete("probed")
