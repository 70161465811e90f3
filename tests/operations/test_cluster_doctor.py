"""What `kubectl mps doctor` finds in a cluster, and what it does not call a fault."""

from dataclasses import replace
from typing import Any

import pytest

from mpsd.operations.doctor.rules.checks import CheckOutcome, CheckVerdict, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts
from mpsd.platform.rules.certificates import ANNOTATION
from tests.cli.doctored_cluster import NODE
from tests.cli.gpu_cluster import machine
from tests.operations.broken_clusters import (
    BREAKS,
    BY_CDI,
    CDI,
    CLAIM_AGENT,
    CLAIMS,
    INJECTED,
    MODERN,
    TAINT,
    WELL,
    configuration,
    domains,
    not_ready,
    report,
    resource_slice,
    running,
    workload,
)


def outcome(check: str, **changes: Any) -> CheckOutcome:
    facts: ClusterFacts = replace(WELL, **changes)
    (found,) = (one for one in diagnose(facts, CLUSTER_CHECKS).outcomes if one.check.id == check)
    return found


def verdict(check: str, **changes: Any) -> CheckVerdict:
    return outcome(check, **changes).verdict


def test_a_cluster_in_which_nothing_is_wrong_is_well() -> None:
    outcomes = diagnose(WELL, CLUSTER_CHECKS).outcomes
    assert [
        one
        for one in outcomes
        if one.verdict not in (CheckVerdict.WELL, CheckVerdict.NOT_APPLICABLE)
    ] == []


def test_every_check_is_broken_here() -> None:
    assert BREAKS.keys() == {check.id for check in CLUSTER_CHECKS}
    assert len({check.id for check in CLUSTER_CHECKS}) == len(CLUSTER_CHECKS)


@pytest.mark.parametrize(
    ("check", "at"), [(check, at) for check, some in BREAKS.items() for at in range(len(some))]
)
def test_a_check_finds_what_is_broken_and_says_what_to_do(check: str, at: int) -> None:
    found = outcome(check, **BREAKS[check][at])
    assert found.verdict is CheckVerdict.FOUND
    for one in found.findings:
        assert one.what
        assert one.remedy
        assert "apply -k manifests" not in one.remedy, (
            "a folder that would replace the reader's own"
        )


def test_conditions_are_printed_as_nodes_report_them() -> None:
    told = not_ready("DomainWedged", "1 of 2 domains serve; gpu1 is wedged: no answer")
    (found,) = outcome("node-not-ready", mpsnodes=[report(conditions=told)]).findings
    said = (
        "gpu-a1: MPSReady is False, DomainWedged: 1 of 2 domains serve; gpu1 is wedged: no answer"
    )
    assert found.what == said
    cordoned = not_ready("Cordoned", "every GPU is cordoned")
    assert verdict("node-not-ready", mpsnodes=[report(conditions=cordoned)]) is CheckVerdict.WELL


@pytest.mark.parametrize("told", [None, "2026-01-02T00:00:00Z/2026-01-01T00:00:00Z"])
def test_a_webhook_that_does_not_report_its_certificate_is_not_known_to_be_well(
    told: str | None,
) -> None:
    silent = configuration("validate.mpsd.io")
    silent["metadata"]["annotations"] = {} if told is None else {ANNOTATION: told}
    assert verdict("webhook-certificate", validating=[silent]) is CheckVerdict.UNKNOWN
    ended = [configuration("mutate.mpsd.io", left_days=-1)]
    assert verdict("webhook-certificate", validating=[silent], mutating=ended) is CheckVerdict.FOUND
    assert (
        verdict("webhook-certificate", validating=[INJECTED], mutating=[silent])
        is CheckVerdict.WELL
    )


def test_a_kubernetes_without_a_version_is_not_called_old() -> None:
    unknown = CLAIMS | {"version": {"gitVersion": "v0.0.0-master+$Format:%H$"}}
    assert verdict("claims-unsupported", **unknown) is CheckVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("runtime", "kubelet", "verdict_of_it"),
    [
        ("containerd://1.6.38", "v1.30.0", "found"),
        ("containerd://1.7.0", "v1.30.0", "well"),
        ("containerd://2.1.9", "v1.27.9", "found"),
        ("cri-o://1.22.0", "v1.30.0", "found"),
        ("docker://27.0.1", "v1.30.0", "well"),  # nothing is known of cri-dockerd
        ("", "", "well"),
    ],
)
def test_a_runtime_or_a_kubelet_without_cdi_is_found(
    runtime: str, kubelet: str, verdict_of_it: str
) -> None:
    assert verdict("no-cdi", **BY_CDI, **running(runtime, kubelet)) == verdict_of_it


@pytest.mark.parametrize(
    ("value", "verdict_of_it"), [("mpsd.io/not-ready", "well"), ("example.com/starting", "found")]
)
def test_a_startup_taint_that_no_agent_removes_is_found(value: str, verdict_of_it: str) -> None:
    env = [{"name": "MPSD_STARTUP_TAINT", "value": value}]
    agent = workload("mpsd-agent", spec={"template": {"spec": {"containers": [{"env": env}]}}})
    nodes = [machine(NODE, taints=[TAINT])]
    there = [workload("mpsd-control"), agent]
    assert verdict("startup-taint", daemon_sets=there, nodes=nodes) == verdict_of_it


VALIDATOR = "nvidia.com/gpu.deploy.operator-validator"
KEPT_AWAY = {VALIDATOR: "false", "nvidia.com/mig.config": "all-disabled"}
NO_PLUGIN = {"nvidia.com/mps.capable": "true", "nvidia.com/gpu.deploy.device-plugin": "false"}
DIVIDED = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "success"}


@pytest.mark.parametrize("labels", [KEPT_AWAY, NO_PLUGIN, DIVIDED])
def test_what_nvidias_operator_leaves_alone_or_has_done_is_no_fault(labels: dict[str, str]) -> None:
    assert verdict("nvidia-operator", nodes=[machine(NODE, labels=labels)]) is CheckVerdict.WELL


@pytest.mark.parametrize("name", [VALIDATOR, "nvidia.com/mig.config"])
def test_what_nvidias_operator_starts_on_nodes_of_others_is_no_fault(name: str) -> None:
    others = [machine(NODE), {"metadata": {"name": "b1", "labels": {name: "true"}}}]
    assert verdict("nvidia-operator", nodes=others) is CheckVerdict.WELL


def test_where_programs_outside_mps_may_use_gpus_the_validator_may_run() -> None:
    nodes = [machine(NODE, labels={VALIDATOR: "true"})]
    policy = replace(WELL.policy, exclusive_process=False)
    assert verdict("nvidia-operator", nodes=nodes, policy=policy) is CheckVerdict.WELL


def test_an_old_kubelet_passes_annotations_on_and_without_cdi_all_may_be_old() -> None:
    container = {"env": [CDI | {"value": "cdi-annotations"}]}
    agent = workload("mpsd-agent", spec={"template": {"spec": {"containers": [container]}}})
    old = running("containerd://1.7.2", "v1.20.2")
    assert verdict("no-cdi", daemon_sets=[agent], **old) is CheckVerdict.WELL
    assert verdict("no-cdi", **running("containerd://1.6.38")) is CheckVerdict.NOT_APPLICABLE


def test_a_policy_of_modern_that_is_there_is_well() -> None:
    there = [{"metadata": {"name": "mpsd-agent-writes"}}]
    assert verdict("policy-missing", **MODERN, policies=there) is CheckVerdict.WELL
    assert (
        verdict("policy-missing", **MODERN, policies=Unknown("no such kind"))
        is CheckVerdict.UNKNOWN
    )
    assert verdict("policy-missing") is CheckVerdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("agent", "control", "verdict_of_it"),
    [
        ("0.1.0", "0.2.0", "found"),
        ("0.9.0", "0.10.0", "found"),  # numbers count as numbers
        ("0.2.0", "0.1.0", "well"),  # normal after an upgrade
        ("1.0.0", "1.0.0rc1", "well"),
        ("0.1.0", "of today", "well"),
        ("", "0.1.0", "unknown"),
    ],
)
def test_control_ahead_of_the_agent_is_found_and_nothing_else(
    agent: str, control: str, verdict_of_it: str
) -> None:
    node = report(version=agent, domains=domains(version=control))
    if agent:
        node["status"]["domains"][0]["version"] = agent
    assert verdict("version-skew", mpsnodes=[node]) == verdict_of_it


# -- resource claims


@pytest.mark.parametrize("check", ["claims-unsupported", "slice-stale"])
def test_without_agents_that_serve_claims_no_right_is_missed(check: str) -> None:
    assert verdict(check, **CLAIMS) is CheckVerdict.WELL
    hidden = {"version": {"gitVersion": "v1.36.2"}, "slices": Unknown("you may not list them")}
    assert verdict(check, **hidden) is CheckVerdict.NOT_APPLICABLE


def test_what_an_uninstalled_agent_offered_is_found_and_other_drivers_offers_are_not() -> None:
    for driver, said in (("gpu.mpsd.io", "found"), ("gpu.nvidia.com", "well")):
        changes = CLAIMS | {"own_pods": [], "slices": [resource_slice(driver=driver)]}
        assert verdict("slice-stale", **changes) == said


def test_while_an_agent_is_replaced_its_offer_is_not_called_stale() -> None:
    leaves = {
        **CLAIM_AGENT,
        "metadata": CLAIM_AGENT["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    rolled = CLAIMS | {"own_pods": [leaves, *CLAIMS["own_pods"][1:]]}
    assert verdict("slice-stale", **rolled) is CheckVerdict.WELL
