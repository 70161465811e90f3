"""The verdicts on a benchmark: from the records alone, and nothing is said of what was not
measured."""

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.bench.rules.claims import (
    BenchClaim,
    Bound,
    ClaimVerdict,
    Limit,
    claims,
    figure,
    median_interval,
)
from mpsd.bench.rules.rows import (
    VERSION,
    BatchWork,
    BenchGroup,
    Benchmark,
    CostRow,
    MachineRow,
    PriorityRow,
    Reaction,
    ReactionRow,
    ShareRow,
    SharingMode,
    SharingRow,
    WorkKind,
)
from tests.bench.rows import median_row

MACHINE = MachineRow(
    "2026-11-22T05:00:00Z",
    "0.1.0",
    "NVIDIA H200",
    143155,
    132,
    "580.159.04",
    "13.0",
    16,
    "3.12.3",
    simulated=False,
)
EMPTY = Benchmark(VERSION, MACHINE, 2.0)
HOLDS, BROKEN, NOT_MEASURED = ClaimVerdict.HOLDS, ClaimVerdict.BROKEN, ClaimVerdict.NOT_MEASURED
CANNOT_TELL = ClaimVerdict.CANNOT_TELL


def of(group: BenchGroup, benchmark: Benchmark, words: str = "") -> list[BenchClaim]:
    return [claim for claim in claims(benchmark) if claim.group is group and words in claim.what]


def one(group: BenchGroup, benchmark: Benchmark, words: str = "") -> BenchClaim:
    (claim,) = of(group, benchmark, words)
    return claim


def share(
    percent: int,
    sms: int,
    rate: float,
    *beside: int,
    gib: int = 2,
    work: WorkKind = WorkKind.ARITHMETIC,
) -> ShareRow:
    return ShareRow(percent, gib, sms, beside, work, rate)


def of_shares(rows: Iterable[ShareRow], words: str) -> BenchClaim:
    return one(BenchGroup.SHARES, replace(EMPTY, shares=tuple(rows)), words)


def half(
    first: float,
    second: float,
    sms: tuple[int, int] = (26, 52),
    work: WorkKind = WorkKind.ARITHMETIC,
) -> list[ShareRow]:
    return [share(20, sms[0], first, 40, work=work), share(40, sms[1], second, 20, work=work)]


def small(mode: SharingMode, rate: float, programs: int = 8) -> SharingRow:
    return SharingRow(mode, WorkKind.SMALL, programs, rate, 1.0, 2.0, 3.0)


def pair(mps: float, mpsd: float, p99: float = 1.0) -> CostRow:
    return CostRow(WorkKind.SMALL, 4, 0, mps, mpsd, 1.0, p99)


def test_of_a_benchmark_that_is_empty_nothing_is_known() -> None:
    found = claims(EMPTY)
    assert {claim.verdict for claim in found} == {NOT_MEASURED}
    assert {claim.group for claim in found} == set(BenchGroup)
    assert {claim.note for claim in found} == {"it was not run"}


def test_a_group_that_was_skipped_says_why() -> None:
    skipped = replace(EMPTY, skipped=((BenchGroup.COST, "the card is too small"),))
    assert {claim.note for claim in of(BenchGroup.COST, skipped)} == {"the card is too small"}


@pytest.mark.parametrize(
    ("rows", "verdict", "value"),
    [
        ([share(100, 132, 1000), share(30, 38, 290)], HOLDS, 0.21),
        ([share(100, 132, 1000), share(30, 38, 290), share(50, 66, 484)], BROKEN, 1.6),
        ([share(100, 132, 1000)], NOT_MEASURED, None),
        ([share(30, 38, 290)], NOT_MEASURED, None),
        ([share(100, 132, 0), share(30, 38, 290)], NOT_MEASURED, None),
        ([share(100, 0, 1000), share(30, 38, 290)], NOT_MEASURED, None),
    ],
)
def test_a_share_of_the_sms_is_that_share_of_the_work(
    rows: list[ShareRow], verdict: ClaimVerdict, value: float | None
) -> None:
    claim = of_shares(rows, "alone")
    assert claim.verdict is verdict
    assert claim.value == (None if value is None else pytest.approx(value, abs=0.005))


def test_shares_beside_others_are_held_against_the_whole_card_alone() -> None:
    rows = (share(100, 132, 1000), share(30, 38, 280, 10, 60), share(60, 78, 500, 10, 30))
    claim = of_shares(rows, "beside")
    assert (claim.verdict, claim.note) == (BROKEN, "-9.09 at 60 % beside 10 and 30, of 2")
    assert of_shares(rows, "alone").verdict is NOT_MEASURED


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (half(100, 205.9), HOLDS),
        (half(100, 194.1), HOLDS),
        (half(100, 206.1), BROKEN),
        (half(100, 193.9), BROKEN),
        (half(0, 200), NOT_MEASURED),
        (half(100, 200, sms=(10, 22)), NOT_MEASURED),
        ([share(20, 26, 100, 80), share(80, 104, 200, 20)], NOT_MEASURED),
    ],
)
def test_one_to_two_is_held_where_the_sms_are_one_to_two(
    rows: list[ShareRow], verdict: ClaimVerdict
) -> None:
    assert of_shares(rows, "1:2").verdict is verdict


def test_of_what_is_not_divided_the_ratio_is_only_shown() -> None:
    bandwidth = of_shares(half(100, 120, work=WorkKind.BANDWIDTH), "bandwidth")
    assert (bandwidth.verdict, bandwidth.value) == (ClaimVerdict.NO_LIMIT, pytest.approx(1.2))


def pairs(*costs: float) -> tuple[CostRow, ...]:
    """One for each percent that mpsd took."""
    return tuple(pair(1000, 1000 - 10 * cost, 1 + cost / 100) for cost in costs)


@pytest.mark.parametrize(
    ("costs", "verdict", "middle"),
    [
        ((-1.0, 0.5, 10.0), CANNOT_TELL, 0.5),
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), HOLDS, 0.35),
        ((0.1, 0.2, 0.3, 0.4, 0.5, 1.0), CANNOT_TELL, 0.35),
        ((1.1, 1.2, 1.3, 1.4, 1.5, 9.0), BROKEN, 1.35),
        ((-5.0, -1.0, -0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 6.0), HOLDS, 0.15),
    ],
)
def test_the_cost_is_the_median_of_the_pairs_where_these_decide(
    costs: tuple[float, ...], verdict: ClaimVerdict, middle: float
) -> None:
    for claim in of(BenchGroup.COST, replace(EMPTY, cost=pairs(*costs))):
        assert (claim.verdict, claim.value) == (verdict, pytest.approx(middle))


def test_each_load_has_a_cost_of_its_own() -> None:
    rows = (
        *pairs(*[0.0] * 6),
        *(replace(one, work=WorkKind.ARITHMETIC) for one in pairs(*[10.0] * 6)),
    )
    assert [
        claim.verdict for claim in of(BenchGroup.COST, replace(EMPTY, cost=rows), "throughput")
    ] == [HOLDS, BROKEN]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_the_interval_of_six_values_and_more_has_their_median_in_it(values: list[float]) -> None:
    interval = median_interval(values)
    assert (interval is None) is (len(values) < 6)
    if interval:
        assert min(values) <= interval[0] <= median(values) <= interval[1] <= max(values)


@pytest.mark.parametrize(
    ("in_turns", "under_mpsd", "verdict"),
    [(1000, 10000, HOLDS), (1000, 9999, BROKEN), (0, 9999, NOT_MEASURED)],
)
def test_eight_programs_of_small_kernels_do_ten_times_as_much(
    in_turns: float, under_mpsd: float, verdict: ClaimVerdict
) -> None:
    rows = (
        small(SharingMode.TIME_SLICED, in_turns),
        small(SharingMode.MPSD, under_mpsd),
        small(SharingMode.MPSD, 1, programs=4),
    )
    assert one(BenchGroup.SHARING, replace(EMPTY, sharing=rows), "small").verdict is verdict


@pytest.mark.parametrize(
    ("small_rate", "large_rate", "gib", "verdict"),
    [
        (1000, 1019, 40, HOLDS),
        (1021, 1000, 40, BROKEN),
        (1000, 1000, 2, NOT_MEASURED),
        (0, 1000, 40, NOT_MEASURED),
    ],
)
def test_memory_makes_no_difference_to_the_work(
    small_rate: float, large_rate: float, gib: int, verdict: ClaimVerdict
) -> None:
    rows = [
        share(30, 38, small_rate),
        share(30, 38, large_rate, gib=gib),
        share(30, 38, 1, 70, gib=40),
    ]
    assert of_shares(rows, "another memory").verdict is verdict


@pytest.mark.parametrize(("p99_ms", "verdict"), [(12.0, HOLDS), (12.1, BROKEN)])
def test_requests_keep_their_latency_beside_work_below_normal(
    p99_ms: float, verdict: ClaimVerdict
) -> None:
    rows = (
        PriorityRow(BatchWork.NONE, 20, 9.0, 10.0, 0.0),
        PriorityRow(BatchWork.NORMAL, 20, 9.0, 30.0, 1000.0),
        PriorityRow(BatchWork.BELOW_NORMAL, 20, 9.0, p99_ms, 990.0),
    )
    benchmark = replace(EMPTY, priority=rows)
    assert one(BenchGroup.SHARING, benchmark, "of below normal priority").verdict is verdict
    assert one(BenchGroup.SHARING, benchmark, "of normal priority").value == pytest.approx(3)
    assert one(BenchGroup.SHARING, benchmark, "gets done, against normal").value == pytest.approx(
        0.99
    )


def reactions(reaction: Reaction, *seconds: float, grace_s: float = 0.0) -> Benchmark:
    rows = tuple(
        ReactionRow(reaction, number, "", each, grace_s) for number, each in enumerate(seconds)
    )
    return replace(EMPTY, reactions=rows)


def test_reactions_are_medians() -> None:
    served = one(BenchGroup.REACTIONS, reactions(Reaction.DAEMON, 0.4, 0.5, 5.0), "served")
    assert (served.verdict, served.value) == (HOLDS, 0.5)
    assert served.note == "median of 3 rounds, 0.400 to 5.000; the hardware alone takes 0.31 s"


@pytest.mark.parametrize(
    ("reaction", "what", "limit_s"),
    [(Reaction.STOPPED, "stopped", 0.15), (Reaction.DAEMON, "served", 0.6)],
)
def test_reactions_are_held_to_their_limits(reaction: Reaction, what: str, limit_s: float) -> None:
    assert one(BenchGroup.REACTIONS, reactions(reaction, limit_s, limit_s), what).verdict is HOLDS
    beyond = reactions(reaction, limit_s + 0.01, limit_s + 0.01)
    assert one(BenchGroup.REACTIONS, beyond, what).verdict is BROKEN


@pytest.mark.parametrize(
    ("seconds", "grace_s", "verdict"), [(3.19, 3, HOLDS), (3.21, 3, BROKEN), (2.21, 2, BROKEN)]
)
def test_memory_is_back_in_time_beyond_the_policys_drain(
    seconds: float, grace_s: float, verdict: ClaimVerdict
) -> None:
    back = reactions(Reaction.MEMORY_BACK, seconds, grace_s=grace_s)
    assert one(BenchGroup.REACTIONS, back, "end_drain_s").verdict is verdict


@pytest.mark.parametrize(
    ("programs", "simulated", "verdict"),
    [(48, False, HOLDS), (48, True, HOLDS), (32, False, BROKEN), (32, True, NOT_MEASURED)],
)
def test_as_many_clients_as_mps_takes_are_served(
    programs: int, simulated: bool, verdict: ClaimVerdict
) -> None:
    rows = (small(SharingMode.MPSD, 1000.0, programs), small(SharingMode.MPSD, 0.0, 60))
    benchmark = replace(EMPTY, machine=replace(MACHINE, simulated=simulated), sharing=rows)
    assert one(BenchGroup.SHARING, benchmark, "at once").verdict is verdict


def test_bounds_are_as_they_are_written() -> None:
    for bound, at, beyond in (
        (Bound.UNDER, BROKEN, BROKEN),
        (Bound.AT_MOST, HOLDS, BROKEN),
        (Bound.AT_LEAST, HOLDS, HOLDS),
    ):
        limit = Limit(bound, 1.0)
        assert [
            BenchClaim(BenchGroup.COST, "", "%", limit, value).verdict for value in (1.0, 1.1)
        ] == [at, beyond]


def test_figures_are_written_for_people() -> None:
    assert [
        figure(*each) for each in ((0.0712, "s"), (12345.6, "×"), (48.0, "programs"), (-0.004, "%"))
    ] == [
        "0.071",
        "12,346",
        "48",
        "0.00",
    ]


rates = st.floats(min_value=-10, allow_nan=False) | st.just(0.0)
counts = st.integers(min_value=-1) | st.just(10**400)


@settings(max_examples=40)
@given(
    st.lists(
        st.builds(
            ShareRow,
            st.sampled_from([20, 40, 100]),
            st.sampled_from([2, 40]),
            counts,
            st.sampled_from([(), (20,), (40,)]),
            st.sampled_from(WorkKind),
            rates,
        )
    ),
    st.lists(
        st.builds(CostRow, st.sampled_from(WorkKind), counts, counts, rates, rates, rates, rates)
    ),
)
def test_no_record_makes_it_fail(shares: list[ShareRow], cost: list[CostRow]) -> None:
    """A file that somebody shows may hold any number."""
    benchmark = replace(EMPTY, shares=tuple(shares), cost=tuple(cost))
    assert all(
        claim.what and isinstance(claim.verdict, ClaimVerdict) for claim in claims(benchmark)
    )


def test_a_row_of_make_bench_is_judged_by_the_interval_of_its_samples() -> None:
    far_apart = median_row([0.5, 0.8, 0.9, 1.1, 1.2, 1.5], "×", 1.0, None, "")
    assert (far_apart.value, far_apart.interval, far_apart.verdict) == (
        1.0,
        (0.5, 1.5),
        CANNOT_TELL,
    )
    assert median_row([0.7, 0.8, 0.9, 0.9, 0.95, 1.0], "×", 1.0, None, "").verdict is HOLDS
    assert median_row([1.1, 1.2, 1.3, 1.4, 1.5, 1.6], "×", 1.0, None, "").verdict is BROKEN
    few = median_row([0.9, 1.5], "×", 1.0, None, "")
    assert (few.interval, few.verdict) == (None, BROKEN)
    assert median_row([9.0], "ms", None, None, "").verdict is ClaimVerdict.NO_LIMIT
