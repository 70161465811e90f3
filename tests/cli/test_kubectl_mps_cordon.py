"""`kubectl mps cordon` and `uncordon`: what is asked of a node, and what is said of it."""

import asyncio

import pytest

from mpsd.operations.lifecycle.drain import change_cordon
from mpsd.platform.kube import Kube
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import mpsnode

A1 = [gpu["uuid"] for gpu in mpsnode("gpu-a1")["status"]["gpus"]]
A2 = [gpu["uuid"] for gpu in mpsnode("gpu-a2")["status"]["gpus"]]


@pytest.fixture
def world(world: ClusterWorld) -> ClusterWorld:
    """With gpu-a1 and gpu-a2, whose agents do nothing unless a test plays them."""
    world.put("gpu-a1", "gpu-a2")
    return world


def test_a_gpu_is_taken_out_of_use_and_put_back(world: ClusterWorld) -> None:
    out = world.kubectl_mps("cordon", "gpu-a1", "gpu0")
    assert (out.code, out.errors) == (0, "")
    assert world.cordoned("gpu-a1") == [A1[0]]
    assert out.output.startswith(
        "gpu-a1: no new pods on gpu0 from now on; running programs continue\n"
    )
    assert "\npod default/train-0 (12 GiB of gpu0) runs until it ends\n" in out.output
    back = world.kubectl_mps("uncordon", "gpu-a1", A1[0])
    assert (back.code, back.output) == (0, "gpu-a1: new pods are accepted on gpu0 again\n")
    assert world.cordoned("gpu-a1") == []


def test_a_silent_node_is_cordoned_and_its_silence_is_said(world: ClusterWorld) -> None:
    world.put("gpu-b1")
    said = world.kubectl_mps("cordon", "gpu-b1")
    assert said.code == 0
    assert world.cordoned("gpu-b1") == ["all"]
    assert "gpu-b1 has reported nothing for 87 min" in said.output


def test_a_gpu_or_a_node_that_is_not_there_changes_nothing(world: ClusterWorld) -> None:
    said = world.kubectl_mps("cordon", "gpu-a1", "gpu0", "gpu9")
    assert (said.code, said.output) == (2, "")
    assert "gpu9: is no GPU of this node" in said.errors
    assert world.cordoned("gpu-a1") == []
    assert world.kubectl_mps("cordon", "gpu-a9").code == 2


def test_of_several_at_once_nobodys_change_is_lost(world: ClusterWorld) -> None:
    async def questions(kube: Kube) -> None:
        wanted = [("gpu0", False), ("gpu1", True), ("gpu2", True), ("gpu3", True)]
        await asyncio.gather(
            *(change_cordon(kube, "gpu-a2", [gpu], cordon=cordon) for gpu, cordon in wanted)
        )

    world.ask(questions)
    assert world.cordoned("gpu-a2") == A2[1:]
