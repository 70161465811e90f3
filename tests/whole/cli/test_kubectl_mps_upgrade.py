"""`kubectl mps upgrade`: node by node, nobody's GPU and nobody's cordon is lost, and what was given
up goes on."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

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


def test_each_node_is_emptied_upgraded_and_put_back_before_the_next(
    world: ClusterWorld, nodes: PlayedNodes
) -> None:
    plan = world.kubectl_mps("upgrade", "--image", NEW, "--dry-run")
    assert plan.code == 1
    assert (
        f"DaemonSet {NAMESPACE}/mps-control-daemon: the image becomes {NEW}, instead of {OLD}\n"
        in plan.output
    )
    assert (
        "gpu-a1: wait for default/mps-sample-7xk2p (7 GiB of gpu0), default/train-0 " in plan.output
    )
    assert "put back gpu1, gpu2, gpu3; gpu0 stays cordoned, as others want it\n" in plan.output
    assert control_images(world) == {"gpu-a1": OLD, "gpu-a2": OLD}

    nodes.history.clear()
    said = world.kubectl_mps("upgrade", "--image", NEW, "--evict")
    assert (said.code, said.output.count(" on 2 nodes\n")) == (0, 1), said.errors
    assert control_images(world) == {"gpu-a1": NEW, "gpu-a2": NEW}
    assert (world.cordoned("gpu-a1"), world.cordoned("gpu-a2")) == ([], [A2[0]])
    assert (annotation(world, "gpu-a1"), annotation(world, "gpu-a2")) == (None, None)
    for node in ("gpu-a1", "gpu-a2"):
        own = [one for one in nodes.history if one.startswith(node)]
        ended = own.index(f"{node}: control pod ended")
        held = {
            "gpu-a1": ("train-0", "mps-sample-7xk2p", "notebook-ada"),
            "gpu-a2": ("train-1", "wide-0"),
        }[node]
        assert all(own.index(f"{node}: pod {pod} ended") < ended for pod in held)
    assert nodes.history.index("gpu-a1: gpu1 ready") < nodes.history.index(
        "gpu-a2: control pod ended"
    )
    again = world.kubectl_mps("upgrade")
    assert (again.code, again.errors) == (0, "")


def test_who_is_still_there_stops_it_and_the_same_command_goes_on(
    world: ClusterWorld, nodes: PlayedNodes
) -> None:
    stopped = world.kubectl_mps(
        "upgrade", "gpu-a1", "--image", NEW, "--timeout", "1s", "-o", "json"
    )
    read = json.loads(stopped.output)
    assert (stopped.code, read["stopped"]["step"]) == (1, "drain")
    assert (
        "gpu-a1: drain: gpu0 draining (clients: 1), gpu1 drained; left: default/mps-sample"
        in stopped.errors
    )
    assert (
        "gpu-a1: the old control pod still runs; still cordoned by this upgrade: gpu0, gpu1\n"
        in stopped.errors
    )
    assert "same command again; to go back: kubectl mps undrain gpu-a1\n" in stopped.errors
    assert control_images(world) == {"gpu-a1": OLD, "gpu-a2": OLD}
    assert annotation(world, "gpu-a1") == ",".join(sorted(A1))
    world.kubectl_mps("cordon", "gpu-a1", "gpu1")  # somebody wants that one for himself meanwhile
    on = world.kubectl_mps("upgrade", "gpu-a1", "--evict")
    assert on.code == 0, on.errors
    assert control_images(world) == {"gpu-a1": NEW, "gpu-a2": OLD}
    assert world.cordoned("gpu-a1") == [A1[1]]


def test_a_refused_domain_stops_everything_with_its_reason(
    world: ClusterWorld, nodes: PlayedNodes
) -> None:
    nodes.refused[NEW] = "the canary was let over its limit"
    said = world.kubectl_mps("upgrade", "--image", NEW, "--evict")
    assert said.code == 1
    assert (
        "kubectl mps upgrade: gpu-a1: stopped at: wait for the new pod: gpu0 is refused: the canary"
        " was let over " in said.errors
    )
    assert (
        "to go back: kubectl -n mpsd-system rollout undo daemonset/mps-control-daemon && "
        in said.errors
    )
    assert control_images(world)["gpu-a2"] == OLD
    assert world.cordoned("gpu-a2") == [A2[0]]
    assert sorted(world.cordoned("gpu-a1")) == sorted(A1)
    back = world.kubectl_mps("upgrade", "gpu-a1", "--image", OLD)
    assert back.code == 0, back.errors
    assert (control_images(world)["gpu-a1"], world.cordoned("gpu-a1")) == (OLD, [])
    nodes.refused.clear()
    assert world.kubectl_mps("upgrade", "--image", NEW, "--evict").code == 0
    assert control_images(world) == {"gpu-a1": NEW, "gpu-a2": NEW}
    assert world.cordoned("gpu-a1") == []


def begun(tmp_path: Path) -> Program:
    """An upgrade that waits for the pods on gpu-a1."""
    argv = [
        str(Path(sys.executable).parent / "kubectl-mps"),
        "upgrade",
        "--image",
        NEW,
        "--context",
        "simulated",
    ]
    upgrade = Program(argv, {**os.environ, "PYTHONUNBUFFERED": "1"}, tmp_path / "upgrade")
    eventually(lambda: "gpu-a1: drain: gpu0 draining" in upgrade.errors, "the drain under way")
    return upgrade


def test_ctrl_c_says_where_it_was_and_how_to_go_on(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    upgrade = begun(tmp_path)
    upgrade.process.send_signal(signal.SIGINT)
    assert upgrade.exit_code() == 130
    assert (
        "kubectl mps upgrade: interrupted\ngpu-a1: the old control pod still runs; still cordoned"
        in upgrade.errors
    )
    assert "to go back: kubectl mps undrain gpu-a1 --context simulated\n" in upgrade.errors


def test_whoever_puts_gpus_back_meanwhile_stops_it(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    upgrade = begun(tmp_path)
    assert world.kubectl_mps("uncordon", "gpu-a1", "gpu1").code == 0
    assert upgrade.exit_code() == 1
    assert "another client has put GPUs back into use meanwhile" in upgrade.errors
    assert world.cordoned("gpu-a1") == [A1[0]]


def test_a_node_that_is_gone_meanwhile_holds_nobody_up(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    upgrade = begun(tmp_path)
    world.ask(lambda kube: kube.delete(MPS_NODES, "gpu-a1"))
    eventually(lambda: "gpu-a2: drain: " in upgrade.errors, "the next node's drain")
    assert "gpu-a1: its MPSNode is gone, so there is nothing to upgrade\n" in upgrade.errors
    upgrade.process.send_signal(signal.SIGINT)
    assert upgrade.exit_code() == 130
    assert "interrupted\ngpu-a2: the old control pod still runs; " in upgrade.errors


def test_a_second_upgrade_beside_the_first_does_the_same(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    first = begun(tmp_path)
    second = world.kubectl_mps("upgrade", "--image", NEW, "--evict")
    assert (first.exit_code(), second.code) == (0, 0), (first.errors, second.errors)
    assert control_images(world) == {"gpu-a1": NEW, "gpu-a2": NEW}
    assert (world.cordoned("gpu-a1"), world.cordoned("gpu-a2")) == ([], [A2[0]])
    assert nodes.history.count("gpu-a1: control pod ended") == 1


def test_an_image_that_another_client_sets_meanwhile_stops_it(
    world: ClusterWorld, nodes: PlayedNodes, tmp_path: Path
) -> None:
    upgrade = begun(tmp_path)
    containers = [{"name": "control", "image": "mpsd:0.3.0"}]
    template = {"spec": {"template": {"spec": {"containers": containers}}}}
    patch = (DAEMON_SETS, "mps-control-daemon", template, PatchKind.STRATEGIC, NAMESPACE)
    world.ask(lambda kube: kube.patch(*patch))
    assert upgrade.exit_code() == 1
    assert "another client has set the image mpsd:0.3.0 meanwhile" in upgrade.errors
    assert control_images(world) == {"gpu-a1": OLD, "gpu-a2": OLD}


def test_what_cannot_be_upgraded_is_said_before_anything_is_changed(world: ClusterWorld) -> None:
    nothing = world.kubectl_mps("upgrade")
    assert nothing.code == 1
    assert "no DaemonSet has the labels app.kubernetes.io/part-of=mpsd" in nothing.errors
    world.put("gpu-b1")
    run_pods(world, "gpu-b1")
    with played_nodes(world) as played:
        played.silent.add("gpu-b1")
        run_control(world, OLD, "gpu-b1")
        for words in ((), ("--dry-run",)):
            silent = world.kubectl_mps("upgrade", "--image", NEW, *words)
            assert silent.code == 1
            assert (
                "gpu-b1 last reported 87 min ago, so it is not known whether its GPUs are empty; "
                in silent.errors
            )
        strange = world.kubectl_mps("upgrade", "gpu-b9")
        assert strange.code == 2
        assert 'node "gpu-b9": has no MPSNode; name one of gpu-b1' in strange.errors
        at_once = world.kubectl_mps("upgrade", "--timeout", "0")
        assert at_once.code == 2
        assert (
            '--timeout is "0": cannot be used; write a time over 0, such as 10m' in at_once.errors
        )
        for image in ("", "mpsd:2 mpsd:3"):
            none = world.kubectl_mps("upgrade", "--image", image)
            assert (none.code, "is no image; name one, such as " in none.errors) == (2, True)
        nobody = world.kubectl_mps("upgrade", "-l", "pool=z")
        assert "no node that pool=z selects has a pod of DaemonSet" in nobody.errors
        picked = world.kubectl_mps("upgrade", "-l", "kubernetes.io/hostname=gpu-b1", "--dry-run")
        assert (picked.code, picked.output.count("gpu-b1: up to date")) == (0, 1)
        rolling = {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
        patch = (DAEMON_SETS, "mps-control-daemon", rolling, PatchKind.STRATEGIC, NAMESPACE)
        world.ask(lambda kube: kube.patch(*patch))
        said = world.kubectl_mps("upgrade", "--image", NEW)
        assert (
            "updateStrategy is RollingUpdate, so its pods are replaced while programs run on them;"
            " set it" in said.errors
        )
        assert control_images(world) == {"gpu-b1": OLD}
        assert world.cordoned("gpu-b1") == []


def test_an_mpsnode_that_is_left_of_a_node_without_a_control_pod_is_nobodys_upgrade(
    world: ClusterWorld,
) -> None:
    world.put("gpu-b1")
    run_control(world, OLD)
    said = world.kubectl_mps("upgrade", "--image", NEW)
    assert (said.code, said.output.count(" on 0 nodes\n")) == (0, 1), said.errors
