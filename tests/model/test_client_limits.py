"""What mpsd writes into a client's environment is what libcuda was seen to obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.client_limits import DENY_MIB, ClientLimit, environment, problems_with
from mpsd.model.cuda_limit_parser import (
    MEMORY_LIMIT,
    PARTITIONING,
    PIPE_DIRECTORY,
    THREAD_PERCENT,
    Limited,
    memory_limit_as_read,
    thread_percent_as_read,
)
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
    return [found.rule for found in problems_with(limit, "gpu-mem", MEASURED, H200.memory_mib, H200.sms)]


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
    assert memory_limit_as_read(written[MEMORY_LIMIT], uuids) == Limited({0: limit.memory_mib * 1024**2})
    assert thread_percent_as_read(written[THREAD_PERCENT]) == limit.thread_percent


@pytest.mark.parametrize(
    ("memory_mib", "thread_percent", "rules"),
    [
        (7168, 30, []),
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
