"""What mpsd costs a node on which nothing happens."""

from collections.abc import Callable

from tests.e2e.installation import Installation
from tests.e2e.machine import Machine
from tests.e2e_gpu.costs import assert_small


def test_control_and_agent_take_little_without_clients(
    mpsd: Installation, machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    assert_small(8.0, record_property)
