"""Machines with simulated GPUs, on which nothing may be left at the end of a test."""

from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

import pytest

from tests.whole.machine.machine import Machine

AnyMachine = TypeVar("AnyMachine", bound=Machine)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30, nothing running."""
    yield from on_machine("A30")


@pytest.fixture
def pair() -> Iterator[Machine]:
    """Two A30, nothing running."""
    yield from on_machine("A30×2")


@pytest.fixture(scope="module")
def serving(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Under `mpsd up`: the GPUS of the file, or one A30, by its POLICY beside the machine's own."""
    for made in asked_by(request.module):
        made.up()
        yield made


@pytest.fixture
def served(serving: Machine) -> Iterator[Machine]:
    """For tests that leave mpsd running; without programs at their beginning."""
    yield serving
    as_before(serving)


@pytest.fixture(scope="module")
def parted(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """The same under `mpsd control` and `mpsd agent`."""
    for made in asked_by(request.module):
        made.apart()
        yield made


@pytest.fixture
def apart(parted: Machine) -> Iterator[Machine]:
    """For tests that start again what they kill; without programs at their beginning."""
    yield parted
    as_before(parted)


def asked_by(module: ModuleType) -> Iterator[Machine]:
    for made in on_machine(getattr(module, "GPUS", "A30")):
        made.set_policy(**getattr(module, "POLICY", {}))
        yield made


def as_before(shared: Machine) -> None:
    """Ends the programs of a test, and waits until every GPU is free and serves."""
    shared.end_programs()
    shared.until_no_grants()
    shared.until_ready()


def on_machine(gpus: str, *, tried: bool = True) -> Iterator[Machine]:
    """At its end nothing may be left."""
    yield from ended(Machine(gpus, tried=tried))


def ended(made: AnyMachine) -> Iterator[AnyMachine]:
    try:
        yield made
        made.stop()
    finally:
        made.destroy()
