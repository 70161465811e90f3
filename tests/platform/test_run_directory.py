"""When a run directory counts as removed, and which failures are told as that."""

import os
import shutil
from pathlib import Path

import pytest

from mpsd.cli.foreground import directory_in_sight
from mpsd.platform.run_directory import Vanished, in_sight


def missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(2, "No such file or directory", str(path))


def test_a_directory_that_stays_is_there(tmp_path: Path) -> None:
    with in_sight(tmp_path) as sight:
        (tmp_path / "gpu0").mkdir()
        assert sight.is_there
        assert sight.lost([OSError("something else")]) is None


def test_one_that_was_removed_or_made_anew_is_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with in_sight(run) as sight:
        shutil.rmtree(run)
        assert not sight.is_there
        run.mkdir()
        assert not sight.is_there
        assert sight.lost([ValueError("whatever came of it")]) == run


def test_one_that_was_removed_is_not_there_for_who_can_reach_it_still(tmp_path: Path) -> None:
    """As a pod that has the host's directory mounted."""
    run = tmp_path / "run"
    run.mkdir()
    kept = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with in_sight(Path(f"/proc/self/fd/{kept}")) as sight:
            assert sight.is_there
            run.rmdir()
            assert not sight.is_there
    finally:
        os.close(kept)


def test_one_that_was_never_there_has_vanished(tmp_path: Path) -> None:
    with pytest.raises(Vanished, match="run was removed while mpsd ran"), in_sight(tmp_path / "run"):
        pass


def test_a_removal_that_is_under_way_is_known_by_what_is_missing_inside(tmp_path: Path) -> None:
    record = tmp_path / "gpu0" / "record.json"
    with pytest.raises(Vanished) as raised, directory_in_sight(tmp_path):
        raise ExceptionGroup("", [ExceptionGroup("", [missing(record)]), missing(tmp_path / "grants")])
    assert raised.value.path == record


@pytest.mark.parametrize(
    "failure", [missing(Path("/elsewhere/x")), PermissionError(13, "no", "x"), ValueError("a fault of ours")]
)
def test_any_other_failure_stays_what_it_is(tmp_path: Path, failure: Exception) -> None:
    with pytest.raises(ExceptionGroup) as raised, directory_in_sight(tmp_path):
        raise ExceptionGroup("", [missing(tmp_path / "gpu0"), failure])
    assert raised.value.exceptions[1] is failure
