"""What the policy says to a container without Kubernetes that asks for a GPU."""

from dataclasses import replace

import pytest

from mpsd.core.container_messages import ContainerAsks
from mpsd.core.container_rules import container_findings
from mpsd.core.policy import HostIPC, Mode, Policy, RuleId
from tests.core.manifests import POLICY

ASKS = ContainerAsks("/run/runc", "c1", "", {"ALIYUN_COM_GPU_MEM_CONTAINER": "6"})
DOCKERS_OWN = ("CAP_CHOWN", "CAP_MKNOD", "CAP_NET_RAW", "CAP_KILL")
OLD, NEW = "535.161.08", "580.159.04"


def with_mode(rule: RuleId, mode: Mode, policy: Policy = POLICY) -> Policy:
    return replace(policy, admission=replace(policy.admission, rules={**policy.admission.rules, rule: mode}))


def test_a_container_as_docker_makes_it_is_let_in() -> None:
    found = container_findings(replace(ASKS, capabilities=DOCKERS_OWN), POLICY, NEW)
    assert found.problems == found.messages == ()


@pytest.mark.parametrize(
    ("asks", "rule"),
    [
        pytest.param(replace(ASKS, capabilities=("CAP_CHOWN", "CAP_SYS_ADMIN")), RuleId.CAPABILITIES, id="privileged"),
        pytest.param(replace(ASKS, host_root=True), RuleId.HOST_ROOT, id="root of the machine"),
    ],
)
def test_what_the_policy_enforces_refuses_what_it_warns_of_is_said_and_the_rest_is_neither(
    asks: ContainerAsks, rule: RuleId
) -> None:
    refused = container_findings(asks, with_mode(rule, Mode.ENFORCE), NEW)
    assert [problem.rule for problem in refused.problems] == [rule]
    assert refused.problems[0].remedy
    assert refused.messages == ()
    warned = container_findings(asks, with_mode(rule, Mode.WARN), NEW)
    assert warned.problems == ()
    assert warned.messages == (str(refused.problems[0]),)
    noted = container_findings(asks, with_mode(rule, Mode.AUDIT), NEW)
    assert noted.problems == noted.messages == ()


@pytest.mark.parametrize(("driver", "is_refused"), [(OLD, True), (NEW, False), ("unknown", True)])
def test_only_drivers_before_580_need_the_machine_s_ipc_namespace(driver: str, is_refused: bool) -> None:
    problems = container_findings(ASKS, POLICY, driver).problems
    assert [problem.rule for problem in problems] == ([RuleId.HOST_IPC_MISSING] if is_refused else [])
    assert container_findings(replace(ASKS, host_ipc=True), POLICY, driver).problems == ()
    off = replace(POLICY, admission=replace(POLICY.admission, host_ipc=HostIPC.OFF))
    assert container_findings(ASKS, off, driver).problems == ()


@pytest.mark.parametrize(
    ("asks", "rule"),
    [
        (replace(ASKS, root="run/runc"), "container-root"),
        (replace(ASKS, id="../c1"), "container-id"),
        (replace(ASKS, id=".."), "container-id"),
        (replace(ASKS, id=""), "container-id"),
        (replace(ASKS, oom_script="clean.sh --all"), "oom-script-path"),
    ],
)
def test_what_no_runtime_would_ask_is_refused_whatever_the_policy_says(asks: ContainerAsks, rule: str) -> None:
    assert [problem.rule for problem in container_findings(asks, POLICY, NEW).problems] == [rule]
