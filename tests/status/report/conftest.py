"""One simulated cluster a test."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.simulated_api import SimulatedApi, simulated_api
from tests.status.report.world import World, in_world


@pytest.fixture
def api() -> Iterator[SimulatedApi]:
    with simulated_api() as running:
        yield running


@pytest.fixture
def world(api: SimulatedApi, tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return in_world(api, tmp_path)
