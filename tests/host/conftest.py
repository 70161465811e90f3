"""Machines whose containers are runc's own. Where runc cannot run the tests are skipped, and say what is missing."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.host.bundle import RUNC
from tests.host.host import Host


def why_not() -> str:
    """What keeps containers from running here; empty where nothing does."""
    if os.geteuid() != 0:
        return "needs root: run `make check-host` as root"
    if shutil.which(RUNC) is None:
        return "needs runc: apt-get install runc"
    if not any(Path("/sys/fs/cgroup").iterdir()):
        return "needs cgroups: mount them at /sys/fs/cgroup"
    return ""


@pytest.fixture(scope="session", autouse=True)
def _can_run() -> None:
    if reason := why_not():
        pytest.skip(reason)


def host_of(gpus: str, *, cards: Sequence[Mapping[str, Any]] = (), **policy: Any) -> Iterator[Host]:
    """One that serves; what follows the yield of a fixture fails where anything of it is left."""
    made = Host(gpus, cards=cards, **policy)
    try:
        made.up()
        yield made
        made.stop()
    finally:
        made.destroy()


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
