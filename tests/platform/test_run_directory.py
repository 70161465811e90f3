"""When a run directory counts as removed, and which failures are told as that."""

import fcntl
import os
import shutil
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from mpsd.cli.foreground import directory_in_sight
from mpsd.model.problem import InvalidInput
from mpsd.platform.run_directory import (
    LOCK,
    AlreadyHeld,
    DomainFolder,
    Vanished,
    held,
    holder,
    in_sight,
)
from tests.whole.machine.machine import eventually


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


# -- the lock


def test_a_lock_on_the_directory_keeps_nobody_out(tmp_path: Path) -> None:
    """Whoever may read it can take that."""
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with held(tmp_path):
            assert holder(tmp_path) == os.getpid()
    finally:
        os.close(descriptor)


def test_it_is_held_once_and_by_a_file_that_nobody_else_may_open(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with held(tmp_path), pytest.raises(AlreadyHeld), held(tmp_path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600
    with held(tmp_path):
        pass


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o622])
def test_a_lock_that_others_may_open_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    lock = tmp_path / LOCK
    lock.touch()
    lock.chmod(mode)
    assert refusal(tmp_path).endswith(f"(mode {mode:04o}); remove {lock}")


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    assert "takes no files" in refusal(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", ["", "x", "1 2", "ME 1 x", "-1 0 \0", "1 2 3 4"])
def test_who_has_not_written_that_it_holds_it_does_not(tmp_path: Path, text: str) -> None:
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()
        (tmp_path / LOCK).write_text(text.replace("ME", str(os.getpid())))
        assert holder(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_is_told_of_root_s_and_of_nobody_else_s() -> None:
    def seen_by(uid: int) -> int:
        """The pid, modulo 256."""
        if not (child := os.fork()):
            os.setresuid(uid, uid, uid)
            os._exit((holder(run) or 0) % 256)
        _pid, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        run = Path(folder) / "run"
        with held(run):
            assert seen_by(65534) == os.getpid() % 256
        (run / LOCK).write_text("")
        descriptor = os.open(run / LOCK, os.O_RDONLY)
        if not (thief := os.fork()):
            os.setresuid(65533, 65533, 65533)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            signal.pause()
        try:
            eventually(lambda: str(thief) in Path("/proc/locks").read_text(), "it has the lock")
            assert seen_by(65534) == 0
        finally:
            os.kill(thief, signal.SIGKILL)
            os.waitpid(thief, 0)
            os.close(descriptor)


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
