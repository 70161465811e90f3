"""Machines whose containers are runc's own. Where runc cannot run the tests are skipped, and say
what is missing."""

from collections.abc import Iterator

import pytest

from tests.host.bundle import why_not
from tests.host.host import Host, host_of


@pytest.fixture(scope="session", autouse=True)
def _can_run() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """One T4, as in cGPU's document. A file that needs other cards has its own of this name."""
    yield from host_of("T4")


@pytest.fixture
def host(serving_host: Host) -> Iterator[Host]:
    """The same for all tests of a file, without containers at their beginning."""
    yield serving_host
    serving_host.remove_containers()
    serving_host.until_nothing_reserved()
