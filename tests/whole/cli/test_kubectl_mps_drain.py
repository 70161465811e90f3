"""`kubectl mps drain` and `undrain`: who is waited for, who is evicted and who is not, and what
stays when it is given up."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpsd.platform.kube import MPS_NODES, PODS, PatchKind, Resource
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import mpsnode
from tests.whole.cli.played_nodes import PlayedNodes, played_nodes, run_pods
from tests.whole.machine.machine import Program, eventually
from tests.whole.webhook.api_server import api_server

A1 = [gpu["uuid"] for gpu in mpsnode("gpu-a1")["status"]["gpus"]]
A2 = [gpu["uuid"] for gpu in mpsnode("gpu-a2")["status"]["gpus"]]
BUDGETS = Resource("policy/v1", "poddisruptionbudgets")
DAEMON_SETS = Resource("apps/v1", "daemonsets")


@pytest.fixture
def world(world: ClusterWorld) -> ClusterWorld:
    world.put("gpu-a1", "gpu-a2")
    return world


@pytest.fixture
def nodes(world: ClusterWorld) -> Iterator[PlayedNodes]:
    with played_nodes(world) as played:
        yield played


def pods(world: ClusterWorld) -> set[str]:
    found: list[Any] = world.ask(lambda kube: kube.list(PODS))
    return {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in found}


def test_pods_are_waited_for_and_each_change_is_said_once(world: ClusterWorld) -> None:
    run_pods(world, "gpu-a1")
    with played_nodes(world) as nodes:
        in_vain = world.kubectl_mps("drain", "gpu-a1", "--gpu", "gpu0", "--timeout", "1s")
        assert in_vain.code == 1
        assert (
            in_vain.errors.count(
                "gpu0 draining (clients: 1); left: default/mps-sample-7xk2p (7 GiB of gpu0), "
            )
            == 1
        )
        assert "kubectl mps drain: GPUs are still in use after 1s\n" in in_vain.errors
        undo = (
            "gpu-a1: still cordoned: gpu0; to put them back into use: kubectl mps undrain gpu-a1"
            " --gpu gpu0\n"
        )
        assert undo in in_vain.errors
        assert in_vain.output.startswith("gpu-a1: not drained: gpu0 draining (clients: 1); left: ")
        assert world.cordoned("gpu-a1") == [A1[0]]
        world.ask(lambda kube: kube.delete(PODS, "train-0", "default"))
        eventually(lambda: "gpu-a1: pod train-0 ended" in nodes.history, "its end")
        again = world.kubectl_mps("drain", "gpu-a1", "--gpu", A1[0], "--timeout", "0", "-o", "json")
        read = json.loads(again.output)
        assert (again.code, read["drained"], read["newly_cordoned"]) == (1, False, [])
        assert [pod["pod"] for pod in read["left"]] == ["mps-sample-7xk2p", "notebook-ada"]
        assert read["left"][0]["memory_mib"] == 7168
        assert "gpu-a1: GPUs that were cordoned before stay cordoned\n" in again.errors


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


def test_pods_of_daemon_sets_and_static_pods_are_named_and_stay(world: ClusterWorld) -> None:
    spec = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "gpu-a2"}}}}
    dcgm = world.ask(
        lambda kube: kube.create(
            DAEMON_SETS, {"metadata": {"name": "dcgm"}, "spec": spec}, "default"
        )
    )
    owner = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": "dcgm",
        "uid": dcgm["metadata"]["uid"],
    }
    run_pods(world, "gpu-a2", ownerReferences=[owner | {"controller": True}])
    run_pods(world, "gpu-a1", annotations={"kubernetes.io/config.mirror": "x"})
    with played_nodes(world):
        said = world.kubectl_mps("drain", "gpu-a1", "--evict", "--timeout", "1s")
        assert said.code == 1
        assert (
            "default/train-0 is not evicted: it is a static pod, which kubelet would recreate\n"
            in said.errors
        )
        of_two = world.kubectl_mps(
            "drain", "gpu-a2", "--gpu", "gpu2", "--evict", "--timeout", "1s", "-o=json"
        )
    (left,) = json.loads(of_two.output)["left"]
    why = "it belongs to the DaemonSet dcgm, which would recreate it here"
    assert left["eviction"] == f"default/wide-0 is not evicted: {why}"
    assert json.loads(of_two.output)["newly_cordoned"] == [A2[2]]


def test_nobody_is_evicted_before_everybody_knows_that_nothing_is_free_there(
    world: ClusterWorld,
) -> None:
    """A pod that is made again would come back to the same GPUs, and fail there."""
    run_pods(world, "gpu-a1")
    with played_nodes(world, counted_s=60.0):
        said = world.kubectl_mps("drain", "gpu-a1", "--evict", "--timeout", "1s")
    assert said.code == 1
    assert (
        said.errors.count(
            "evictions begin in 60 s: kubelet must first report that these GPUs are full, or "
        )
        == 1
    )
    assert len(pods(world)) == 3


def test_a_namesake_of_the_pod_that_holds_the_grant_is_not_touched(world: ClusterWorld) -> None:
    run_pods(world, "gpu-a2")
    world.ask(lambda kube: kube.delete(PODS, "train-1", "default"))
    with played_nodes(world) as nodes:
        eventually(lambda: "gpu-a2: pod train-1 ended" in nodes.history, "its end")
    stale = mpsnode("gpu-a2")["status"]  # with uids that no pod has
    domains = [domain | {"state": "draining"} for domain in stale["domains"]]
    patch = {"status": {"grants": stale["grants"], "domains": domains}}
    world.ask(
        lambda kube: kube.patch(MPS_NODES, "gpu-a2", patch, PatchKind.MERGE, subresource="status")
    )
    namesake = {
        "metadata": {"name": "train-1"},
        "spec": {"nodeName": "gpu-a2", "containers": [{"name": "main"}]},
    }
    world.ask(lambda kube: kube.create(PODS, namesake, "default"))
    said = world.kubectl_mps("drain", "gpu-a2", "--evict", "--timeout", "0.1s")
    assert "default/train-1 is gone from the API; its GPU will be free soon\n" in said.errors
    assert pods(world) == {"default/train-1", "default/wide-0"}


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (
            ("gpu-a1", "--gpu", "gpu0", "--gpu", "gpu9"),
            2,
            "gpu9: is no GPU of this node; gpu-a1 has gpu0 (",
        ),
        (("gpu-a9",), 2, 'node "gpu-a9": has no MPSNode; name one of '),
        (
            ("gpu-a1", "--timeout", "soon"),
            2,
            '--timeout is "soon": cannot be used; write a time, such as 10s',
        ),
        (
            ("gpu-b1",),
            1,
            (
                "gpu-b1 last reported 87 min ago, so it is not known whether its GPUs are empty;"
                " check that"
            ),
        ),
        (
            ("gpu-b2",),
            1,
            (
                "gpu-b2 has reported nothing yet, so it is not known whether its GPUs are empty;"
                " check that"
            ),
        ),
    ],
)
def test_what_cannot_be_drained_is_said_before_anything_is_changed(
    world: ClusterWorld, words: tuple[str, ...], code: int, complaint: str
) -> None:
    world.put("gpu-b1", "gpu-b2")
    before = [world.cordoned(node) for node in ("gpu-a1", "gpu-b1", "gpu-b2")]
    said = world.kubectl_mps("drain", *words)
    assert (said.code, said.output) == (code, "")
    assert complaint in said.errors
    assert [world.cordoned(node) for node in ("gpu-a1", "gpu-b1", "gpu-b2")] == before


def test_a_missing_right_is_named_and_so_is_what_stays(tmp_path: Path, world: ClusterWorld) -> None:
    thing = mpsnode("gpu-a1", time.time())
    for domain in thing["status"]["domains"]:
        domain["state"] = "draining"
    with api_server() as server:
        server.put("/apis/mpsd.io/v1alpha1/mpsnodes/gpu-a1", thing)
        server.forbidden = {("get", "pods")}
        config = str(server.kubeconfig(tmp_path))
        said = world.kubectl_mps("drain", "gpu-a1", "--evict", "--kubeconfig", config)
        assert said.code == 1
        assert "lacks the right to get pods mps-sample-7xk2p in default: " in said.errors
        assert "docs/operations/upgrade-and-drain.md (Drain a node)" in said.errors
        stays = (
            "gpu-a1: still cordoned: gpu0, gpu1; to put them back into use: kubectl mps undrain"
            " gpu-a1 --kubeconfig "
        )
        assert f"{stays}{config}\n" in said.errors
        server.forbidden = {("patch", "mpsnodes")}
        unchanged = world.kubectl_mps("undrain", "gpu-a1", "--kubeconfig", config)
        assert (
            unchanged.code,
            unchanged.errors.count("lacks the right to patch mpsnodes gpu-a1"),
        ) == (1, 1)


def test_a_refused_domain_ends_undrain_with_its_reason(world: ClusterWorld) -> None:
    status = mpsnode("gpu-a1")["status"]
    for domain in status["domains"]:
        domain |= {"state": "refused", "reason": "MIG is on"}
    del status["reportedAt"]
    patch = {"spec": {"cordoned": ["all"]}, "status": status}
    world.ask(
        lambda kube: kube.patch(MPS_NODES, "gpu-a1", {"spec": patch["spec"]}, PatchKind.MERGE)
    )
    world.ask(
        lambda kube: kube.patch(
            MPS_NODES, "gpu-a1", {"status": status}, PatchKind.MERGE, subresource="status"
        )
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
