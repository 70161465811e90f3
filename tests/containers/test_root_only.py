"""Who could change what root will run."""

import os
from pathlib import Path

import pytest

from mpsd.containers.engine_files import writable_by_others

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


def said(path: Path, *, below: bool = False) -> str:
    return "\n".join(map(str, writable_by_others("it", path, below=below)))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """In a folder that belongs to us alone."""
    (tmp_path / "lib").mkdir(mode=0o755)
    path = tmp_path / "lib" / "program"
    path.write_text("")
    path.chmod(0o755)
    return path


def test_what_is_ours_alone_is_safe_even_below_a_sticky_folder(program: Path) -> None:
    program.parent.parent.chmod(0o1777)
    assert said(program) == ""


def test_a_program_that_everybody_may_write_is_named_with_what_to_do(program: Path) -> None:
    program.chmod(0o757)
    assert (
        said(program)
        == f"it is {program}: may be written by everybody, and the launcher is run by root; chmod"
        f" o-w {program}"
    )


def test_a_folder_on_the_way_counts(program: Path) -> None:
    program.parent.chmod(0o777)
    assert f"it is {program.parent}: may be written by everybody" in said(program)


def test_a_link_counts_by_every_place_it_leads_through(program: Path) -> None:
    open_folder = program.parent.parent / "open"
    open_folder.mkdir()
    (open_folder / "second").symlink_to("../lib/program")
    first = program.parent / "first"
    first.symlink_to(open_folder / "second")
    assert said(first) == ""
    open_folder.chmod(0o777)
    assert f"it is {open_folder}: may be written by everybody" in said(first)


def test_what_is_in_a_package_counts(program: Path) -> None:
    (program.parent / "__pycache__").mkdir()
    (program.parent / "__pycache__").chmod(0o777)
    assert said(program.parent) == ""
    assert "__pycache__: may be written by everybody" in said(program.parent, below=True)


@as_root
def test_a_program_of_another_user_or_group_is_named(program: Path) -> None:
    os.chown(program, 12345, 0)
    assert f"it is {program}: belongs to user 12345" in said(program)
    os.chown(program, 0, 12345)
    assert said(program) == ""
    program.chmod(0o775)
    assert f"it is {program}: may be written by group 12345" in said(program)
