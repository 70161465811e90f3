"""What `kubectl mps doctor` makes of versions and of labels: of Kubernetes, kubelets, container runtimes, and nodes."""

from dataclasses import replace
from typing import Any

import pytest

from mpsd.operations.doctor.rules.checks import CheckVerdict, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts
from tests.cli.doctored_cluster import NODE
from tests.cli.gpu_cluster import machine
from tests.operations.broken_clusters import BY_CDI, CDI, MODERN, WELL, running, workload


def verdict(check: str, **changes: Any) -> CheckVerdict:
    facts: ClusterFacts = replace(WELL, **changes)
    (found,) = (one.verdict for one in diagnose(facts, CLUSTER_CHECKS).outcomes if one.check.id == check)
    return found


@pytest.mark.parametrize(
    ("runtime", "kubelet", "verdict_of_it"),
    [
        ("containerd://1.6.38", "v1.30.0", "found"),
        ("containerd://1.7.0", "v1.30.0", "well"),
        ("containerd://2.1.9", "v1.28.0", "well"),
        ("containerd://2.1.9", "v1.27.9", "found"),
        ("containerd://2.1.9-k3s1", "v1.36.2+k3s1", "well"),
        ("cri-o://1.22.0", "v1.30.0", "found"),
        ("cri-o://1.33.1", "v1.33.1", "well"),
        ("docker://27.0.1", "v1.30.0", "well"),  # nothing is known of cri-dockerd
        ("", "", "well"),
    ],
)
def test_a_runtime_or_a_kubelet_without_cdi_is_found(runtime: str, kubelet: str, verdict_of_it: str) -> None:
    assert verdict("no-cdi", **BY_CDI, **running(runtime, kubelet)) == verdict_of_it


@pytest.mark.parametrize(
    ("labels", "verdict_of_it"),
    [
        ({"nvidia.com/mps.capable": "true"}, "found"),
        ({"nvidia.com/mps.capable": "true", "nvidia.com/gpu.deploy.device-plugin": "true"}, "found"),
        ({"nvidia.com/mps.capable": "true", "nvidia.com/gpu.deploy.device-plugin": "false"}, "well"),
        ({"nvidia.com/mps.capable": "false", "nvidia.com/gpu.deploy.device-plugin": "true"}, "well"),
    ],
)
def test_a_node_on_which_labels_start_nvidias_mps_daemon_is_found(labels: dict[str, str], verdict_of_it: str) -> None:
    assert verdict("nvidia-mps", nodes=[machine(NODE, labels=labels)]) == verdict_of_it


def test_an_old_kubelet_passes_annotations_on() -> None:
    agent = workload(
        "mpsd-agent", spec={"template": {"spec": {"containers": [{"env": [CDI | {"value": "cdi-annotations"}]}]}}}
    )
    assert verdict("no-cdi", daemon_sets=[agent], **running("containerd://1.7.2", "v1.20.2")) is CheckVerdict.WELL


def test_without_cdi_a_runtime_may_be_old() -> None:
    assert verdict("no-cdi", **running("containerd://1.6.38")) is CheckVerdict.NOT_APPLICABLE


def test_a_policy_of_modern_that_is_there_is_well() -> None:
    there = [{"metadata": {"name": "mpsd-agent-writes"}}]
    assert verdict("policy-missing", **MODERN, policies=there) is CheckVerdict.WELL
    assert verdict("policy-missing", **MODERN, policies=Unknown("no such kind")) is CheckVerdict.UNKNOWN
    assert verdict("policy-missing") is CheckVerdict.NOT_APPLICABLE
