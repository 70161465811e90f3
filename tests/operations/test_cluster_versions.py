"""What `kubectl mps doctor` makes of versions and of labels: of Kubernetes, kubelets, container runtimes, and nodes;
and of resource claims."""

from dataclasses import replace
from typing import Any

import pytest

from mpsd.operations.doctor.rules.checks import CheckVerdict, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts
from mpsd.operations.doctor.rules.components import RIGHTS
from tests.cli.doctored_cluster import NODE
from tests.cli.gpu_cluster import machine
from tests.operations.broken_clusters import (
    BY_CDI,
    CDI,
    CLAIM_AGENT,
    CLAIMED,
    CLAIMS,
    GIVES_CLAIMS,
    MODERN,
    TAINT,
    WELL,
    report,
    resource_slice,
    running,
    workload,
)


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


@pytest.mark.parametrize(("value", "verdict_of_it"), [("mpsd.io/not-ready", "well"), ("example.com/starting", "found")])
def test_a_startup_taint_that_no_agent_removes_is_found(value: str, verdict_of_it: str) -> None:
    env = [{"name": "MPSD_STARTUP_TAINT", "value": value}]
    agent = workload("mpsd-agent", spec={"template": {"spec": {"containers": [{"env": env}]}}})
    nodes = [machine(NODE, taints=[TAINT])]
    there = [workload("mpsd-control"), agent]
    assert verdict("startup-taint", daemon_sets=there, nodes=nodes) == verdict_of_it


@pytest.mark.parametrize("name", ["nvidia.com/gpu.deploy.operator-validator", "nvidia.com/mig.config"])
def test_what_nvidias_operator_starts_on_nodes_of_others_is_no_fault(name: str) -> None:
    others = [machine(NODE), {"metadata": {"name": "b1", "labels": {name: "true"}}}]
    for check in ("nvidia-validator", "mig-wanted"):
        assert verdict(check, nodes=others) is CheckVerdict.WELL
    kept_away = {"nvidia.com/gpu.deploy.operator-validator": "false", "nvidia.com/mig.config": "all-disabled"}
    for check in ("nvidia-validator", "mig-wanted"):
        assert verdict(check, nodes=[machine(NODE, labels=kept_away)]) is CheckVerdict.WELL


def test_a_mig_layout_that_the_nodes_gpus_have_is_no_fault() -> None:
    labels = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "success"}
    assert verdict("mig-wanted", nodes=[machine(NODE, labels=labels)]) is CheckVerdict.WELL


def test_where_programs_outside_mps_may_use_gpus_the_validator_may_run() -> None:
    nodes = [machine(NODE, labels={"nvidia.com/gpu.deploy.operator-validator": "true"})]
    policy = replace(WELL.policy, exclusive_process=False)
    assert verdict("nvidia-validator", nodes=nodes, policy=policy) is CheckVerdict.NOT_APPLICABLE


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


# -- resource claims ---------------------------------------------------------------------------------------------------

OF_CLAIMS = ("claims-unsupported", "slice-missing", "slice-stale", "device-class-missing", "requests-unserved")


@pytest.mark.parametrize("check", [*OF_CLAIMS, "claims-left"])
def test_a_cluster_whose_agents_serve_claims_is_well(check: str) -> None:
    assert verdict(check, **CLAIMS, policy=GIVES_CLAIMS) is CheckVerdict.WELL


@pytest.mark.parametrize("check", OF_CLAIMS)
def test_without_the_component_no_right_to_read_what_claims_take_is_missed(check: str) -> None:
    hidden = Unknown("you may not list them")
    assert verdict(check, version={"gitVersion": "v1.36.2"}, slices=hidden, device_classes=hidden) is (
        CheckVerdict.NOT_APPLICABLE
    )


def test_what_an_uninstalled_agent_offered_is_found_and_other_drivers_offers_are_not() -> None:
    of_today = {"version": {"gitVersion": "v1.36.2"}}
    assert verdict("slice-stale", **of_today, slices=[resource_slice()]) is CheckVerdict.FOUND
    assert verdict("slice-stale", **of_today, slices=[resource_slice(driver="gpu.nvidia.com")]) is CheckVerdict.WELL


def test_while_an_agent_is_replaced_its_offer_is_not_called_stale() -> None:
    leaves = {**CLAIM_AGENT, "metadata": CLAIM_AGENT["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    rolled = CLAIMS | {"own_pods": [leaves, *CLAIMS["own_pods"][1:]]}
    assert verdict("slice-stale", **rolled) is CheckVerdict.WELL


def test_where_requests_become_claims_the_class_that_these_name_must_be_there() -> None:
    own = replace(GIVES_CLAIMS, admission=replace(GIVES_CLAIMS.admission, device_classes=("ours", "mps.mpsd.io")))
    assert verdict("device-class-missing", **CLAIMS, policy=own) is CheckVerdict.FOUND
    kept = replace(own, admission=replace(own.admission, claims_for_requests=False))
    assert verdict("device-class-missing", **CLAIMS, policy=kept) is CheckVerdict.WELL


def test_the_rights_for_claims_are_missed_only_where_claims_are_served() -> None:
    missing = {"missing_rights": [one for one in RIGHTS if one.is_for_claims]}
    assert verdict("rights-missing", **missing) is CheckVerdict.WELL
    assert verdict("rights-missing", **CLAIMS, **missing) is CheckVerdict.FOUND


BY_LABEL = CLAIMS | {"policy": replace(WELL.policy, claim_nodes="labelled")}
FOR_CLAIMS = {"nodes": [machine(NODE, labels={"mpsd.io/claims": "true"})]}
REQUESTED = {"pod": "default/train-0", "uid": "1", "memoryMiB": 7168}


@pytest.mark.parametrize(
    ("labelled", "grants", "checks"),
    [
        (True, [CLAIMED], {"claims-left": "well", "slice-missing": "well"}),
        (True, [REQUESTED], {"claims-left": "found", "slice-missing": "well"}),
        (True, [], {"claims-left": "well", "slice-missing": "found"}),
        (False, [CLAIMED], {"claims-left": "found"}),
        (False, [REQUESTED], {"claims-left": "well"}),
    ],
)
def test_a_node_that_waits_to_serve_its_gpus_as_its_label_says_is_found(
    labelled: bool, grants: list[Any], checks: dict[str, str]
) -> None:
    offered = CLAIMS["slices"] if grants == [CLAIMED] else []
    facts = BY_LABEL | (FOR_CLAIMS if labelled else {}) | {"slices": offered, "mpsnodes": [report(grants=grants)]}
    for check, wanted in checks.items():
        assert verdict(check, **facts) == wanted, check


def test_pods_that_select_nodes_for_claims_need_one() -> None:
    gives = BY_LABEL | {"policy": replace(GIVES_CLAIMS, claim_nodes="labelled")}
    assert verdict("requests-unserved", **gives) is CheckVerdict.FOUND
    assert verdict("requests-unserved", **gives, **FOR_CLAIMS) is CheckVerdict.WELL


def test_a_silent_nodes_slice_is_not_missed() -> None:
    assert verdict("slice-missing", **(CLAIMS | {"slices": [], "mpsnodes": []})) is CheckVerdict.WELL
