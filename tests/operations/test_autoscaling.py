"""What autoscalers are told of a group of nodes: read back in their own words, it is what an empty node offers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.operations.autoscaling.rules.node_group import (
    Autoscaler,
    NodeGroup,
    StartupTaint,
    described,
    not_seen,
    notes,
    only_group,
    read_group,
    settings,
    startup_taint,
)
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, Taint
from tests.model.worlds import POLICY
from tests.mpsnodes import NAMES, NOW, damaged, mpsnode

CLIENTS = 48
TAINT, NONE = StartupTaint("mpsd.io/not-ready"), StartupTaint("")
MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
OURS = {
    "ack.node.gpu.schedule": "mps",
    "mpsd.io/gpu.product": "NVIDIA-H200",
    "mpsd.io/gpu.memory": "139",
    "mpsd.io/gpu.count": "2",
    "mpsd.io/sharing": "mps",
}


def node(name: str = "gpu-a1") -> ClusterNode:
    return read_mpsnode(mpsnode(name), NOW)


def machine(name: str = "gpu-a1", *taints: Taint, label: str = "") -> KubernetesNode:
    amounts = {"cpu": "47810m", "memory": "196Gi", "pods": "110", MEMORY: "278"}
    share = {"ack.node.gpu.schedule": "mps", "pool": "a", "node.kubernetes.io/instance-type": "p5en.48xlarge"}
    return KubernetesNode(name, share | ({label: "x"} if label else {}), taints, False, True, "10.0.0.1", amounts)


def group(*taints: Taint, gpus: int = 2, label: str = "") -> NodeGroup:
    there = node()
    found = read_group(replace(there, gpus=there.gpus[:gpus]), machine("gpu-a1", *taints, label=label), POLICY, CLIENTS)
    assert found
    return found


def asg_template(tags: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Resources, labels and taints, as cluster-autoscaler's README for AWS has them."""
    start = "k8s.io/cluster-autoscaler/node-template/"
    parts: dict[str, dict[str, str]] = {"resources": {}, "label": {}, "taint": {}}
    for key, value in tags.items():
        assert key.startswith(start)
        assert len(key) <= 128, "what AWS takes"
        kind, _slash, name = key.removeprefix(start).partition("/")
        parts[kind][name] = value
    return parts["resources"], parts["label"], parts["taint"]


@given(st.integers(1, 1000), st.integers(1, 16), st.sampled_from([256, 1024, 2048]))
def test_what_each_reads_is_what_an_empty_node_offers(memory_gib: int, gpus: int, unit_mib: int) -> None:
    policy = with_unit(unit_mib)
    try:
        found = described(memory_gib, gpus, policy, CLIENTS)
    except InvalidInput:
        assert memory_gib * 1024 < unit_mib
        return
    offered = {MEMORY: str(memory_gib * 1024 // unit_mib * gpus), PERCENT: str(100 * gpus)}
    resources, labels, taints = asg_template(settings(Autoscaler.ASG, found, TAINT)["tags"])
    assert (resources, taints) == (offered, {})
    assert labels == found.labels
    annotations = settings(Autoscaler.CAPI, found, TAINT)["annotations"]
    start = "capacity.cluster-autoscaler.kubernetes.io/"
    assert {annotations[f"{start}gpu-type"]: annotations[f"{start}gpu-count"]} == {MEMORY: offered[MEMORY]}
    assert dict(one.split("=") for one in annotations[f"{start}labels"].split(",")) == found.labels
    pool = settings(Autoscaler.GKE, found, TAINT)["nodeLabels"]
    prefix = "clusterautoscaler-nodetemplate-resources-"
    assert {key.removeprefix(prefix): value for key, value in pool.items() if key.startswith(prefix)} == offered
    assert settings(Autoscaler.KARPENTER, found, TAINT)["nodeOverlay"]["spec"]["capacity"] == offered


def with_unit(unit_mib: int) -> Policy:
    return replace(POLICY, resources=replace(POLICY.resources, memory_unit_mib=unit_mib))


def test_a_node_that_serves_is_the_example_with_its_labels_and_the_taints_that_stay() -> None:
    own, startup = Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("mpsd.io/not-ready", "", "NoSchedule")
    found = group(own, startup, Taint("node.kubernetes.io/not-ready", "", "NoExecute"))
    assert found.resources == {MEMORY: 278, PERCENT: 200}
    assert found.labels == OURS
    _resources, labels, taints = asg_template(settings(Autoscaler.ASG, found, TAINT)["tags"])
    assert (labels, taints) == (OURS, {"nvidia.com/gpu": "present:NoSchedule"})
    annotations = settings(Autoscaler.CAPI, found, TAINT)["annotations"]
    start = "capacity.cluster-autoscaler.kubernetes.io/"
    assert annotations[f"{start}taints"] == "nvidia.com/gpu=present:NoSchedule"
    told = {name: annotations[start + name] for name in ("cpu", "memory", "maxPods")}
    assert told == {"cpu": "47810m", "memory": "196Gi", "maxPods": "110"}


def test_an_overlay_is_for_the_type_of_the_example_alone_and_without_one_for_none() -> None:
    def which(found: NodeGroup) -> Any:
        return settings(Autoscaler.KARPENTER, found, NONE)["nodeOverlay"]["spec"]["requirements"]

    (known,), (unknown,) = which(group()), which(described(139, 2, POLICY, CLIENTS))
    assert known["values"] == ["p5en.48xlarge"]
    assert unknown["values"] == ["INSTANCE-TYPE"]
    assert any("replace INSTANCE-TYPE" in one for one in notes(Autoscaler.KARPENTER, described(1, 1, POLICY, 48), NONE))


def test_an_overlay_has_a_name_that_kubernetes_takes_also_for_types_of_azure() -> None:
    there = machine()
    azure = replace(there, labels={**there.labels, "node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"})
    found = read_group(node(), azure, POLICY, CLIENTS)
    assert found
    overlay = settings(Autoscaler.KARPENTER, found, NONE)["nodeOverlay"]
    assert overlay["metadata"]["name"] == "mpsd-standard-nc24ads-a100-v4"
    assert overlay["spec"]["requirements"][0]["values"] == ["Standard_NC24ads_A100_v4"]


def test_a_node_pool_has_the_taints_that_stay_and_the_one_that_goes_each_in_its_place() -> None:
    own, startup = Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("mpsd.io/not-ready", "", "NoSchedule")
    found = settings(Autoscaler.KARPENTER, group(own, startup), TAINT)["nodePool"]["spec"]["template"]["spec"]
    assert found == {
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "mpsd.io/not-ready", "effect": "NoSchedule"}],
    }


def test_the_startup_taint_is_named_only_where_the_agents_remove_it() -> None:
    def pool(taint: StartupTaint) -> Any:
        return settings(Autoscaler.KARPENTER, group(), taint)["nodePool"]["spec"]["template"]

    assert pool(TAINT)["spec"] == {"startupTaints": [{"key": "mpsd.io/not-ready", "effect": "NoSchedule"}]}
    assert "spec" not in pool(NONE)
    for autoscaler in (Autoscaler.ASG, Autoscaler.CAPI):
        assert any("--startup-taint=mpsd.io/not-ready" in one for one in notes(autoscaler, group(), TAINT))
        assert any("component startup-taint" in one for one in notes(autoscaler, group(), NONE))
        unknown = StartupTaint("", "mpsd lacks the right")
        assert any("is not known: mpsd lacks the right" in one for one in notes(autoscaler, group(), unknown))


@pytest.mark.parametrize(
    ("container", "key"),
    [
        ({}, ""),
        ({"env": [{"name": "MPSD_STARTUP_TAINT", "value": "a/b"}]}, "a/b"),
        ({"env": [{"name": "MPSD_STARTUP_TAINT"}], "args": ["agent"]}, ""),
        ({"args": ["agent", "--startup-taint", "a/b"]}, "a/b"),
        ({"args": ["agent", "--startup-taint=a/b"]}, "a/b"),
        ({"args": ["agent", "--startup-taint"]}, ""),
    ],
)
def test_the_taint_that_agents_remove_is_read_from_their_daemonset(container: dict[str, Any], key: str) -> None:
    thing = {"spec": {"template": {"spec": {"containers": [container]}}}}
    assert startup_taint([thing]) == StartupTaint(key)
    assert startup_taint([]) == NONE


@pytest.mark.parametrize(
    ("autoscaler", "label"),
    [(Autoscaler.ASG, "k8s.amazonaws.com/accelerator"), (Autoscaler.CAPI, "cluster-api/accelerator")],
)
def test_a_label_by_which_nodes_count_as_starting_for_good_is_named(autoscaler: Autoscaler, label: str) -> None:
    def is_said(found: NodeGroup) -> bool:
        return any("autoscaler#8095" in one for one in notes(autoscaler, found, NONE))

    assert is_said(group(label=label))
    assert not is_said(group())
    assert is_said(described(139, 8, POLICY, CLIENTS)), "nobody knows whether a new group has it"
    assert any("autoscaler#8095" in one for one in notes(Autoscaler.GKE, group(), NONE)), "every GPU node of GKE has"


def test_what_no_autoscaler_sees_depends_on_how_many_gpus_a_node_has() -> None:
    assert any("4 and 3 GiB are free on two of them" in one for one in not_seen(group()))
    assert not any("4 and 3 GiB" in one for one in not_seen(group(gpus=1)))
    assert any("at most 6 pods" in one for one in not_seen(group())), "48 clients, of which each grant reserves 8"


def test_nodes_of_several_kinds_are_no_group_and_are_named() -> None:
    with pytest.raises(InvalidInput) as refused:
        only_group([group(), group(gpus=1)], [])
    (problem,) = refused.value.problems
    assert (problem.rule, problem.message) == (
        "nodes-differ",
        "differ: gpu-a1 has 2 GPUs of 139 GiB, gpu-a1 has 1 GPU of 139 GiB",
    )
    assert only_group([group(), group()], ["gpu-b2"]) == group()


def test_a_node_that_has_reported_no_gpus_offers_nothing_that_is_known() -> None:
    assert read_group(node("gpu-b2"), machine("gpu-b2"), POLICY, CLIENTS) is None
    there = node()
    unknown = replace(there, gpus=(there.gpus[0], changed(there.gpus[1], promised_mib=None)))
    assert read_group(unknown, machine(), POLICY, CLIENTS) is None
    for silent in (["gpu-b2"], ["gpu-b1", "gpu-b2"], []):
        with pytest.raises(InvalidInput) as refused:
            only_group([], silent)
        assert refused.value.problems[0].rule == "gpus-unknown"


@given(damaged())
def test_of_any_mpsnode_there_are_settings_or_none(thing: Any) -> None:
    found = read_group(read_mpsnode(thing, NOW), machine(), POLICY, CLIENTS)
    for autoscaler in Autoscaler if found else ():
        assert found
        assert settings(autoscaler, found, TAINT)
        assert [*notes(autoscaler, found, TAINT)]


def test_every_node_of_the_tests_can_be_an_example_but_the_silent_one() -> None:
    assert {name for name in NAMES if read_group(node(name), None, POLICY, CLIENTS)} == {*NAMES} - {"gpu-b2"}
