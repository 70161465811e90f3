"""`kubectl mps explain`: each pod gets one sentence, of what the cluster says."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.cli import kubectl_mps
from mpsd.model.times import stamp
from mpsd.platform.kube import Resource
from mpsd.platform.limits_files import shipped_folder
from tests.cli.cluster_world import ClusterWorld, Said
from tests.cli.gpu_cluster import GpuCluster, gpu_pod, grant, machine, mpsnode, uuid
from tests.whole.webhook.api_server import api_server

EVENTS, CONFIG_MAPS, NAMESPACES = (
    Resource("v1", plural) for plural in ("events", "configmaps", "namespaces")
)
REPLICA_SETS = Resource("apps/v1", "replicasets")


@pytest.fixture
def cluster(world: ClusterWorld) -> GpuCluster:
    return GpuCluster(world)


def explain(cluster: GpuCluster, *words: str) -> Said:
    return cluster.world.kubectl_mps("explain", *words)


def two_nodes(cluster: GpuCluster, **more: Any) -> None:
    """node1 has 4 and 3 GiB free of two GPUs, node2 is cordoned and has 15."""
    held = [
        cluster.pod(gpu_pod(f"held-{n}", 11 + n, nodeName="node1"), {"phase": "Running"})
        for n in (0, 1)
    ]
    cluster.nodes(
        machine("node1"),
        machine("node2", unschedulable=True),
        mpsnode(
            "node1",
            15,
            15,
            grants=[grant(pod, 11 + n, "node1", 1 - n) for n, pod in enumerate(held)],
        ),
        mpsnode("node2", 15, **more),
    )


def test_a_pod_that_runs_is_where_it_is_with_what_it_has(cluster: GpuCluster) -> None:
    pod = cluster.pod(gpu_pod("train", 7, percent=30, nodeName="node1"), {"phase": "Running"})
    cluster.nodes(
        mpsnode(
            "node1", 15, 15, grants=[grant(pod, 7, "node1", 1, percent=30)], states={1: "fault"}
        )
    )
    said = explain(cluster, "pod/train")
    assert (said.code, said.errors) == (0, "")
    assert (
        said.output
        == "pod default/train runs on gpu1 of node1 with 7 GiB and 30 % of its threads, of which it"
        " uses 0.5 GiB; but gpu1 is in fault for 10 min (its server is in FAULT)\n"
    )


def test_a_pod_that_kubelet_kills_at_once_is_warned_of(cluster: GpuCluster) -> None:
    cluster.nodes(mpsnode("node1", 15))
    at_once = {"terminationGracePeriodSeconds": 0}
    cluster.pod(gpu_pod("runs", 7, nodeName="node1", **at_once), {"phase": "Running"})
    cluster.pod(gpu_pod("waits", 7, **at_once))
    for name in ("runs", "waits"):
        warnings = json.loads(explain(cluster, name, "-o", "json").output)["warnings"]
        assert [one["rule"] for one in warnings] == ["grace-zero"]
        assert len(explain(cluster, name).output.splitlines()) == 2


def test_a_pod_without_room_says_what_there_is_and_what_is_not_counted(cluster: GpuCluster) -> None:
    two_nodes(cluster, told_ago_s=3600)
    cluster.pod(gpu_pod("train", 7))
    said = explain(cluster, "train")
    assert said.code == 1
    assert (
        said.output
        == "pod default/train waits: no room on node1 (gpu0 has 3 of the needed 7 GiB free, gpu1 4)"
        "; not counted: node2 (cordoned); the GPUs of node1 have that only together, and"
        " autoscalers count it as free; it starts when others end, which kubectl mps shows; or ask"
        " for 4 GiB or less\n"
    )
    read = json.loads(explain(cluster, "train", "-o", "json").output)
    assert (read["why"], read["request"]["memory_mib"], read["policy"]["from"]) == (
        "no-room",
        7168,
        "shipped with this mpsd",
    )


def test_a_promise_that_is_its_own_is_said_and_one_of_a_pod_that_is_gone_takes_nothing(
    cluster: GpuCluster,
) -> None:
    pod = cluster.pod(gpu_pod("train", 7))
    uid = pod["metadata"]["uid"]
    reservations = {
        uid: {"pod": "default/train", "gpus": [uuid("node1", 0)], "mib": 7168, "percent": 0},
        "gone": {"pod": "default/gone", "gpus": [uuid("node2", 0)], "mib": 7168, "percent": 0},
    }
    cluster.nodes(
        machine("node1"), machine("node2"), mpsnode("node1", 7, reserved=json.dumps(reservations))
    )
    assert (
        "its scheduler has reserved gpu0 of node1 for it, and binds it there"
        in explain(cluster, "train").output
    )
    gone = {"gone": reservations["gone"]}
    cluster.nodes(mpsnode("node2", 7, reserved=json.dumps(gone)))
    cluster.pod(gpu_pod("other", 7))
    assert "gpu0 of node2 has room" in explain(cluster, "other").output


def test_a_pod_that_does_not_start_is_told_with_its_last_warning(cluster: GpuCluster) -> None:
    waits = {
        "name": "main",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}},
    }
    pod = gpu_pod("train", 7, nodeName="node1", annotations={"mpsd.io/gpu": uuid("node1", 1)})
    made = cluster.pod(pod, {"phase": "Pending", "containerStatuses": [waits]})
    cluster.nodes(mpsnode("node1", 15, 15))
    event = {
        "metadata": {"name": "event"},
        "involvedObject": {
            "uid": made["metadata"]["uid"],
            "kind": "Pod",
            "name": "train",
            "namespace": "default",
        },
        "type": "Warning",
        "reason": "Failed",
        "message": "no such host:\n registry.",
        "lastTimestamp": stamp(time.time()),
    }
    cluster.thing(EVENTS, event, "default")
    said = explain(cluster, "train")
    assert (said.code, said.errors) == (1, "")
    assert (
        said.output
        == "pod default/train waits on gpu1 of node1: container main waits: ImagePullBackOff:"
        " Back-off pulling; last warning: Failed: no such host: registry; correct its image, or"
        " the secret that it is pulled with\n"
    )


def test_a_deployment_is_answered_with_its_pods(cluster: GpuCluster) -> None:
    made = cluster.thing(
        REPLICA_SETS, {"metadata": {"name": "train-5dc6b"}, "spec": {"replicas": 0}}, "default"
    )
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "train-5dc6b",
        "uid": made["metadata"]["uid"],
    }
    refused = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed, unexpectedly.",
    }
    for name, status in (("train-5dc6b-b", None), ("train-5dc6b-a", refused)):
        pod = gpu_pod(name, 7, nodeName="node1" if status else "")
        pod["metadata"] |= {
            "ownerReferences": [owner | {"controller": True}],
            "labels": {"pod-template-hash": "5dc6b"},
        }
        cluster.pod(pod, status)
    for word in ("train", "deploy/train", "rs/train-5dc6b"):
        said = explain(cluster, word)
        assert said.code == 1
        head, first, second = said.output.splitlines()
        assert head.endswith(" has 2 pods: train-5dc6b-a, train-5dc6b-b")
        assert "it is never started again, and Deployment train makes another; " in first
        assert second.startswith("pod default/train-5dc6b-b waits: ")
    assert explain(cluster, "job/train").code == 2


def test_a_pod_that_is_not_there_is_a_wrong_question(cluster: GpuCluster) -> None:
    cluster.thing(NAMESPACES, {"metadata": {"name": "research"}})
    cluster.pod(gpu_pod("train-0", 7))
    cluster.pod(gpu_pod("notebook", 7), namespace="research")
    near = explain(cluster, "train-1")
    assert (near.code, near.output) == (2, "")
    assert near.errors.endswith("name one of train-0\n")
    elsewhere = explain(cluster, "notebook").errors
    assert "there is one in research: name the namespace with -n" in elsewhere
    assert explain(cluster, "notebook", "-n", "research").code == 1
    assert explain(cluster, "train-0", "-A").code == 2


def test_the_namespace_is_the_context_s(cluster: GpuCluster) -> None:
    cluster.thing(NAMESPACES, {"metadata": {"name": "research"}})
    cluster.pod(gpu_pod("notebook", 7), namespace="research")
    config = yaml.safe_load(cluster.world.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "research"
    cluster.world.kubeconfig.write_text(yaml.safe_dump(config))
    assert "pod research/notebook waits: " in explain(cluster, "notebook").output


def test_without_a_pod_every_one_that_waits_has_a_line(cluster: GpuCluster) -> None:
    cluster.thing(NAMESPACES, {"metadata": {"name": "research"}})
    assert explain(cluster).output == "no pod of namespace default waits for a GPU\n"
    two_nodes(cluster)
    for name, namespace, gib in (
        ("b", "default", 14),
        ("a", "default", 99),
        ("web", "default", 0),
        ("c", "research", 9),
    ):
        cluster.pod(gpu_pod(name, gib), namespace=namespace)

    def told(*words: str) -> list[str]:
        said = explain(cluster, *words)
        assert said.code == 1
        return [line.split(" waits: ")[0] for line in said.output.splitlines()]

    assert told() == ["pod default/a", "pod default/b"]
    assert told("-A") == ["pod default/a", "pod default/b", "pod research/c"]
    assert len(json.loads(explain(cluster, "-A", "-o", "json").output)["pods"]) == 3


def test_the_policy_is_the_cluster_s_where_it_may_be_read(cluster: GpuCluster) -> None:
    policy = yaml.safe_load((shipped_folder() / "policy.yaml").read_text())
    policy["admission"]["schedulers"] = ["volcano"]
    facts = (shipped_folder() / "gpus.yaml").read_text()
    config_map = {
        "metadata": {"name": "mpsd-limits"},
        "data": {"policy.yaml": yaml.safe_dump(policy), "gpus.yaml": facts},
    }
    cluster.thing(NAMESPACES, {"metadata": {"name": "mpsd-system"}})
    cluster.thing(CONFIG_MAPS, config_map, "mpsd-system")
    cluster.pod(gpu_pod("train", 7))
    read = json.loads(explain(cluster, "train", "-o", "json").output)
    assert read["policy"] == {"from": "ConfigMap mpsd-system/mpsd-limits", "why": ""}
    assert (
        read["sentence"]
        == 'pod default/train waits: it names the scheduler "mpsd-scheduler", which does not ask'
        " mpsd; recreate it with spec.schedulerName: volcano"
    )


def test_what_may_not_be_looked_at_is_said(cluster: GpuCluster, tmp_path: Path) -> None:
    with api_server() as server:
        config = str(server.kubeconfig(tmp_path))
        server.put("/apis/mpsd.io/v1alpha1/mpsnodes/node1", mpsnode("node1", 15))
        pod = gpu_pod("train", 7)
        pod["metadata"] |= {
            "namespace": "default",
            "uid": "1",
            "creationTimestamp": stamp(time.time()),
        }
        server.put("/api/v1/namespaces/default/pods/train", pod)
        server.forbidden = {
            ("list", "nodes"),
            ("list", "pods"),
            ("get", "configmaps"),
            ("list", "events"),
        }
        partly = explain(cluster, "train", "--kubeconfig", config)
        assert (partly.code, partly.errors.count("lacks the right to list")) == (1, 2)
        assert "gpu0 of node1 has room" in partly.output
        server.forbidden |= {("list", "mpsnodes"), ("get", "mpsnodes")}
        nothing = explain(cluster, "train", "--kubeconfig", config)
        assert (nothing.code, nothing.output) == (1, "")
        assert "kubectl create clusterrole mpsd-explain --verb=get,list" in nothing.errors


def test_a_pod_is_explained_whatever_it_is_called(cluster: GpuCluster) -> None:
    for name in ("status", "gpu-a1", "explain"):
        cluster.pod(gpu_pod(name, 7))
        assert (
            f"pod default/{name} waits: "
            in cluster.world.kubectl_mps("-n", "default", "explain", name).output
        )
    offered = cluster.world.run(kubectl_mps.complete, "kubectl_complete-mps", "explain", "")
    assert offered.output.splitlines() == ["explain", "gpu-a1", "status", ":4"]


def test_a_pod_that_asks_for_no_gpu_is_told_how_to(cluster: GpuCluster) -> None:
    cluster.pod(gpu_pod("web"))
    said = explain(cluster, "web")
    assert said.code == 1
    assert "asks for no GPU: none of its containers has aliyun.com/gpu-mem" in said.output


def test_a_cluster_without_mpsd_is_told_how_to_get_it(bare_world: ClusterWorld) -> None:
    cluster = GpuCluster(bare_world)
    cluster.pod(gpu_pod("train", 7))
    said = explain(cluster, "train")
    assert said.code == 1
    assert (
        "this cluster knows no MPSNodes (mpsnodes.mpsd.io); mpsd is not installed there: "
        in said.errors
    )
