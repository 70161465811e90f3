"""`kubectl mps upgrade`: node by node, nobody's GPU and nobody's cordon is lost, and what was given
up goes on."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpsd.operations.lifecycle.rules.upgrade import ANNOTATION
from mpsd.platform.kube import MPS_NODES, PatchKind, Resource
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import mpsnode
from tests.whole.cli.played_nodes import (
    NAMESPACE,
    PlayedNodes,
    control_images,
    played_nodes,
    run_control,
    run_pods,
)
from tests.whole.machine.machine import Program, eventually

A1 = [gpu["uuid"] for gpu in mpsnode("gpu-a1")["status"]["gpus"]]
A2 = [gpu["uuid"] for gpu in mpsnode("gpu-a2")["status"]["gpus"]]
DAEMON_SETS = Resource("apps/v1", "daemonsets")
OLD, NEW = "mpsd:0.1.0", "mpsd:0.2.0"


@pytest.fixture
def nodes(world: ClusterWorld) -> Iterator[PlayedNodes]:
    """gpu-a1 and gpu-a2, with pods on both; gpu0 of gpu-a2 was cordoned by somebody."""
    world.put("gpu-a1", "gpu-a2")
    run_pods(world, "gpu-a1", "gpu-a2")
    with played_nodes(world) as played:
        run_control(world, OLD, "gpu-a1", "gpu-a2")
        yield played


def annotation(world: ClusterWorld, node: str) -> str | None:
    found = world.ask(lambda kube: kube.get(MPS_NODES, node))["metadata"].get("annotations", {})
    return str(found[ANNOTATION]) if ANNOTATION in found else None


def set_image(world: ClusterWorld, image: str) -> None:
    """As `helm upgrade` does."""
    containers = [{"name": "control", "image": image}]
    change_daemon_set(world, {"template": {"spec": {"containers": containers}}})


def change_daemon_set(world: ClusterWorld, spec: dict[str, Any]) -> None:
    patch = (DAEMON_SETS, "mps-control-daemon", {"spec": spec}, PatchKind.STRATEGIC, NAMESPACE)
    world.ask(lambda kube: kube.patch(*patch))


def test_each_node_is_emptied_upgraded_and_put_back_before_the_next(
    world: ClusterWorld, nodes: PlayedNodes
) -> None:
    set_image(world, NEW)
    plan = world.kubectl_mps("upgrade", "--dry-run")
    assert (plan.code, plan.output.count("wait for default/")) == (1, 2)
    assert control_images(world) == {"gpu-a1": OLD, "gpu-a2": OLD}

    nodes.history.clear()
    said = world.kubectl_mps("upgrade", "--evict")
    assert (said.code, said.output.count(" on 2 nodes\n")) == (0, 1), said.errors
    assert control_images(world) == {"gpu-a1": NEW, "gpu-a2": NEW}
    assert (world.cordoned("gpu-a1"), world.cordoned("gpu-a2")) == ([], [A2[0]])
    assert (annotation(world, "gpu-a1"), annotation(world, "gpu-a2")) == (None, None)
    held = {
        "gpu-a1": ("train-0", "mps-sample-7xk2p", "notebook-ada"),
        "gpu-a2": ("train-1", "wide-0"),
    }
    at = nodes.history.index
    for node, pods in held.items():
        ended = at(f"{node}: control pod ended")
        assert all(at(f"{node}: pod {pod} ended") < ended for pod in pods)
    assert at("gpu-a1: gpu1 ready") < at("gpu-a2: control pod ended")
    again = world.kubectl_mps("upgrade")
    assert (again.code, again.errors) == (0, "")


def test_who_is_still_there_stops_it_and_the_same_command_goes_on(
    world: ClusterWorld, nodes: PlayedNodes
) -> None:
    set_image(world, NEW)
    stopped = world.kubectl_mps("upgrade", "gpu-a1", "--timeout", "1s", "-o", "json")
    read = json.loads(stopped.output)
    assert (stopped.code, read["stopped"]["step"]) == (1, "drain")
    assert "same command again; to go back: kubectl mps undrain gpu-a1\n" in stopped.errors
    assert control_images(world) == {"gpu-a1": OLD, "gpu-a2": OLD}
    assert annotation(world, "gpu-a1") == ",".join(sorted(A1))
    world.kubectl_mps("cordon", "gpu-a1", "gpu1")  # somebody wants that one for himself meanwhile
    nodes.refused[NEW] = "the canary was let over its limit"
    refused = world.kubectl_mps("upgrade", "gpu-a1", "--evict")
    assert refused.code == 1
    assert "wait for the new pod: gpu0 is refused: the canary was let over " in refused.errors
    nodes.refused.clear()
    on = world.kubectl_mps("upgrade", "gpu-a1")
    assert on.code == 0, on.errors
    assert control_images(world) == {"gpu-a1": NEW, "gpu-a2": OLD}
    assert world.cordoned("gpu-a1") == [A1[1]]


def test_what_cannot_be_upgraded_is_said_before_anything_is_changed(
    world: ClusterWorld, nodes: PlayedNodes
) -> None:
    set_image(world, NEW)
    for words, code, why in (
        (("gpu-b9",), 2, 'node "gpu-b9": has no MPSNode; name one of '),
        (("--timeout", "0"), 2, '--timeout is "0": cannot be used; write a time over 0'),
        (("-l", "pool=z"), 1, "no node that pool=z selects has a pod of DaemonSet"),
    ):
        said = world.kubectl_mps("upgrade", *words)
        assert (said.code, why in said.errors) == (code, True), said.errors
    nodes.undying.add("mps-control-daemon")  # else the controller may be done before the command
    change_daemon_set(world, {"updateStrategy": {"type": "RollingUpdate"}})
    rolling = world.kubectl_mps("upgrade")
    assert rolling.code == 1
    assert "updateStrategy is RollingUpdate, so its pods are replaced while" in rolling.errors
    assert (world.cordoned("gpu-a1"), world.cordoned("gpu-a2")) == ([], [A2[0]])


def begun(world: ClusterWorld, tmp_path: Path) -> Program:
    set_image(world, NEW)
    program = str(Path(sys.executable).parent / "kubectl-mps")
    argv = [program, "upgrade", "--context", "simulated"]
    upgrade = Program(argv, {**os.environ, "PYTHONUNBUFFERED": "1"}, tmp_path / "upgrade")
    eventually(lambda: "gpu-a1: drain: gpu0 draining" in upgrade.errors, "the drain under way")
    return upgrade


def test_whoever_puts_gpus_back_meanwhile_stops_it(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    upgrade = begun(world, tmp_path)
    assert world.kubectl_mps("uncordon", "gpu-a1", "gpu1").code == 0
    assert upgrade.exit_code() == 1
    assert "another client has put GPUs back into use meanwhile" in upgrade.errors
    assert world.cordoned("gpu-a1") == [A1[0]]


def test_a_node_that_is_gone_meanwhile_holds_nobody_up(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    upgrade = begun(world, tmp_path)
    world.ask(lambda kube: kube.delete(MPS_NODES, "gpu-a1"))
    eventually(lambda: "gpu-a2: drain: " in upgrade.errors, "the next node's drain")
    assert "gpu-a1: its MPSNode is gone, so there is nothing to upgrade\n" in upgrade.errors
    upgrade.process.send_signal(signal.SIGINT)
    assert upgrade.exit_code() == 130
    where = "interrupted\ngpu-a2: the old control pod still runs; still cordoned"
    assert f"kubectl mps upgrade: {where}" in upgrade.errors
    assert "to go back: kubectl mps undrain gpu-a2" in upgrade.errors
