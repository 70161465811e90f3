"""What most tests of the runtime stand on."""

from pathlib import Path

import pytest

from tests.containers.runtime.ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)
