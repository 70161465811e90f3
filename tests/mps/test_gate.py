"""The gate on disk: a device node, or nothing."""

import os
import stat
from pathlib import Path

import pytest

from mpsd.mps import gate
from mpsd.platform.run_directory import DomainFolder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


@pytest.fixture
def folder(tmp_path: Path) -> DomainFolder:
    made = DomainFolder(tmp_path / "gpu0")
    made.make()
    return made


@needs_root
def test_a_gate_is_a_device_that_leads_nowhere(folder: DomainFolder) -> None:
    gate.make(folder)
    gate.make(folder)
    status = folder.gate.stat()
    assert stat.S_ISCHR(status.st_mode)
    assert status.st_rdev == Path("/dev/null").stat().st_rdev


@needs_root
def test_where_a_gate_can_be_made_nothing_is_left_of_the_attempt(tmp_path: Path) -> None:
    assert gate.why_impossible(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_all_gates_go_but_those_that_are_named(folder: DomainFolder) -> None:
    other = DomainFolder(folder.path.parent / "gpu1")
    other.make()
    for one in (folder, other):
        gate.make(one)
    assert gate.remove_all_but(folder.path.parent, {"gpu0"}) == ("gpu1",)
    assert folder.gate.exists()
    assert not other.gate.exists()


def test_a_gate_that_is_not_there_can_be_removed(folder: DomainFolder) -> None:
    gate.remove(folder)
    assert not folder.gate.exists()


def test_another_user_is_told_that_there_are_no_gates(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                for above in tmp_path.parents[:3]:  # pytest's own folders are for root only
                    above.chmod(0o755)
                os.setgid(65534)
                os.setuid(65534)
            os._exit(0 if "no device nodes" in gate.why_impossible(tmp_path) else 1)
        finally:
            os._exit(2)
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
