"""A policy that loads is complete and free of contradictions."""

import copy
from typing import Any

import pytest

from mpsd.model.policy import DEFAULT_MODES, HostIPC, Placement, Response, RuleId, RuleMode
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.limits_files import read_policy
from tests.model.manifests import POLICY
from tests.model.worlds import POLICY_DATA


def changed(path: str, value: object) -> dict[str, Any]:
    """The tests' policy with another value at `path`, such as `requests.default_thread_percent`."""
    data: dict[str, Any] = copy.deepcopy(POLICY_DATA)
    *steps, last = path.split(".")
    inner = data
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return data


def refused(path: str, value: object) -> Problem:
    with pytest.raises(InvalidInput) as raised:
        read_policy(changed(path, value), "policy.yaml")
    (problem,) = raised.value.problems
    return problem


def test_the_shipped_policy_is_as_strict_as_ack_and_shares_nothing_twice() -> None:
    assert POLICY.admission.host_ipc is HostIPC.REQUIRE
    assert POLICY.placement is Placement.BINPACK
    assert POLICY.oversubscription.memory_percent == POLICY.oversubscription.thread_percent == 100
    assert POLICY.violations.memory_over_grant.action is Response.KILL
    assert POLICY.violations.without_grant.action is Response.KILL
    assert POLICY.exclusive_process


@pytest.mark.parametrize(
    ("path", "value", "where", "contradiction"),
    [
        (
            "resources.percent",
            "aliyun.com/gpu-mem",
            "resources",
            "memory, percent and count must be three different names",
        ),
        (
            "requests.default_thread_percent",
            4,
            "requests",
            "default_thread_percent 4 is below minimum_thread_percent 5",
        ),
        (
            "requests.minimum_thread_percent",
            7,
            "requests",
            "minimum_thread_percent 7 is not in steps of",
        ),
        ("graces.start_s", 1, "graces", "start_s 1 is below command_s 2"),
        ("restarts.longest_s", 0.5, "restarts", "longest_s 0.5 is below first_s 1"),
        ("domains", [[0, 1], [1, 2]], "domains", "GPU 1 is named more than once"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    path: str, value: object, where: str, contradiction: str
) -> None:
    problem = refused(path, value)
    assert (problem.rule, problem.where) == ("fields-contradict", where)
    assert problem.message.startswith(contradiction)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("placement", "random"),
        ("exclusive_process", "yes"),
        ("requests.clients_per_grant", 0),
        ("requests.default_thread_percent", 101),
        ("resources.memory", "a..b/gpu-mem"),
        ("resources.memory", "kubernetes.io/gpu-mem"),
        ("resources.percent", "node.kubernetes.io/gpu-core.percentage"),
        ("resources.memory_unit_mib", 0),
        ("admission.blocked_environment", ["A B"]),
        ("admission.blocked_environment", ["*"]),
        ("admission.rules.host-pid", "off"),
        ("admission.blocked_host_paths", ["/dev/"]),
        ("admission.blocked_host_paths", ["/dev/*/x"]),
        ("admission.blocked_capabilities", ["SYS_ADMN"]),
        ("admission.blocked_capabilities", ["SYS_ADMIN", "CAP_CAP_SYS_ADMIN"]),
        ("admission.blocked_capabilities", ["SYS_*"]),
        ("admission.other_gpus", ["*/gpu"]),
        ("admission.schedulers", [""]),
        ("admission.void_visible_devices", "void"),
        ("oversubscription.memory_percent", 0),
        ("violations.in_no_pod", "warn"),
        ("violations.memory_over_grant.tolerance_mib", -1),
        ("graces.drain_s", 0),
        ("graces.drain_s", float("inf")),
        ("graces.end_drain_s", 11),
        ("compute.policy", 6),
        ("compute.max_inst", 101),
        ("compute.cards", {"01": {"policy": 5, "max_inst": None}}),
        ("compute.cards", {"0": {"policy": 5}}),
        ("compute.cards", {"0": {"policy": 5, "max_inst": None, "cards": {}}}),
        ("domains", [[0]]),
        ("domains", [[0, -1]]),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_path(path: str, value: object) -> None:
    assert refused(path, value).where.startswith(path)


@pytest.mark.parametrize("policy", [0, 3])
def test_a_policy_that_divides_a_card_needs_the_number_of_its_parts(policy: int) -> None:
    unbounded = {"policy": policy, "max_inst": None}
    for path, value, where in (
        ("compute.policy", policy, "compute.max_inst"),
        ("compute.cards", {"2": unbounded}, "compute.cards.2.max_inst"),
    ):
        problem = refused(path, value)
        assert (problem.rule, problem.where, problem.value) == ("max-inst-unset", where, "null")
        assert problem.remedy == "write 1 to 100, or policy 1, 2, 4 or 5"


def test_a_card_that_is_not_named_has_what_holds_for_every_card() -> None:
    compute = read_policy(
        changed("compute.cards", {"2": {"policy": 3, "max_inst": 20}}), "policy.yaml"
    ).compute
    assert [compute.of(ordinal).policy for ordinal in range(4)] == [5, 5, 3, 5]
    assert compute.of(2).max_inst == 20


def test_a_rule_that_a_policy_does_not_name_has_its_shipped_mode() -> None:
    older = {"privileged": "warn", "host-root": "enforce"}
    rules = read_policy(changed("admission.rules", older), "policy.yaml").admission.rules
    assert rules == {
        **DEFAULT_MODES,
        RuleId.PRIVILEGED: RuleMode.WARN,
        RuleId.HOST_ROOT: RuleMode.ENFORCE,
    }
    assert rules.by_default == tuple(rule for rule in RuleId if rule.value not in older)


def test_a_policy_without_allowed_host_paths_allows_all_not_blocked() -> None:
    assert "allowed_host_paths" not in str(POLICY_DATA["admission"])
    assert read_policy(POLICY_DATA, "policy.yaml").admission.allowed_host_paths is None
    assert refused("admission.allowed_host_paths", ["data"]).where.startswith(
        "admission.allowed_host_paths"
    )


def test_the_shipped_policy_names_every_rule_with_its_default() -> None:
    assert POLICY.admission.rules == DEFAULT_MODES
    assert POLICY.admission.rules.by_default == ()


def test_a_policy_that_is_older_than_priorities_gives_none_and_reports_what_lifts_threads() -> None:
    older = read_policy(POLICY_DATA, "policy.yaml")
    assert (older.gpu_priority.by, older.gpu_priority.below_normal_under) == ("none", 0)
    assert older.gpu_priority == POLICY.gpu_priority
    assert older.violations.threads_lifted == POLICY.violations.threads_lifted
    assert older.violations.priority_raised.action is Response.WARN


def test_a_policy_that_does_not_say_so_replaces_no_request_by_a_claim() -> None:
    admission = dict(POLICY_DATA["admission"])
    admission.pop("claims_for_requests", None)
    silent = read_policy({**POLICY_DATA, "admission": admission}, "policy.yaml")
    assert not silent.admission.claims_for_requests


def test_a_policy_that_is_older_than_memory_caps_is_as_shipped() -> None:
    assert read_policy(POLICY_DATA, "policy.yaml").memory_cap == POLICY.memory_cap == "auto"
    assert refused("memory_cap", "dmem").where == "memory_cap"


@pytest.mark.parametrize(
    ("field", "value"),
    [("by", "class"), ("below_normal_under", 2**31), ("under", 1)],
)
def test_a_priority_that_no_pod_can_have_is_refused_by_its_path(field: str, value: object) -> None:
    assert refused("gpu_priority", {field: value}).where == f"gpu_priority.{field}"
