"""What a container without Kubernetes may not be that asks for a GPU."""

from dataclasses import replace

import pytest

from mpsd.containers.rules.admission import container_findings
from mpsd.grants.rules.messages import HostContainerRequest
from mpsd.model.policy import Policy, RuleId, RuleMode
from tests.model.gpu_worlds import policy

NEW, OLD = "580.159.04", "575.57.08"
PLAIN = HostContainerRequest("/run/runc", "c1", "", {})
# What `docker run` without any flag has in the bounding set.
_NAMES = """
    CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE
    SYS_CHROOT KILL AUDIT_WRITE
"""
DOCKERS = tuple(f"CAP_{name}" for name in _NAMES.split())


def refused(
    asks: HostContainerRequest, *, driver: str = NEW, by: Policy | None = None
) -> list[str]:
    """The rules for which it is refused."""
    return [problem.rule for problem in container_findings(asks, by or policy(), driver).problems]


def with_admission(**changes: object) -> Policy:
    made = policy()
    return replace(made, admission=replace(made.admission, **changes))  # type: ignore[arg-type]


def with_mode(rule: RuleId, mode: RuleMode) -> Policy:
    return with_admission(rules={**policy().admission.rules, rule: mode})


def test_what_docker_gives_every_container_is_allowed() -> None:
    by = with_admission(blocked_capabilities=("SYS_ADMIN", "MKNOD"))
    assert refused(replace(PLAIN, capabilities=DOCKERS), by=by) == []
    assert refused(replace(PLAIN, capabilities=(*DOCKERS, "CAP_SYS_ADMIN")), by=by) == [
        RuleId.CAPABILITIES
    ]


def test_all_that_is_too_much_is_named_at_once() -> None:
    asks = replace(
        PLAIN,
        root="run/runc",
        id="../x",
        oom_script="oom.sh",
        capabilities=("cap_sys_admin", "BPF"),
    )
    by = with_admission(blocked_capabilities=("SYS_ADMIN", "MKNOD", "BPF"))
    assert refused(asks, by=by) == [
        "container-root",
        "container-id",
        "oom-script-path",
        RuleId.CAPABILITIES,
    ]
    (problem,) = container_findings(
        replace(asks, root="/r", id="c", oom_script=""), by, NEW
    ).problems
    assert problem.value == '"SYS_ADMIN, BPF"'


@pytest.mark.parametrize("mode", [RuleMode.WARN, RuleMode.AUDIT])
def test_the_policy_says_how_hard_a_rule_is(mode: RuleMode) -> None:
    asks = replace(PLAIN, capabilities=("CAP_SYS_ADMIN",))
    found = container_findings(asks, with_mode(RuleId.CAPABILITIES, mode), NEW)
    assert found.problems == ()
    assert len(found.messages) == (1 if mode is RuleMode.WARN else 0)


@pytest.mark.parametrize(
    ("driver", "is_needed"), [(NEW, False), ("610.1", False), (OLD, True), ("", True)]
)
def test_the_hosts_ipc_is_needed_by_older_drivers_only(driver: str, *, is_needed: bool) -> None:
    assert refused(PLAIN, driver=driver) == ([RuleId.HOST_IPC_MISSING] if is_needed else [])
    assert refused(replace(PLAIN, host_ipc=True), driver=driver) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "é", "x" * 256])
def test_an_id_that_leads_out_of_its_root_is_refused(name: str) -> None:
    assert refused(replace(PLAIN, id=name)) == ["container-id"]
