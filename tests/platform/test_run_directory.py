"""When a run directory counts as removed, and which failures are told as that."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from mpsd.cli.foreground import directory_in_sight
from mpsd.model.problem import InvalidInput
from mpsd.platform.run_directory import DomainFolder, Vanished, held, in_sight


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
    with (
        pytest.raises(Vanished, match="run was removed while mpsd ran"),
        in_sight(tmp_path / "run"),
    ):
        pass


def test_a_removal_that_is_under_way_is_known_by_what_is_missing_inside(tmp_path: Path) -> None:
    record = tmp_path / "gpu0" / "record.json"
    with pytest.raises(Vanished) as raised, directory_in_sight(tmp_path):
        raise ExceptionGroup(
            "", [ExceptionGroup("", [missing(record)]), missing(tmp_path / "grants")]
        )
    assert raised.value.path == record


@pytest.mark.parametrize(
    "failure",
    [missing(Path("/elsewhere/x")), PermissionError(13, "no", "x"), ValueError("a fault of ours")],
)
def test_any_other_failure_stays_what_it_is(tmp_path: Path, failure: Exception) -> None:
    with pytest.raises(ExceptionGroup) as raised, directory_in_sight(tmp_path):
        raise ExceptionGroup("", [missing(tmp_path / "gpu0"), failure])
    assert raised.value.exceptions[1] is failure


def refusal(run: Path) -> str:
    with pytest.raises(InvalidInput) as raised, held(run):
        pass
    return str(raised.value)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_one_that_every_user_may_write_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    tmp_path.chmod(mode)
    assert f"may be written by every user (mode {mode:04o}); chmod go-w {tmp_path}" in refusal(
        tmp_path
    )


def test_one_that_a_group_may_write_is_mended_and_a_new_one_is_ours_alone_whatever_the_umask(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o775)
    before = os.umask(0)
    try:
        with held(tmp_path), held(tmp_path / "new"):
            assert [stat.S_IMODE(one.stat().st_mode) for one in (tmp_path, tmp_path / "new")] == [
                0o755,
                0o755,
            ]
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("name", ["", "gpu0", "gpu0/client", "gpu0/pipe"])
def test_one_of_another_user_or_with_a_folder_of_another_is_refused(
    tmp_path: Path, name: str
) -> None:
    DomainFolder(tmp_path / "gpu0").make()
    os.chown(tmp_path / name, 65534, 65534)
    expected = (
        f"has {name}, which is of another user; remove {tmp_path / name}"
        if name
        else "belongs to another user"
    )
    assert expected in refusal(tmp_path)


def test_one_whose_folder_of_clients_is_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    DomainFolder(tmp_path / "gpu0").make()
    elsewhere.mkdir()
    (tmp_path / "gpu0" / "client").rmdir()
    (tmp_path / "gpu0" / "client").symlink_to(elsewhere)
    assert "has gpu0/client, which is a symbolic link; remove " in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_link_of_another_user_is_refused_and_one_of_our_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "run")
    with held(link):
        pass
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert "is a symbolic link of another user" in refusal(link)
