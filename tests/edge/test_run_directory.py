"""When a run directory counts as removed, and which failures are told as that."""

import shutil
from pathlib import Path

import pytest

from mpsd.edge.run_directory import Vanished, in_sight
from mpsd.roles.directory_watch import sight_of


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


def test_one_that_was_never_there_has_vanished(tmp_path: Path) -> None:
    with pytest.raises(Vanished, match="run was removed while mpsd ran"), in_sight(tmp_path / "run"):
        pass


def test_a_removal_that_is_under_way_is_known_by_what_is_missing_inside(tmp_path: Path) -> None:
    record = tmp_path / "gpu0" / "record.json"
    with pytest.raises(Vanished) as raised, sight_of(tmp_path):
        raise ExceptionGroup("", [ExceptionGroup("", [missing(record)]), missing(tmp_path / "grants")])
    assert raised.value.path == record


@pytest.mark.parametrize(
    "failure", [missing(Path("/elsewhere/x")), PermissionError(13, "no", "x"), ValueError("a fault of ours")]
)
def test_any_other_failure_stays_what_it_is(tmp_path: Path, failure: Exception) -> None:
    with pytest.raises(ExceptionGroup) as raised, sight_of(tmp_path):
        raise ExceptionGroup("", [missing(tmp_path / "gpu0"), failure])
    assert raised.value.exceptions[1] is failure
