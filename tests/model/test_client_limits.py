"""What mpsd writes into a client's environment is what libcuda was seen to obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.client_limits import (
    BELOW_NORMAL,
    DENY_MIB,
    NORMAL,
    ClientLimit,
    client_priority,
    environment,
    priority_problem,
    priority_reason,
    problems_with,
)
from mpsd.model.cuda_limit_parser import (
    CLIENT_PRIORITY,
    MEMORY_LIMIT,
    PARTITIONING,
    PIPE_DIRECTORY,
    THREAD_PERCENT,
    Limited,
    client_priority_as_read,
    memory_limit_as_read,
    thread_percent_as_read,
)
from mpsd.model.pod import PodPriority
from mpsd.model.policy import GpuPriority
from tests.model.manifests import FACTS

H200 = FACTS.card("H200")
MEASURED = FACTS.capability("9.0")
assert H200 is not None
assert MEASURED is not None

LIMITS = st.builds(ClientLimit, st.integers(1, 10**6), st.integers(1, 100))


def problems(memory_mib: int, thread_percent: int) -> list[str]:
    assert H200 is not None
    assert MEASURED is not None
    limit = ClientLimit(memory_mib, thread_percent)
    return [
        found.rule for found in problems_with(limit, "gpu-mem", MEASURED, H200.memory_mib, H200.sms)
    ]


def test_the_environment_holds_a_client_to_its_grant() -> None:
    assert environment(ClientLimit(memory_mib=7168, thread_percent=30), "/run/mpsd/client") == {
        PIPE_DIRECTORY: "/run/mpsd/client",
        MEMORY_LIMIT: "0=7168M",
        THREAD_PERCENT: "30",
        PARTITIONING: "0",
    }


@given(LIMITS, st.integers(1, 4))
def test_libcuda_reads_what_mpsd_writes_as_it_was_meant(limit: ClientLimit, visible: int) -> None:
    written = environment(limit, "/run/mpsd/client")
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(visible)]
    assert memory_limit_as_read(written[MEMORY_LIMIT], uuids) == Limited(
        {0: limit.memory_mib * 1024**2}
    )
    assert thread_percent_as_read(written[THREAD_PERCENT]) == limit.thread_percent


@pytest.mark.parametrize(
    ("memory_mib", "thread_percent", "rules"),
    [
        (7168, 30, []),
        (7168, 1, []),
        (515, 100, []),
        (514, 100, ["memory-below-context"]),
        (300, 100, ["memory-below-context"]),
        (300, 30, []),
        (143_155, 100, []),
        (143_156, 100, ["memory-over-card"]),
        (7168, 0, ["percent-range"]),
        (7168, 101, ["percent-range"]),
        (1, 500, ["percent-range", "memory-below-context"]),
    ],
)
def test_limits_that_no_client_could_start_under_are_refused(
    memory_mib: int, thread_percent: int, rules: list[str]
) -> None:
    assert problems(memory_mib, thread_percent) == rules


def test_no_context_fits_under_the_limit_that_denies() -> None:
    assert all(row.context_cost_mib(row.sm_minimum) > DENY_MIB for row in FACTS.capabilities)


# -- priorities

BY_CLASS, BY_ANNOTATION = GpuPriority("priority-class", -5), GpuPriority("annotation", -5)


@pytest.mark.parametrize("value", [None, -(2**31), -6, 0, 2**31 - 1])
@pytest.mark.parametrize("written", [None, "normal", "below-normal", "Below-Normal", ""])
def test_a_pod_s_priority_is_what_the_policy_goes_by_and_nothing_else(
    value: int | None, written: str | None
) -> None:
    pod = PodPriority(value, "batch", written)
    assert client_priority(pod, GpuPriority()) is None
    assert client_priority(pod, BY_CLASS) == (BELOW_NORMAL if (value or 0) < -5 else NORMAL)
    assert client_priority(pod, BY_ANNOTATION) == (
        BELOW_NORMAL if written == "below-normal" else NORMAL
    )


def test_a_pod_that_is_not_known_is_normal() -> None:
    assert client_priority(None, GpuPriority("priority-class", 1)) == NORMAL
    assert client_priority(PodPriority(), GpuPriority("priority-class", 1)) == BELOW_NORMAL
    assert client_priority(None, BY_ANNOTATION) == NORMAL


def test_the_reason_names_what_it_goes_by() -> None:
    assert priority_reason(PodPriority(-10), GpuPriority()) == ""
    assert priority_reason(PodPriority(-10), BY_CLASS).startswith("its priority -10 is under -5")
    assert priority_reason(PodPriority(), BY_CLASS).startswith("its priority 0 is not under -5")
    assert (
        priority_reason(PodPriority(), BY_ANNOTATION)
        == "its annotation mpsd.io/gpu-priority is not set"
    )
    assert priority_reason(PodPriority(None, "", "low"), BY_ANNOTATION).endswith(
        'gpu-priority is "low"'
    )


@pytest.mark.parametrize("written", ["low", "", "NORMAL", 1, True, [], {"a": 1}])
def test_a_word_that_is_no_priority_is_refused(written: object) -> None:
    assert [problem.rule for problem in priority_problem(written, "where")] == ["priority-unknown"]


@pytest.mark.parametrize("priority", [NORMAL, BELOW_NORMAL])
def test_a_priority_is_written_in_the_form_that_libcuda_reads(priority: int) -> None:
    limit = ClientLimit(7168, 30)
    written = environment(limit, "/run/mpsd/client", priority)
    assert written == environment(limit, "/run/mpsd/client") | {CLIENT_PRIORITY: str(priority)}
    assert client_priority_as_read(written[CLIENT_PRIORITY]) == priority
