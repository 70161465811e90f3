"""One simulated cluster a test."""

from collections.abc import Iterator

import pytest

from tests.simulated_api import SimulatedApi, simulated_api


@pytest.fixture
def api() -> Iterator[SimulatedApi]:
    with simulated_api() as running:
        yield running
