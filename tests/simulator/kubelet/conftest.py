"""Every claim about kubelet is tried with the oldest and the newest that is played."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mpsd.simulator.kubelet.pods import NEWEST, OLDEST, Version
from tests.simulator.kubelet.world import World, play

Story = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture(params=[OLDEST, NEWEST], ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Version:
    kubelet: Version = request.param
    return kubelet


@pytest.fixture
def tell(version: Version) -> Callable[[Story], None]:
    """Runs a story in a world of its own."""
    return lambda story: play(version, story)
