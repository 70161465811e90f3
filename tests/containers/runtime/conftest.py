"""What most tests of the runtime stand on."""

from pathlib import Path

import pytest

from tests.containers.runtime.ground import Ground
from tests.containers.runtime.mpsd_answers import Answers, answering
from tests.containers.runtime.test_create import ASK, SIX, granted


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def container(ground: Ground) -> Ground:
    """Where c1 was made with a grant, and runs."""
    ground.write(*SIX)
    with answering(ground.run_directory, Answers({ASK: granted(ground)})):
        assert ground.create().code == 0
    ground.hold("c1")
    (ground.folder / "next.json").unlink()
    return ground
