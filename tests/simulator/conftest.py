"""Worlds of the contract on two simulated H200, for what no card was asked."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.simulator.node import SimulatedNode
from tests.contract.journal import Journal
from tests.contract.platforms import Simulated
from tests.contract.world import Daemon, World, open_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    made = open_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)  # where it was a world's, that has done so


@pytest.fixture
def platform(folder: Path) -> Simulated:
    return Simulated(folder / "node")


@pytest.fixture
def node(platform: Simulated) -> SimulatedNode:
    return platform.node


@pytest.fixture
def world(platform: Simulated, folder: Path) -> Iterator[World]:
    opened = World(platform, folder, Journal())
    yield opened
    opened.close()


@pytest.fixture
def daemon(world: World) -> Daemon:
    """For the first GPU."""
    return world.daemon()
