"""Parts of an earlier mpsd beside those of this one, as during a roll-out: docs/upgrade.md has the promise.

The earlier one is a commit of this repository, run by its own code. There is no release yet, so it is one
from before the first.
"""

import io
import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.simulator.gpus import gpus_path
from tests.whole.machine.machine import MPSD, Service, eventually, quick
from tests.whole.node.cluster import NODE, Cluster, Object, pod
from tests.whole.node.test_claims import ClaimCluster
from tests.whole.scheduler.process import extender
from tests.whole.webhook.api_server import api_server
from tests.whole.webhook.world import bundles, gpu_pod, is_registered, put_shipped_objects, review_of, webhook

EARLIER = "3a3c612"  # before GPUs were joined on demand and claims were served; at a release, the tag of the one before
EARLIER_CLAIMS = "190ca66"  # when a claim had one CDI device, whatever its GPUs
_TOP = Path(__file__).parents[3]
# An MPSNode as a scheduler, `kubectl mps` and a bundle read it.
_READS = """
import json, sys, time
from mpsd.model.mpsnode import read_mpsnode
from mpsd.scheduler.rules.reservations import read_reservations, written
thing = json.load(sys.stdin)
node = read_mpsnode(thing, time.time())
gpus = [(one.uuid, one.memory_mib, one.promised_mib, one.promised_percent) for one in node.gpus]
pods = [(one.pod, one.uid, one.gpus, one.memory_mib, one.thread_percent, one.clients) for one in node.pods or ()]
reserved = written(read_reservations(thing["metadata"]["annotations"]["mpsd.io/reserved"]))
print(json.dumps([node.ready, node.unreadable, [one.name for one in node.domains], gpus, pods, reserved]))
"""
_RESERVED = '{"u1":{"at":"2026-11-23T22:00:00Z","gpus":["GPU-1","GPU-2"],"mib":7168,"percent":30,"pod":"a/b"}}'


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What a program of the earlier mpsd has in its environment."""
    return _environment_of(EARLIER, tmp_path_factory.mktemp("earlier"))


@pytest.fixture(scope="session")
def earlier_claims(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The same of an earlier one that serves claims."""
    return _environment_of(EARLIER_CLAIMS, tmp_path_factory.mktemp("earlier-claims"))


def _environment_of(commit: str, folder: Path) -> Mapping[str, str]:
    command = ["git", "-C", _TOP, "archive", commit, "mpsd", "limits"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"the history does not reach back to {commit}: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    policy = folder / "limits/policy.yaml"  # each knows the fields of its own alone
    policy.write_text(yaml.safe_dump(quick(yaml.safe_load(policy.read_text()))))
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "MPSD_LIMITS": str(policy.parent)}


def _keep_what_is_known(simulation: Path, earlier: Mapping[str, str]) -> None:
    """Of the simulated GPUs, which an earlier simulator reads: no earlier driver is told of facts that are new."""
    program = (
        "import dataclasses, mpsd.simulator.gpus as g; print(*(f.name for f in dataclasses.fields(g.SimulatedGpu)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=earlier, timeout=60, check=True)
    path, known = gpus_path(simulation), done.stdout.decode().split()
    gpus = json.loads(path.read_text())
    path.write_text(json.dumps([{name: gpu[name] for name in known if name in gpu} for gpu in gpus]))


class Rolled(Cluster):
    """A cluster whose agent may be of an earlier mpsd. _agent: what that one has in its environment."""

    _agent: Mapping[str, str]

    def launch_agent(self) -> Service:
        return self._started(Service([str(MPSD), *self.agent_words], self.environment | self._agent, self._said))

    def roll_agent(self, to: Mapping[str, str]) -> None:
        self.agent.send(signal.SIGTERM)
        assert self.agent.exit_code() == 0
        self._agent = to
        self.agent = self.start_agent()


class Mixed(Rolled):
    """Its control, too, may be of the earlier mpsd."""

    def __init__(self, control: Mapping[str, str], agent: Mapping[str, str]) -> None:
        super().__init__("A30")
        self._control, self._agent = control, agent
        for earlier in (control, agent):
            _keep_what_is_known(self.simulation.folder, earlier)

    def service(self, verb: str, environment: Mapping[str, str] | None = None) -> Service:
        return super().service(verb, self._control | dict(environment or {}))

    def roll_agent(self, to: Mapping[str, str]) -> None:
        super().roll_agent(to)
        self.until_offered()


def _mixed(control: Mapping[str, str], agent: Mapping[str, str]) -> Iterator[Mixed]:
    made = Mixed(control, agent)
    try:
        made.begin()
        yield made
        made.stop()
    finally:
        made.destroy()


@pytest.fixture
def old_control(earlier: Mapping[str, str]) -> Iterator[Mixed]:
    """Both parts of the earlier mpsd."""
    yield from _mixed(earlier, earlier)


@pytest.fixture
def old_agent(earlier: Mapping[str, str]) -> Iterator[Mixed]:
    """The earlier agent, with this control."""
    yield from _mixed({}, earlier)


def _state(cluster: Cluster, name: str) -> tuple[object, ...]:
    """What must not change while the agent does."""
    grant = cluster.grant(name)
    pids = sorted(client.pid for client in cluster.node().clients or ())
    return grant.memory_mib, grant.thread_percent, grant.clients, pids, cluster.limit_mib()


def test_an_agent_is_rolled_and_rolled_back_with_the_earlier_control_and_no_program_notices(
    old_control: Mixed, earlier: Mapping[str, str]
) -> None:
    old_control.running("sample", 7, 30)
    eventually(lambda: old_control.grant("sample").clients == 1, "its process is known")
    assert "kind" not in json.loads(old_control.folder_of("gpu0").record.read_text()), "the earlier one knows none"
    before = _state(old_control, "sample")
    for number, environment in enumerate(({}, earlier, {})):
        old_control.roll_agent(environment)
        eventually(lambda: _state(old_control, "sample") == before, f"as before: {before}")
        assert old_control.running(f"later{number}", 2).heard("ready")
        old_control.delete(f"later{number}")
        eventually(lambda: _state(old_control, "sample") == before, "the limit of one again")
        assert not old_control.agent.logged("record ignored")
        assert not old_control.agent.logged("journal unreadable")
    assert old_control.phase("sample") == "Running"


def test_an_earlier_agent_serves_with_this_control(old_agent: Mixed) -> None:
    old_agent.running("sample", 7, 30)
    eventually(lambda: old_agent.grant("sample").clients == 1, "its process is known")
    assert old_agent.limit_mib() == 7 * 1024
    before = _state(old_agent, "sample")
    assert _kinds(old_agent) == [None], "the earlier one knows none"
    old_agent.roll_agent({})
    eventually(lambda: _state(old_agent, "sample") == before, "as before")
    eventually(lambda: _kinds(old_agent) == ["alone"], "this agent reports")


class MixedClaims(Rolled, ClaimCluster):
    """Claims are what the test asks for as scheduler and kubelet."""

    def __init__(self, agent: Mapping[str, str]) -> None:
        super().__init__()
        self._agent = agent
        _keep_what_is_known(self.simulation.folder, agent)


def test_a_claim_that_an_earlier_agent_prepared_keeps_its_grant_and_the_device_that_kubelet_knows(
    earlier_claims: Mapping[str, str],
) -> None:
    cluster = MixedClaims(earlier_claims)
    try:
        cluster.begin()
        uid = cluster.allocate("held", 7, 30)
        (known,) = cluster.prepared("held", uid)
        for number, agent in enumerate(({}, earlier_claims, {})):
            cluster.roll_agent(agent)
            eventually(lambda: cluster.granted() == {uid: 7168}, "the grant is known to the next agent")
            cluster.prepared("held", uid)  # again, as after a restart of kubelet
            assert known.partition("=")[2] in cluster.devices_of(uid), "what containers of before start with"
            later = cluster.allocate(f"later{number}", 2)
            cluster.prepared(f"later{number}", later)
            assert cluster.unprepare(f"later{number}", later) == ""
            assert not cluster.agent.logged("journal unreadable")
        cluster.empty()
        cluster.stop()
    finally:
        cluster.destroy()


def _kinds(cluster: Cluster) -> list[str | None]:
    return [one.get("kind") for one in cluster.mpsnode()["status"]["domains"]]


def test_a_control_that_does_not_know_a_field_of_the_policy_does_not_start_again_and_programs_continue(
    cluster: Cluster,
) -> None:
    cluster.running("sample", 7, 30)
    eventually(lambda: cluster.grant("sample").clients == 1, "its process is known")
    before = _state(cluster, "sample")
    cluster.set_policy(of_a_later_release=True)
    cluster.control.kill()
    again = cluster.service("control")
    assert again.exit_code() == 2
    assert "of_a_later_release is true: is not a field here" in again.errors
    eventually(lambda: cluster.agent.logged("limits kept"), "the agent keeps the policy that it has")
    assert _state(cluster, "sample") == before
    cluster.set_policy()
    cluster.control = cluster.service("control")
    cluster.until_ready()
    assert _state(cluster, "sample") == before


def test_what_an_agent_reports_is_read_alike_by_the_earlier_and_this_mpsd(
    old_control: Mixed, earlier: Mapping[str, str]
) -> None:
    old_control.running("sample", 7, 30)
    for environment in (earlier, {}):
        old_control.roll_agent(environment)
        eventually(lambda: "sample" in str(old_control.mpsnode().get("status")), "the grant is reported")
        thing = old_control.mpsnode()
        thing["metadata"].setdefault("annotations", {})["mpsd.io/reserved"] = _RESERVED
        read = [_read(thing, old_control.environment | reader) for reader in (earlier, {})]
        assert read[0] == read[1]
        ready, unreadable, domains, gpus, pods, reserved = read[0]
        assert (ready, unreadable, domains, len(gpus), reserved) == (True, [], ["gpu0"], 1, _RESERVED)
        assert [(one[0], one[3], one[4]) for one in pods] == [("sample", 7168, 30)]


def _lacks(cluster: Cluster, folder: Path, gib: int) -> str:
    """Why a scheduler keeps a pod of so much from the node; empty where it does not."""
    asks = pod("asks", gib)
    asks["metadata"] |= {"uid": "asks", "creationTimestamp": "2026-11-23T22:00:00Z"}
    with extender(folder, cluster.kubeconfig) as scheduler:
        scheduler.wait_until_ready()
        said = scheduler.filter(asks, NODE)
    assert not said["Error"]
    return str(said["FailedNodes"].get(NODE, ""))


def test_schedulers_of_both_count_alike_what_agents_of_both_report(
    old_control: Mixed, earlier: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_control.running("sample", 7, 30)
    for agent in (earlier, {}):
        old_control.roll_agent(agent)
        eventually(lambda: "sample" in str(old_control.mpsnode().get("status")), "the grant is reported")
        for scheduler in (earlier, {}):
            with monkeypatch.context() as environment:
                for name, value in scheduler.items():
                    environment.setenv(name, value)
                assert _lacks(old_control, tmp_path, 16) == ""
                assert _lacks(old_control, tmp_path, 17) == "gpu0 has 16 of 17 GiB free"


def test_webhooks_of_both_serve_side_by_side_and_say_the_same(
    earlier: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_server() as api, ExitStack() as replicas:
        put_shipped_objects(api)
        running = []
        for version in (earlier, {}):
            with monkeypatch.context() as environment:
                for name, value in version.items():
                    environment.setenv(name, value)
                made = webhook(tmp_path, kubeconfig=str(api.kubeconfig(tmp_path)))
                running.append(replicas.enter_context(made))
        eventually(lambda: is_registered(api), "registered")
        for thing, allowed in ((gpu_pod(), True), (gpu_pod(host_ipc=False), False)):
            for path in ("/mutate", "/validate"):
                said = [one.review(path, review_of(thing), bundles(api)[0]) for one in running]
                assert said[0].get("patch") == said[1].get("patch")
                assert [one["allowed"] for one in said] == [allowed or path == "/mutate"] * 2


def _read(thing: Object, environment: Mapping[str, str]) -> list[Any]:
    command = [sys.executable, "-P", "-c", _READS]
    done = subprocess.run(
        command, input=json.dumps(thing), env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found
