"""Clusters for tests of `kubectl mps`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.cli.cluster_world import ClusterWorld
from tests.simulated_api import simulated_api


@pytest.fixture
def bare_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[ClusterWorld]:
    """A cluster without mpsd."""
    with simulated_api() as api:
        yield ClusterWorld(api, tmp_path, monkeypatch, capsys)
    structlog.reset_defaults()


@pytest.fixture
def world(bare_world: ClusterWorld) -> ClusterWorld:
    """A cluster that knows MPSNodes and has none."""
    bare_world.install()
    return bare_world
