"""Simulated machines. In short folders of their own: a socket's path has 107 characters at most."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulator.machine import Daemon, Machine
from tests.simulator.machine import machine as new_machine


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sim") as made:
        yield Path(made)


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    """One H200, no daemon yet."""
    with new_machine(folder, "H200") as made:
        yield made


@pytest.fixture
def pair(folder: Path) -> Iterator[Machine]:
    """Two H200, no daemon yet."""
    with new_machine(folder, "H200×2") as made:
        yield made


@pytest.fixture
def flags() -> tuple[str, ...]:
    """What the daemon of a test is started with: -M where that is allowed, as mpsd does."""
    return ("-M",) if os.geteuid() == 0 else ()


@pytest.fixture
def daemon(machine: Machine, flags: tuple[str, ...]) -> Daemon:
    return machine.start_daemon(*flags)


@pytest.fixture
def pair_daemon(pair: Machine, flags: tuple[str, ...]) -> Daemon:
    return pair.start_daemon(*flags)
