"""When a GPU is sick, and when it is well again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.gpu_health import GpuCondition, GpuHealth, HealthCause, XidKind
from mpsd.model.policy import HealthPolicy
from mpsd.mps.rules import health
from mpsd.mps.rules.health import HealthRules
from tests.model.manifests import FACTS

RULES = HealthRules(FACTS, HealthPolicy())
NEW = GpuCondition("GPU-0")
WELL = GpuHealth(uncorrected=0, remapped_rows=0, remap_pending=0, remap_failed=0, brakes=())
HOT = replace(WELL, brakes=("thermal slowdown by its hardware",))


def after(*looks: GpuHealth, rules: HealthRules = RULES, each_s: float = 2.0) -> GpuCondition:
    now = NEW
    for number, seen in enumerate(looks):
        now = health.looked(now, seen, rules, number * each_s)
    return now


@pytest.mark.parametrize(
    ("seen", "cause", "persists"),
    [
        (replace(WELL, xids=(79,)), HealthCause.XID, False),
        (replace(WELL, xids=(31, 95)), HealthCause.XID, False),
        (replace(WELL, xids=(4242,)), HealthCause.XID, False),
        (replace(WELL, uncorrected=1), HealthCause.ECC, False),
        (replace(WELL, remap_pending=1), HealthCause.ROWS, True),
        (replace(WELL, remap_failed=1), HealthCause.ROWS, True),
        (replace(WELL, pages_pending=1), HealthCause.PAGES, True),
        (replace(WELL, recovery="a reset of the GPU"), HealthCause.RECOVERY, True),
    ],
)
def test_each_sign_of_bad_hardware_makes_a_gpu_sick(
    seen: GpuHealth, cause: HealthCause, persists: bool
) -> None:
    now = after(WELL, seen)
    assert (now.cause, now.persists) == (cause, persists)
    assert now.reason


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 63, 92, 154])
def test_what_a_program_did_and_what_other_figures_tell_makes_no_gpu_sick(xid: int) -> None:
    now = after(WELL, replace(WELL, xids=(xid, xid)))
    assert now.cause is None
    assert now.xids == {str(xid): 2}


def test_the_policy_changes_whose_an_xid_is() -> None:
    policy = HealthPolicy(xids={"79": XidKind.PROGRAM, "31": XidKind.HARDWARE})
    rules = HealthRules(FACTS, policy)
    assert after(WELL, replace(WELL, xids=(79,)), rules=rules).cause is None
    assert after(WELL, replace(WELL, xids=(31,)), rules=rules).cause is HealthCause.XID


def test_what_nvml_does_not_support_makes_no_gpu_sick() -> None:
    assert after(GpuHealth(), GpuHealth()).cause is None


def test_errors_from_before_mpsd_are_those_that_its_canary_passed_with() -> None:
    old = replace(WELL, uncorrected=7)
    assert after(old, old).cause is None
    assert after(old, old, replace(WELL, uncorrected=8)).cause is HealthCause.ECC


def test_errors_are_counted_from_zero_after_a_reset() -> None:
    old = replace(WELL, uncorrected=7)
    assert after(old, WELL, WELL, replace(WELL, uncorrected=1)).cause is HealthCause.ECC


@pytest.mark.parametrize(("last_s", "sick"), [(59, False), (60, True), (61, True)])
def test_a_brake_counts_once_it_has_lasted(last_s: float, sick: bool) -> None:
    now = health.looked(after(WELL, HOT, each_s=0.0), HOT, RULES, last_s)
    assert (now.cause is HealthCause.BRAKE) == sick


def test_a_brake_with_a_pause_is_counted_anew() -> None:
    assert after(HOT, WELL, HOT, HOT, each_s=40.0).cause is None
    assert after(HOT, HOT, HOT, each_s=40.0).cause is HealthCause.BRAKE


@pytest.mark.parametrize(("failed", "sick"), [(2, False), (3, True), (4, True)])
def test_contexts_that_fail_in_a_row_make_a_gpu_sick(failed: int, sick: bool) -> None:
    now = NEW
    for _ in range(failed):
        now = health.context_failed(now, "719", RULES)
    assert (now.cause is HealthCause.CONTEXTS) == sick


def test_a_context_between_them_that_is_made_starts_the_count_again() -> None:
    now = NEW
    for _ in range(4):
        now = health.context_failed(health.context_failed(now, "719", RULES), "719", RULES)
        now = health.context_made(now)
    assert now.cause is None


def test_a_canary_makes_it_well_but_not_while_the_cause_persists() -> None:
    assert health.passed(after(WELL, replace(WELL, xids=(79,)))).cause is None
    pending = after(WELL, replace(WELL, remap_pending=1))
    assert health.passed(pending).cause is HealthCause.ROWS
    over = health.looked(pending, WELL, RULES, 9.0)
    assert over.cause is HealthCause.ROWS, "only the canary makes it well"
    assert health.passed(over).cause is None


def test_errors_that_a_canary_has_passed_with_do_not_come_again() -> None:
    one = replace(WELL, uncorrected=1)
    well = health.passed(after(WELL, one))
    assert health.looked(well, one, RULES, 9.0).cause is None


SIGNS = st.builds(
    GpuHealth,
    xids=st.lists(st.sampled_from([31, 63, 79, 999]), max_size=2).map(tuple),
    uncorrected=st.none() | st.integers(0, 3),
    remap_pending=st.none() | st.integers(0, 1),
    brakes=st.none() | st.sampled_from([(), ("heat",)]),
)
STEPS = st.lists(SIGNS | st.sampled_from(["passed", "failed", "made"]), max_size=30)


@given(STEPS)
def test_sick_never_without_a_cause_and_well_only_by_a_canary(steps: list[GpuHealth | str]) -> None:
    now = NEW
    for number, step in enumerate(steps):
        before = now
        match step:
            case "passed":
                now = health.passed(now)
                assert now.cause is None or now.persists
            case "failed":
                now = health.context_failed(now, "719", RULES)
            case "made":
                now = health.context_made(now)
            case GpuHealth():
                now = health.looked(now, step, RULES, number * 30.0)
                assert now.persists <= (now.cause is not None)
        if step != "passed" and before.cause is not None:
            assert now.cause is not None
        assert bool(now.reason) == (now.cause is not None)
