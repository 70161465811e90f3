"""Everything as pods, on a node with simulated GPUs."""

import pytest

from tests.e2e.machine import Machine, this_machine


@pytest.fixture
def machine() -> Machine:
    return this_machine()
