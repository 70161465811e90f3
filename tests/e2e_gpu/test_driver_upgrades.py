"""NVIDIA's GPU operator replaces the driver of the node: its label and its cordon play the
states."""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.driver_upgrades import Operator, changed_policy, operator_of
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually
from tests.e2e_gpu.cards import Cards
from tests.e2e_gpu.installation import GpuInstallation

Record = Callable[[str, object], None]


@pytest.fixture
def operator(mpsd: GpuInstallation, machine: Machine) -> Iterator[Operator]:
    with operator_of(mpsd, "/dev/nvidia") as plays:
        yield plays


def _keep_users(operator: Operator, cards: Cards, record_property: Record) -> None:
    """As a figure, by their command lines, while programs run."""
    users = operator.users_of_the_driver()
    record_property("users of the driver while pods run", sorted(users.values()))
    assert users or not cards.settings, "cards that are simulated have none"


def test_an_upgrade_waits_for_two_programs_and_then_nobody_has_the_driver_open(
    pods: Pods, operator: Operator, cards: Cards, record_property: Record
) -> None:
    for name in ("first", "second"):
        pods.start(name, 3, "alloc=1000")
    operator.begins()
    _keep_users(operator, cards, record_property)
    operator.waits_for(pods, "first", "second")
    record_property(
        "users of the driver before it is replaced",
        sorted(operator.assert_gone_and_back().values()),
    )
    pods.start("after-upgrade", 2, "alloc=500")


def test_two_programs_are_evicted_where_the_policy_says_so(
    mpsd: GpuInstallation, pods: Pods, operator: Operator, cards: Cards, record_property: Record
) -> None:
    with changed_policy(mpsd, driver_upgrade="evict"):
        for name in ("evicted-first", "evicted-second"):
            pods.start(name, 3, "alloc=1000")
        _keep_users(operator, cards, record_property)
        operator.begins()
        for name in ("evicted-first", "evicted-second"):
            assert "driver" in pods.event(name, "MPSEvicted")
        eventually(
            lambda: (
                not mpsd.granted_mib(pods.namespace).keys() & {"evicted-first", "evicted-second"}
            ),
            "gone",
        )
        users = operator.assert_gone_and_back()
        record_property("users of the driver before it is replaced", sorted(users.values()))
    pods.start("after-eviction", 2, "alloc=500")
