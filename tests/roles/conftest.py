"""Machines with simulated GPUs, on which nothing may be left at the end of a test."""

from collections.abc import Iterator

import pytest

from tests.roles.machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30, nothing running."""
    yield from on_machine("A30")


@pytest.fixture
def pair() -> Iterator[Machine]:
    """Two A30, nothing running."""
    yield from on_machine("A30×2")


@pytest.fixture(scope="module")
def serving() -> Iterator[Machine]:
    """One A30, on which `mpsd up` runs."""
    for made in on_machine("A30"):
        made.up()
        yield made


@pytest.fixture
def served(serving: Machine) -> Iterator[Machine]:
    """The same for all tests of a file that leave mpsd running; without programs at their beginning."""
    yield serving
    serving.end_programs()
    serving.until_no_grants()
    serving.until_ready()


def on_machine(gpus: str, *, tried: bool = True) -> Iterator[Machine]:
    """One with nothing running; the end of the test is its own, and fails where anything is left."""
    made = Machine(gpus, tried=tried)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()
