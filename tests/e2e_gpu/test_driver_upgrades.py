"""NVIDIA's GPU operator replaces the driver of the node: its label and its cordon play the
states."""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.driver_upgrades import Operator, operator_of
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods
from tests.e2e_gpu.cards import Cards
from tests.e2e_gpu.installation import GpuInstallation


@pytest.fixture
def operator(mpsd: GpuInstallation, machine: Machine) -> Iterator[Operator]:
    with operator_of(mpsd, "/dev/nvidia") as plays:
        yield plays


def test_an_upgrade_waits_for_two_programs_and_then_nobody_has_the_driver_open(
    pods: Pods, operator: Operator, cards: Cards, record_property: Callable[[str, object], None]
) -> None:
    for name in ("first", "second"):
        pods.start(name, 3, "alloc=1000")
    operator.begins()
    users = operator.users_of_the_driver()
    record_property("users of the driver while pods run", sorted(users.values()))
    assert users or not cards.settings, "cards that are simulated have none"
    operator.waits_for(pods, "first", "second")
    record_property(
        "users of the driver before it is replaced",
        sorted(operator.assert_gone_and_back().values()),
    )
    pods.start("after-upgrade", 2, "alloc=500")
