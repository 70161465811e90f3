"""`kubectl inspect cgpu`: the table that gpushare's tool prints, to the letter, of mpsd's
ledger."""

import json
import os
import sys
from pathlib import Path

import pytest

from mpsd.cli import inspect_cgpu
from mpsd.cli.inspect_cgpu import main
from tests.cli.cluster_world import ClusterWorld, Said
from tests.cli.gpu_cluster import GpuCluster, gpu_pod, grant, machine, mpsnode, uuid
from tests.whole.webhook.api_server import api_server
from tests.world.captured import captured

BIN = Path(sys.executable).parent
A7 = """\
NAME                       IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)
cn-shanghai.192.168.6.104  192.168.6.104  0/15                   0/15
----------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
0/15 (0%)
"""


@pytest.fixture
def cluster(world: ClusterWorld) -> GpuCluster:
    return GpuCluster(world)


def inspect(cluster: GpuCluster, *words: str) -> Said:
    return cluster.world.run(main, "kubectl-inspect-cgpu", *words)


def test_one_empty_gpu_is_shown_as_in_the_guide_to_the_letter(cluster: GpuCluster) -> None:
    cluster.nodes(
        machine("cn-shanghai.192.168.6.104", "192.168.6.104"),
        mpsnode("cn-shanghai.192.168.6.104", 15),
    )
    done = captured(
        ["kubectl", "inspect", "cgpu"],
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, A7, "")


def mixed(cluster: GpuCluster) -> None:
    """Two GPUs of another size beside one, a pod on both, one that is bound to a GPU and one that
    has none yet."""
    given = cluster.pod(gpu_pod("wide", 8, gpus=2, nodeName="node1"), {"phase": "Running"})
    small = cluster.pod(gpu_pod("small", 3, nodeName="node1"), {"phase": "Running"}, "kube-system")
    cluster.pod(
        gpu_pod("chosen", 2, nodeName="node2", annotations={"mpsd.io/gpu": uuid("node2", 0)})
    )
    cluster.pod(gpu_pod("ended", 5, nodeName="node2"), {"phase": "Succeeded"})
    cluster.pod(gpu_pod("waits", 5))
    cluster.nodes(
        machine("node1", "10.0.0.1"),
        machine("node2"),
        machine("node3"),
        mpsnode(
            "node1", 15, 23, grants=[grant(given, 4, "node1", 0, 1), grant(small, 3, "node1", 1)]
        ),
        mpsnode(
            "node2",
            7,
            reserved=json.dumps({"x": {"pod": "a/b", "gpus": [], "mib": 1, "percent": 0}}),
        ),
        mpsnode("node3"),
    )


def test_nodes_of_several_gpus_and_sizes_are_added_up(cluster: GpuCluster) -> None:
    mixed(cluster)
    assert (
        inspect(cluster).output
        == "NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "node1  10.0.0.1   4/15                   7/23                   11/38\n"
        "node2  unknown    2/7                    0/0                    2/7\n"
        f"{'-' * (len('node1.10.0.0.1.4/15.7/23.11/38.') + 20)}\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "13/45 (28%)\n"
    )


def test_details_list_the_pods_of_each_node(cluster: GpuCluster) -> None:
    mixed(cluster)
    cluster.pod(gpu_pod("new", 1, nodeName="node2"))
    assert (
        inspect(cluster, "-d").output
        == f"""
NAME:       node1
IPADDRESS:  10.0.0.1

NAME         NAMESPACE    GPU0(Allocated)  GPU1(Allocated)
wide         default      4                4
small        kube-system  0                3
Allocated :  11 (28%)
Total :      38
{"-" * 78}

NAME:       node2
IPADDRESS:  unknown

NAME         NAMESPACE  GPU0(Allocated)  Pending(Allocated)
chosen       default    2                0
new          default    0                1
Allocated :  3 (42%)
Total :      7
{"-" * 79}

Allocated/Total GPU Memory In Cluster:  14/45 (31%)
"""
    )


def test_what_is_silent_or_not_there_is_said_beside_the_table(cluster: GpuCluster) -> None:
    empty = inspect(cluster)
    assert (empty.code, empty.output.splitlines()[-1]) == (1, "0/0 (0%)")
    cluster.nodes(machine("node1", "10.0.0.1"), mpsnode("node1", 15, told_ago_s=3600))
    said = inspect(cluster)
    assert (said.code, said.output.splitlines()[1]) == (
        0,
        "node1  10.0.0.1   0/15                   0/15",
    )
    assert "node1 has reported nothing for 60 min" in said.errors
    missing = inspect(cluster, "node7")
    assert (missing.code, missing.output) == (2, "")
    read = json.loads(inspect(cluster, "-o", "json").output)
    assert (read["unit_mib"], read["nodes"][0]["total"]) == (1024, 15)


def test_a_missing_right_leaves_out_what_it_is_for(cluster: GpuCluster, tmp_path: Path) -> None:
    with api_server() as server:
        config = str(server.kubeconfig(tmp_path))
        server.put("/apis/mpsd.io/v1alpha1/mpsnodes/node1", mpsnode("node1", 15))
        server.forbidden = {("list", "nodes"), ("list", "pods"), ("get", "configmaps")}
        partly = inspect(cluster, "--kubeconfig", config)
        assert (partly.code, partly.output.splitlines()[1].split()) == (
            0,
            ["node1", "unknown", "0/15", "0/15"],
        )
        assert (
            "pods that kubelet has given nothing yet are not counted: mpsd lacks the right to list"
            in partly.errors
        )
        server.forbidden = {("list", "mpsnodes")}
        nothing = inspect(cluster, "--kubeconfig", config)
        assert (nothing.code, nothing.output) == (1, "")
        assert "lacks the right to list mpsnodes" in nothing.errors
        assert "kubectl create clusterrole mpsd-inspect --verb=get,list" in nothing.errors


def test_tab_offers_nodes(cluster: GpuCluster) -> None:
    cluster.nodes(mpsnode("node1", 15), mpsnode("node2", 15))
    offered = cluster.world.run(
        inspect_cgpu.complete, "kubectl_complete-inspect-cgpu", "-d", "node1", ""
    )
    assert offered.output.splitlines() == ["node2", ":4"]
