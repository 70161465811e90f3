"""Clusters for tests of `kubectl mps`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cluster_world import ClusterWorld
from tests.simulated_api import simulated_api
from tests.told_lines import told_lines


@pytest.fixture
def bare_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[ClusterWorld]:
    """A cluster without mpsd."""
    with told_lines(), simulated_api() as api:  # and `kubectl mps` may be silent
        yield ClusterWorld(api, tmp_path, monkeypatch, capsys)


@pytest.fixture
def world(bare_world: ClusterWorld) -> ClusterWorld:
    """A cluster that knows MPSNodes and has none."""
    bare_world.install()
    return bare_world
