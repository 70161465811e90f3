"""Machines with simulated GPUs, on which nothing may be left at the end of a test."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.whole.machine.machine import Machine


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
    """One A30 under `mpsd up`. A file that needs another has its own of this name."""
    yield from serving_on("A30")


@pytest.fixture
def served(serving: Machine) -> Iterator[Machine]:
    """For tests that leave mpsd running; without programs at their beginning."""
    yield serving
    as_before(serving)


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    """One A30 under `mpsd control` and `mpsd agent`. A file that needs another has its own."""
    yield from parted_on("A30")


@pytest.fixture
def apart(parted: Machine) -> Iterator[Machine]:
    """For tests that start again what they kill; without programs at their beginning."""
    yield parted
    as_before(parted)


def serving_on(gpus: str, **policy: Any) -> Iterator[Machine]:
    for made in on_machine(gpus):
        made.set_policy(**policy)
        made.up()
        yield made


def parted_on(gpus: str, **policy: Any) -> Iterator[Machine]:
    for made in on_machine(gpus):
        made.set_policy(**policy)
        made.apart()
        yield made


def as_before(shared: Machine) -> None:
    """Ends the programs of a test, and waits until every GPU is free and serves."""
    shared.end_programs()
    shared.until_no_grants()
    shared.until_ready()


def on_machine(gpus: str, *, tried: bool = True) -> Iterator[Machine]:
    """At its end nothing may be left."""
    made = Machine(gpus, tried=tried)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()
