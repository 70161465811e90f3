"""At start a bad limits file is fatal; later the last good pair stays."""

import os
import shutil
from pathlib import Path

import pytest

import mpsd
from mpsd.model.policy import Placement
from mpsd.model.problem import InvalidInput
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, LimitsFiles, load_limits, shipped_folder
from mpsd.platform.yaml_files import UnreadableFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (POLICY_FILE, GPU_FACTS_FILE):
        shutil.copy(shipped_folder() / name, tmp_path / name)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    """Replaces the file, as an editor or a ConfigMap does."""
    text = path.read_text()
    assert old in text
    new_file = path.with_suffix(".new")
    new_file.write_text(text.replace(old, new))
    new_file.rename(path)


def placement(files: LimitsFiles) -> Placement:
    return files.policy.placement


def still_wrong(files: LimitsFiles) -> bool:
    return files.wrong is not None


def test_the_limits_of_the_checkout_are_good() -> None:
    limits = load_limits(None)
    assert limits.policy.placement is Placement.BINPACK
    assert limits.facts.card("H200") is not None


def test_an_installed_package_brings_its_own_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mpsd"
    (package / "_limits").mkdir(parents=True)
    monkeypatch.setattr(mpsd, "__file__", str(package / "__init__.py"))
    assert shipped_folder() == package / "_limits"


def test_the_faults_of_both_files_are_said_together(folder: Path) -> None:
    change(folder / POLICY_FILE, "placement: binpack", "placement: anywhere")
    change(folder / GPU_FACTS_FILE, "version: v1", "version: v9")
    with pytest.raises(InvalidInput) as raised:
        load_limits(folder)
    assert [problem.where for problem in raised.value.problems] == [
        f"{folder / POLICY_FILE}: placement",
        f"{folder / GPU_FACTS_FILE}: version",
    ]


def test_one_bad_file_is_named_as_it_is(folder: Path) -> None:
    change(folder / POLICY_FILE, "version: v1", "version: v1\nversion: v1")
    with pytest.raises(InvalidInput) as raised:
        load_limits(folder)
    assert raised.value.subject == str(folder / POLICY_FILE)
    assert [problem.rule for problem in raised.value.problems] == ["yaml-duplicate-key"]


def test_a_file_with_two_documents_is_refused(folder: Path) -> None:
    with (folder / POLICY_FILE).open("a") as file:
        file.write("---\nversion: v1\n")
    with pytest.raises(InvalidInput, match="a second document starts here"):
        load_limits(folder)


def test_a_missing_file_is_told_from_a_bad_one(folder: Path) -> None:
    (folder / POLICY_FILE).unlink()
    change(folder / GPU_FACTS_FILE, "version: v1", "version: v9")
    with pytest.raises(UnreadableFile) as raised:
        load_limits(folder)
    assert [problem.rule for problem in raised.value.problems] == ["file-missing", "version-unknown"]


def test_a_bad_file_at_the_start_is_fatal(folder: Path) -> None:
    (folder / GPU_FACTS_FILE).write_text("")
    with pytest.raises(InvalidInput):
        LimitsFiles(folder)


def test_a_changed_policy_comes_into_force(folder: Path) -> None:
    files = LimitsFiles(folder)
    assert files.read_again() is None
    change(folder / POLICY_FILE, "placement: binpack", "placement: spread")
    assert placement(files) is Placement.BINPACK
    assert files.read_again() is None
    assert placement(files) is Placement.SPREAD


def test_files_that_say_the_same_again_leave_the_very_same_limits_in_force(folder: Path) -> None:
    files = LimitsFiles(folder)
    before = files.policy, files.facts
    for name in (POLICY_FILE, GPU_FACTS_FILE):
        os.utime(folder / name, ns=(1, 1))
    assert files.read_again() is None
    assert files.policy is before[0]
    assert files.facts is before[1]


def test_a_bad_change_is_said_once_and_the_last_good_pair_stays(folder: Path) -> None:
    files = LimitsFiles(folder)
    change(folder / POLICY_FILE, "placement: binpack", "placement: anywhere")
    wrong = files.read_again()
    assert wrong is not None
    assert [problem.where for problem in wrong.problems] == ["placement"]
    assert files.read_again() is None
    assert files.wrong is wrong
    assert placement(files) is Placement.BINPACK
    change(folder / POLICY_FILE, "placement: anywhere", "placement: spread")
    assert files.read_again() is None
    assert not still_wrong(files)
    assert placement(files) is Placement.SPREAD


def test_one_bad_file_keeps_the_other_out_too(folder: Path) -> None:
    files = LimitsFiles(folder)
    change(folder / POLICY_FILE, "placement: binpack", "placement: spread")
    change(folder / GPU_FACTS_FILE, "version: v1", "version: v9")
    assert files.read_again() is not None
    assert placement(files) is Placement.BINPACK


def test_a_file_that_goes_away_changes_nothing_in_force(folder: Path) -> None:
    files = LimitsFiles(folder)
    (folder / POLICY_FILE).unlink()
    assert isinstance(files.read_again(), UnreadableFile)
    assert placement(files) is Placement.BINPACK


def test_a_config_map_that_is_swapped_is_seen(folder: Path, tmp_path: Path) -> None:
    """A kubelet swaps one symbolic link, `..data`; the new files may have the size and times of the old ones."""
    mount, old, new = tmp_path / "mount", tmp_path / "mount" / "..1", tmp_path / "mount" / "..2"
    mount.mkdir()
    for version in (old, new):
        shutil.copytree(folder, version, ignore=shutil.ignore_patterns("mount"))
    change(new / POLICY_FILE, "placement: binpack", "placement: spread ")
    stamp = (new / POLICY_FILE).stat()
    os.utime(old / POLICY_FILE, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (mount / "..data").symlink_to("..1")
    for name in (POLICY_FILE, GPU_FACTS_FILE):
        (mount / name).symlink_to(f"..data/{name}")
    files = LimitsFiles(mount)
    (mount / "..data_tmp").symlink_to("..2")
    (mount / "..data_tmp").rename(mount / "..data")
    assert files.read_again() is None
    assert placement(files) is Placement.SPREAD
