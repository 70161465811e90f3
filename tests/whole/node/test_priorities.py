"""A pod's work on a GPU has the priority that the policy gives it: from kubelet's answer to what is shown of it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError

import pytest

from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY
from mpsd.platform.processes import environment_of
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.machine.test_agent_metrics import now
from tests.whole.node.cluster import Cluster, Object, PodProgram, pod
from tests.whole.node.conftest import begun

BELOW = {"mpsd.io/gpu-priority": "below-normal"}
NAMES = ("namespace", "pod", "container")


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Cluster]:
    cluster = Cluster("A30")
    cluster.set_policy(gpu_priority={"by": "annotation"})
    yield from begun(cluster)


def given(program: PodProgram) -> str | None:
    """What the program was started with."""
    return (environment_of(program.heard("pid")[-1]) or {}).get(CLIENT_PRIORITY)


def annotate(cluster: Cluster, name: str, annotations: dict[str, Any]) -> None:
    path = f"/api/v1/namespaces/default/pods/{name}"
    cluster.ask("PATCH", path, {"metadata": {"annotations": annotations}}, "application/merge-patch+json")


def grant_in_mpsnode(cluster: Cluster, name: str) -> Object:
    def look() -> list[Object]:
        found: list[Object] = cluster.mpsnode()["status"].get("grants", [])
        return [one for one in found if one["pod"] == f"default/{name}"]

    return eventually(look, f"the MPSNode has {name}")[0]


def test_a_pod_has_the_priority_of_its_annotation_wherever_it_is_shown(cluster: Cluster) -> None:
    batch = cluster.running("batch", 2, annotations=BELOW)
    serve, odd = cluster.running("serve", 2), cluster.running("odd", 2, annotations={"mpsd.io/gpu-priority": "low"})
    assert [given(one) for one in (batch, serve, odd)] == ["1", "0", "0"]
    assert [cluster.grant(name).priority for name in ("batch", "serve", "odd")] == [1, 0, 0]
    assert grant_in_mpsnode(cluster, "batch")["priority"] == 1
    assert "priority" not in grant_in_mpsnode(cluster, "serve")
    shown = now(cluster, "mpsd_grant_below_normal", *NAMES)
    assert shown == {("default", "batch", ""): 1, ("default", "serve", ""): 0, ("default", "odd", ""): 0}


def test_a_pod_keeps_what_it_was_given_whatever_its_annotation_and_the_policy_say_since(cluster: Cluster) -> None:
    batch = cluster.running("batch", 2, restartPolicy="Always", actions=("hold=2",), annotations=BELOW)
    annotate(cluster, "batch", {"mpsd.io/gpu-priority": "normal"})
    cluster.agent.kill()
    cluster.set_policy()
    cluster.agent = cluster.start_agent()
    eventually(lambda: cluster.grant("batch").priority == 1, "the journal says what was answered")
    eventually(lambda: len(batch.runs) > 1 and batch.heard("ready"), "its container was started again")
    assert given(batch) == "1"
    assert not cluster.events("LimitsMismatch")
    cluster.agent.kill()
    cluster.set_policy(gpu_priority={"by": "annotation"})
    cluster.agent = cluster.start_agent()


def test_of_pods_that_come_together_none_runs_with_another_s_priority(cluster: Cluster) -> None:
    """They request the same, so kubelet's devices may be for any of them; one that got another's is evicted."""
    for n in range(6):
        cluster.apply(pod(f"p{n}", 2, annotations=BELOW if n % 2 else {}))
    programs: dict[str, PodProgram] = {}

    def settled() -> bool:
        phases = {one["metadata"]["name"]: one.get("status", {}).get("phase") for one in cluster.pods()}
        for name in phases.keys() - programs.keys():
            with suppress(HTTPError):  # it was evicted a moment ago
                programs[name] = PodProgram(cluster, name, "main")
        return all(phases[name] == "Failed" or programs[name].heard("ready") for name in phases if name in programs)

    eventually(settled, "each runs, or was evicted")
    running = {name: one for name, one in programs.items() if one.heard("ready")}
    assert running
    for name, program in running.items():
        assert given(program) in {None, "1" if int(name[1:]) % 2 else "0"}, "None: it has ended since"


@needs_cgroups
def test_a_program_that_raises_its_priority_is_reported(cluster: Cluster) -> None:
    script = f"{CLIENT_PRIORITY}=0 exec sim-cuda hold".replace("sim-cuda", "$0 -m mpsd.simulator.cuda_client")
    made = pod("raises", 2, annotations=BELOW)
    (main,) = made["spec"]["containers"]
    main["command"] = ["sh", "-c", script, main["command"][0]]
    cluster.apply(made)
    (message,) = eventually(lambda: cluster.events("GPUPriorityRaised"), "it is reported")
    assert f'raises its priority: {CLIENT_PRIORITY} is "0"' in message
    eventually(lambda: cluster.phase("raises") == "Running", "it runs, and is not ended")
    honest = cluster.running("honest", 2, annotations=BELOW)
    assert given(honest) == "1"
    assert len(cluster.events("GPUPriorityRaised")) == 1


def test_a_pod_whose_priority_is_under_the_bound_is_below_normal(cluster: Cluster) -> None:
    cluster.agent.kill()
    cluster.set_policy(gpu_priority={"by": "priority-class", "below_normal_under": -5})
    cluster.agent = cluster.start_agent()
    under = cluster.running("under", 2, priority=-6)
    at, none = cluster.running("at", 2, priority=-5), cluster.running("none", 2, annotations=BELOW)
    assert [given(one) for one in (under, at, none)] == ["1", "0", "0"]
    cluster.agent.kill()
    cluster.set_policy()
    cluster.agent = cluster.start_agent()
    assert given(cluster.running("later", 2, annotations=BELOW)) is None
