"""What is queued on a simulated card: how far it is, and whom an end in it takes along."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.simulator.kernel_queue import AHEAD_S, KernelQueue, KernelsAhead


@pytest.mark.parametrize(
    ("kernel_us", "left_us", "strikes"),
    [
        (5_000, 500_000, False),
        (5_001, 500_000, True),
        (10_000, 5_000, False),
        (10_000, 5_001, True),
        (10_000, 0, False),
        (10_000, -1_000_000, False),
    ],
)
def test_a_death_strikes_in_long_kernels_alone(kernel_us: int, left_us: int, strikes: bool) -> None:
    now_ns = 3_000_000_000
    queue = KernelQueue(now_ns + 1000 * left_us, kernel_us)
    assert queue.death_strikes(now_ns) is strikes


@pytest.mark.parametrize(
    ("gemm", "left_ns", "strikes"), [(True, 1, True), (True, 0, False), (False, 10**9, False)]
)
def test_a_termination_strikes_in_products_alone(gemm: bool, left_ns: int, strikes: bool) -> None:
    queue = KernelQueue(10**9 + left_ns, 200, gemm)
    assert queue.termination_strikes(10**9) is strikes


@pytest.mark.parametrize(("size", "ms"), [(4096, 0.19), (16384, 12.0), (32768, 96.0)])
def test_a_product_lasts_about_as_long_as_on_an_h200(size: int, ms: float) -> None:
    assert KernelsAhead.of_gemm(size).kernel_s == pytest.approx(ms / 1000, rel=0.02)


@given(
    kernel_ms=st.floats(0.1, 2000.0),
    steps_s=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=30),
)
def test_whoever_fills_its_queue_has_several_kernels_ahead_and_none_ends_twice(
    kernel_ms: float, steps_s: list[float]
) -> None:
    kernels, now_s, completed = KernelsAhead(kernel_ms / 1000), 100.0, 0
    for step_s in steps_s:
        kernels.fill(now_s)
        ahead_s = kernels.ends_s - now_s
        assert ahead_s >= 0.999 * kernels.kernel_s  # behind the one that runs
        assert ahead_s <= max(AHEAD_S, 2 * kernels.kernel_s) + kernels.kernel_s
        now_s += step_s
        assert kernels.completed(now_s) >= completed
        completed = kernels.completed(now_s)
        assert completed <= kernels.launched
