"""`kubectl mps drain` and `undrain`: who is waited for, who is evicted and who is not, and what
stays when it is given up."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mpsd.platform.kube import MPS_NODES, PODS, PatchKind, Resource
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import mpsnode
from tests.whole.cli.played_nodes import played_nodes, run_pods
from tests.whole.machine.machine import Program, eventually

A1 = [gpu["uuid"] for gpu in mpsnode("gpu-a1")["status"]["gpus"]]
BUDGETS = Resource("policy/v1", "poddisruptionbudgets")


@pytest.fixture
def world(world: ClusterWorld) -> ClusterWorld:
    world.put("gpu-a1", "gpu-a2")
    return world


def pods(world: ClusterWorld) -> set[str]:
    found: list[Any] = world.ask(lambda kube: kube.list(PODS))
    return {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in found}


def test_pods_are_waited_for_and_each_change_is_said_once(world: ClusterWorld) -> None:
    run_pods(world, "gpu-a1")
    with played_nodes(world) as nodes:
        in_vain = world.kubectl_mps("drain", "gpu-a1", "--gpu", "gpu0", "--timeout", "1s")
        assert in_vain.code == 1
        left = "gpu0 draining (clients: 1); left: default/mps-sample-7xk2p (7 GiB of gpu0), "
        assert in_vain.errors.count(left) == 1
        undo = "to put them back into use: kubectl mps undrain gpu-a1 --gpu gpu0\n"
        assert f"gpu-a1: still cordoned: gpu0; {undo}" in in_vain.errors
        assert in_vain.output.startswith(f"gpu-a1: not drained: {left}")
        assert world.cordoned("gpu-a1") == [A1[0]]
        world.ask(lambda kube: kube.delete(PODS, "train-0", "default"))
        eventually(lambda: "gpu-a1: pod train-0 ended" in nodes.history, "its end")
        again = world.kubectl_mps("drain", "gpu-a1", "--gpu", A1[0], "--timeout", "0", "-o", "json")
        read = json.loads(again.output)
        assert (again.code, read["drained"], read["newly_cordoned"]) == (1, False, [])
        left = [(held["pod"], held["memoryMiB"]) for held in read["left"]]
        assert left == [("default/mps-sample-7xk2p", 7168), ("research/notebook-ada", 8192)]


def test_eviction_ends_those_that_hold_something_there_and_no_others(world: ClusterWorld) -> None:
    uids = run_pods(world, "gpu-a1", "gpu-a2")
    with played_nodes(world):
        said = world.kubectl_mps("drain", "gpu-a1", "--evict")
        assert (said.code, said.output) == (0, "gpu-a1: gpu0 drained, gpu1 drained\n")
        for name in ("default/train-0", "default/mps-sample-7xk2p", "research/notebook-ada"):
            assert said.errors.count(f"evicted {name} (no controller recreates it)\n") == 1
        assert pods(world) == {"default/train-1", "default/wide-0"}
        assert len(uids) == 5
        already = world.kubectl_mps("drain", "gpu-a1")
        assert (already.code, already.output) == (0, "gpu-a1: gpu0 drained, gpu1 drained\n")
        assert "gpu-a1: cordoned already: gpu0, gpu1\n" in already.errors
        back = world.kubectl_mps("undrain", "gpu-a1")
        assert (back.code, back.output) == (0, "gpu-a1: gpu0 ready, gpu1 ready\n")
        assert world.cordoned("gpu-a1") == []


def test_a_budget_is_kept_and_asked_again_until_it_lets_the_pod_go(world: ClusterWorld) -> None:
    budget = {
        "metadata": {"name": "one"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "train-1"}}},
    }
    world.ask(lambda kube: kube.create(BUDGETS, budget, "default"))
    run_pods(world, "gpu-a2")
    with played_nodes(world):
        held = world.kubectl_mps("drain", "gpu-a2", "--gpu", "gpu0", "--evict", "--timeout", "1s")
        assert held.code == 1
        assert held.errors.count("default/train-1 cannot be evicted now and will be retried: ") == 1
        assert "violate the pod's disruption budget" in held.errors
        world.ask(lambda kube: kube.delete(BUDGETS, "one", "default"))
        assert world.kubectl_mps("drain", "gpu-a2", "--gpu", "gpu0", "--evict").code == 0
        assert pods(world) == {"default/wide-0"}


def test_nobody_is_evicted_before_everybody_knows_that_nothing_is_free_there(
    world: ClusterWorld,
) -> None:
    """A pod that is made again would come back to the same GPUs, and fail there."""
    run_pods(world, "gpu-a1")
    with played_nodes(world, counted_s=60.0):
        said = world.kubectl_mps("drain", "gpu-a1", "--evict", "--timeout", "1s")
    assert said.code == 1
    assert said.errors.count("evictions begin in 60 s: ") == 1
    assert len(pods(world)) == 3


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("gpu-a9",), 2, 'node "gpu-a9": has no MPSNode; name one of '),
        (("gpu-a1", "--timeout", "soon"), 2, '--timeout is "soon": cannot be used'),
        (("gpu-b1",), 1, "gpu-b1 last reported 87 min ago, so it is not known whether"),
    ],
)
def test_what_cannot_be_drained_is_said_before_anything_is_changed(
    world: ClusterWorld, words: tuple[str, ...], code: int, complaint: str
) -> None:
    world.put("gpu-b1")
    said = world.kubectl_mps("drain", *words)
    assert (said.code, said.output) == (code, "")
    assert complaint in said.errors
    assert (world.cordoned("gpu-a1"), world.cordoned("gpu-b1")) == ([], [])


def test_a_refused_domain_ends_undrain_with_its_reason(world: ClusterWorld) -> None:
    status = mpsnode("gpu-a1")["status"]
    for domain in status["domains"]:
        domain |= {"state": "refused", "reason": "MIG is on"}
    del status["reportedAt"]
    change = {"status": status}
    world.ask(
        lambda kube: kube.patch(MPS_NODES, "gpu-a1", change, PatchKind.MERGE, subresource="status")
    )
    said = world.kubectl_mps("undrain", "gpu-a1")
    assert (said.code, said.output) == (1, "gpu-a1: gpu0 refused, gpu1 refused\n")
    assert "gpu-a1: gpu1 is refused: MIG is on\n" in said.errors


def test_an_api_server_that_goes_is_waited_for_and_ctrl_c_leaves_the_cordon_and_says_so(
    world: ClusterWorld, tmp_path: Path
) -> None:
    program = Path(sys.executable).parent / "kubectl-mps"
    argv = [str(program), "drain", "gpu-a1", "--context", "simulated"]
    run_pods(world, "gpu-a1")
    with played_nodes(world):
        drain = Program(argv, {**os.environ, "PYTHONUNBUFFERED": "1"}, tmp_path / "drain")
        eventually(lambda: "gpu0 draining" in drain.errors, "the drain under way")
        world.api.stop()
        eventually(
            lambda: "the Kubernetes API does not answer" in drain.errors,
            "that the API server is away",
        )
        world.api.start()
        drain.process.send_signal(signal.SIGINT)
        assert drain.exit_code() == 130
    assert drain.errors.endswith(
        "kubectl mps drain: interrupted\ngpu-a1: still cordoned: gpu0, gpu1; to put them back into"
        " use: kubectl mps undrain gpu-a1 --context simulated\n"
    )
    assert world.cordoned("gpu-a1") == ["all"]
