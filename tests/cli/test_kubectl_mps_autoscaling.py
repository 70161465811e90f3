"""`kubectl mps autoscaling`: of a node that serves, or of a group that is described, in a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.platform.kube import NODES, Kube, PatchKind, Resource
from tests.cli.cluster_world import ClusterWorld

MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
_LABELS = {"ack.node.gpu.schedule": "mps", "node.kubernetes.io/instance-type": "p5en.48xlarge"}
_ROOT = Path(__file__).parents[2]
_GENERIC = _ROOT / "manifests" / "components" / "generic" / "policy.yaml"
_GPUS = _ROOT / "limits" / "gpus.yaml"


def put_node(world: ClusterWorld, name: str, **labels: str) -> None:
    async def questions(kube: Kube) -> None:
        await kube.create(NODES, {"metadata": {"name": name, "labels": _LABELS | labels}})
        amounts = {"cpu": "48", "memory": "196Gi", MEMORY: "278", PERCENT: "200"}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        await kube.patch(NODES, name, status, PatchKind.MERGE, subresource="status")

    world.ask(questions)


@pytest.fixture
def world(world: ClusterWorld) -> ClusterWorld:
    """gpu-a1 with two GPUs of 139 GiB, and its Node."""
    world.put("gpu-a1")
    put_node(world, "gpu-a1", pool="h200")
    return world


def asked(world: ClusterWorld, *words: str) -> Any:
    said = world.kubectl_mps("autoscaling", *words, "-o", "json")
    assert said.code == 0, said.errors
    return json.loads(said.output)


@pytest.mark.parametrize("words", [("gpu-a1",), ("-l", "pool=h200"), ()])
def test_a_node_that_serves_is_the_example(world: ClusterWorld, words: tuple[str, ...]) -> None:
    found = asked(world, *words)
    assert (found["like"], found["gpus"], found["startup_taint"]) == ("gpu-a1", 2, "")
    assert found["resources"] == {MEMORY: 278, PERCENT: 200}
    assert found["asg"]["tags"][f"k8s.io/cluster-autoscaler/node-template/resources/{MEMORY}"] == "278"
    assert found["karpenter"]["nodeOverlay"]["spec"] == {
        "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5en.48xlarge"]}],
        "capacity": {MEMORY: "278", PERCENT: "200"},
    }
    assert found["labels"]["mpsd.io/gpu.product"] == "NVIDIA-H200"
    assert {"asg", "capi", "gke", "karpenter"} == found["notes"].keys()


def test_one_autoscaler_is_printed_alone_and_as_yaml_what_it_is_as_json(world: ClusterWorld) -> None:
    found = asked(world, "gpu-a1", "--for", "capi")
    assert found.keys().isdisjoint({"asg", "gke", "karpenter"})
    said = world.kubectl_mps("autoscaling", "--for", "capi", "gpu-a1", "-o", "yaml")
    assert (said.code, yaml.safe_load(said.output)) == (0, found)
    text = world.kubectl_mps("--for", "capi", "autoscaling", "gpu-a1")
    assert text.output.startswith(f"gpu-a1 has 2 GPUs of 139 GiB; an empty node offers {MEMORY} 278 and {PERCENT} 200")
    assert "\n    capacity.cluster-autoscaler.kubernetes.io/gpu-type: aliyun.com/gpu-mem\n" in text.output
    assert "\nwhat no autoscaler sees\n- autoscalers add up the 2 GPUs of a node" in text.output


def test_a_group_without_a_node_is_described_in_the_names_of_the_clusters_policy(world: ClusterWorld) -> None:
    found = asked(world, "--gpu-memory", "139", "--count", "8")
    assert (found["like"], found["resources"]) == (None, {MEMORY: 8 * 139, PERCENT: 800})
    assert found["labels"] == {
        "ack.node.gpu.schedule": "mps",
        "mpsd.io/gpu.memory": "139",
        "mpsd.io/gpu.count": "8",
        "mpsd.io/sharing": "mps",
    }
    generic = yaml.safe_load(_GENERIC.read_text())
    world.ask(lambda kube: kube.create(Resource("v1", "namespaces"), {"metadata": {"name": "mpsd-system"}}))
    data = {"policy.yaml": yaml.safe_dump(generic), "gpus.yaml": _GPUS.read_text()}
    limits = {"metadata": {"name": "mpsd-limits"}, "data": data}
    world.ask(lambda kube: kube.create(Resource("v1", "configmaps"), limits, "mpsd-system"))
    renamed = asked(world, "--gpu-memory", "139", "--count", "8")
    assert renamed["resources"] == {"mpsd.io/gpu-mem": 8 * 139, "mpsd.io/gpu-core.percentage": 800}
    assert renamed["labels"]["mpsd.io/share"] == "mps"
    assert renamed["not_looked_at"] == []


def test_the_taint_that_the_agents_remove_is_named(world: ClusterWorld) -> None:
    env = [{"name": "MPSD_STARTUP_TAINT", "value": "mpsd.io/not-ready"}]
    labels = {"app.kubernetes.io/name": "mpsd-agent"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "agent", "image": "m", "env": env}]}}
    agents = {
        "metadata": {"name": "mpsd-agent", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    world.ask(lambda kube: kube.create(Resource("v1", "namespaces"), {"metadata": {"name": "mpsd-system"}}))
    world.ask(lambda kube: kube.create(Resource("apps/v1", "daemonsets"), agents, "mpsd-system"))
    assert asked(world, "gpu-a1")["startup_taint"] == "mpsd.io/not-ready"


def test_nodes_that_differ_or_are_not_there_are_named_with_what_to_do(world: ClusterWorld) -> None:
    world.put("gpu-a2", "gpu-b2")
    differ = world.kubectl_mps("autoscaling")
    assert (differ.code, differ.output) == (2, "")
    assert "nodes: differ: gpu-a1 has 2 GPUs of 139 GiB, gpu-a2 has 4 GPUs of " in differ.errors
    assert "; name a node of the group that is meant, or a label that only its nodes have (-l)\n" in differ.errors
    silent = world.kubectl_mps("autoscaling", "gpu-b2")
    assert (silent.code, silent.output) == (2, "")
    assert "node gpu-b2: has not reported what its GPUs offer; " in silent.errors
    assert world.kubectl_mps("autoscaling", "gpu-x9").code == 2
    none = world.kubectl_mps("autoscaling", "-l", "pool=none")
    assert (none.code, "the cluster: has no such node that mpsd serves" in none.errors) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu-a1", "-l", "a=b"), "--selector: is given beside a node; leave one of the two out"),
        (("gpu-a1", "--count", "2"), "--count: is given beside nodes that are there; leave nodes and --selector out"),
        (("--count", "2"), "--gpu-memory: is missing beside --count; give both"),
        (("--gpu-memory", "80"), "--count: is missing beside --gpu-memory; give both"),
        (("-l", "pool h200"), '--selector is "pool h200": '),
        (("--for", "eks"), "eks"),
        (("--gpu-memory", "80Gi", "--count", "2"), '--gpu-memory is "80Gi": is no whole number from 1 to 10000; write'),
        (("--gpu-memory", "80", "--count", "0"), '--count is "0": is no whole number from 1 to 64; write the GPUs of'),
        (("--gpu-memory", "80", "--count", "1.5"), '--count is "1.5": '),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(
    world: ClusterWorld, words: tuple[str, ...], said: str
) -> None:
    found = world.kubectl_mps("autoscaling", *words)
    assert (found.code, found.output) == (2, "")
    assert said in found.errors


def test_of_several_autoscalers_each_is_printed_in_whatever_order_they_are_named(world: ClusterWorld) -> None:
    found = asked(world, "gpu-a1", "--for", "gke", "--for", "asg")
    assert found["notes"].keys() == {"asg", "gke"}
    assert found.keys().isdisjoint({"capi", "karpenter"})


def test_a_node_that_offers_nothing_now_is_said_to(world: ClusterWorld) -> None:
    nothing = {"status": {"allocatable": {MEMORY: "0"}}}
    world.ask(lambda kube: kube.patch(NODES, "gpu-a1", nothing, PatchKind.MERGE, subresource="status"))
    found = world.kubectl_mps("autoscaling", "gpu-a1", "--for", "asg")
    assert found.code == 0
    assert f"kubectl mps autoscaling: gpu-a1 offers no {MEMORY} now: " in found.errors


def test_a_node_that_has_reported_nothing_is_left_out_and_named(world: ClusterWorld) -> None:
    world.put("gpu-b2")
    found = world.kubectl_mps("autoscaling", "gpu-a1", "gpu-b2", "--for", "asg", "-o", "json")
    said = "gpu-b2 has not reported what its GPUs offer, and is left out"
    assert (found.code, said in json.loads(found.output)["not_looked_at"]) == (0, True)
    assert f"kubectl mps autoscaling: {said}\n" in found.errors


def test_of_a_cluster_that_does_not_answer_no_group_is_described(world: ClusterWorld, tmp_path: Path) -> None:
    """Its policy may have other names for its resources."""
    there = yaml.safe_load(world.kubeconfig.read_text())
    there["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:9"}
    (tmp_path / "away").write_text(yaml.safe_dump(there))
    words = ("--gpu-memory", "139", "--count", "8", "--kubeconfig", str(tmp_path / "away"))
    found = world.kubectl_mps("autoscaling", *words)
    assert (found.code, found.output) == (1, "")
    assert "the Kubernetes API does not answer" in found.errors
