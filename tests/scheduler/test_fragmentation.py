"""Pods come and go on a nearly full cluster; `make bench` shows the same for 5 000 nodes and 20 000
pods."""

import pytest

from tests.scheduler.arrivals import CHOICES, Outcome, simulate


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Each looks after every pod whether a GPU is over its card, and at the end whether the ledger
    is as at first."""
    return {choice: simulate(choice, nodes=100, pods=1000) for choice in CHOICES}


def test_no_gpu_is_ever_over_its_card_and_the_ledger_balances_at_the_end(
    outcomes: dict[str, Outcome],
) -> None:
    assert outcomes.keys() == {"binpack", "spread", "first-fit"}


def test_the_cluster_is_so_full_that_pods_are_refused(outcomes: dict[str, Outcome]) -> None:
    assert all(outcome.refused > 0 for outcome in outcomes.values())


def test_binpack_leaves_most_room_for_large_pods_and_spread_least(
    outcomes: dict[str, Outcome],
) -> None:
    large = {choice: outcome.shares.large for choice, outcome in outcomes.items()}
    assert large["binpack"] > large["first-fit"] > large["spread"]


def test_binpack_refuses_fewest_pods_of_one_gpu_and_spread_most(
    outcomes: dict[str, Outcome],
) -> None:
    refused = {choice: outcome.refused for choice, outcome in outcomes.items()}
    assert refused["binpack"] < refused["first-fit"] < refused["spread"]
