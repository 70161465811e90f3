"""Files of engines replaced as a whole."""

import os
from pathlib import Path

import pytest

from mpsd.containers import engine_files
from mpsd.containers.engine_files import FileChange
from mpsd.model.problem import InvalidInput

ROOT = Path("/")


def test_what_somebody_else_has_written_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text("{}")
    change = engine_files.with_backup(FileChange(str(path), "x", "{}", '{"a": 1}'))
    path.write_text('{"b": 2}')
    with pytest.raises(engine_files.ChangedMeanwhile):
        engine_files.perform(change)
    assert path.read_text() == '{"b": 2}'
    assert list(tmp_path.iterdir()) == [tmp_path / "daemon.json"]


def test_what_a_killed_one_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".daemon.json.new").symlink_to("/etc/hostname")
    engine_files.perform(FileChange(str(tmp_path / "daemon.json"), "x", None, "{}"))
    assert (tmp_path / "daemon.json").read_text() == "{}"
    assert list(tmp_path.iterdir()) == [tmp_path / "daemon.json"]


def test_the_newest_backup_is_the_first(tmp_path: Path) -> None:
    for age, name in (
        (30, ".before-mpsd.20260101T000000Z"),
        (10, ".before-mpsd"),
        (20, ".before-mpsd.2"),
        (5, ".bak"),
    ):
        kept = tmp_path / f"daemon.json{name}"
        kept.write_text(name)
        os.utime(kept, (10_000 - age, 10_000 - age))
    assert list(engine_files.backups(tmp_path / "daemon.json").values()) == [
        ".before-mpsd",
        ".before-mpsd.2",
        ".before-mpsd.20260101T000000Z",
    ]


def test_a_backup_that_says_the_same_is_not_made_twice(tmp_path: Path) -> None:
    (tmp_path / "daemon.json.before-mpsd").write_text("{}")
    change = FileChange(str(tmp_path / "daemon.json"), "x", "{}", '{"a": 1}')
    assert engine_files.with_backup(change).backup == ""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}\xff", "has byte 0xff at 2, which is not UTF-8"),
        (b" " * (3 * 1024**2 + 1), "is larger than 3 MiB"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "daemon.json").write_bytes(data)
    with pytest.raises(InvalidInput, match=said):
        engine_files.find(tmp_path / "daemon.json", ROOT)
