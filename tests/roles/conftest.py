"""Machines with simulated GPUs, on which nothing may be left at the end of a test."""

from collections.abc import Iterator

import pytest

from tests.roles.machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30, nothing running."""
    yield from _machine("A30")


@pytest.fixture
def pair() -> Iterator[Machine]:
    """Two A30, nothing running."""
    yield from _machine("A30×2")


def _machine(gpus: str) -> Iterator[Machine]:
    made = Machine(gpus)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()
