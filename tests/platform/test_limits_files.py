"""At start a bad limits file is fatal; later the last good pair stays, and so do the resources."""

import copy
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

import mpsd
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Placement, Policy
from mpsd.model.problem import InvalidInput
from mpsd.platform.limits_files import (
    GPU_FACTS_FILE,
    POLICY_FILE,
    LimitsFiles,
    PinnedResources,
    load_limits,
    read_gpu_facts,
    read_policy,
    shipped_folder,
)
from mpsd.platform.logs import logger
from mpsd.platform.yaml_files import UnreadableFile
from tests.model.manifests import ANY_JSON
from tests.model.worlds import POLICY, POLICY_DATA, SPREAD
from tests.told_lines import told_lines


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


def test_the_limits_of_the_checkout_are_good() -> None:
    limits = load_limits(None)
    assert limits.policy.placement is Placement.BINPACK
    assert limits.facts.card("H200") is not None


def test_an_installed_package_brings_its_own_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_missing_file_is_told_from_a_bad_one(folder: Path) -> None:
    (folder / POLICY_FILE).unlink()
    change(folder / GPU_FACTS_FILE, "version: v1", "version: v9")
    with pytest.raises(UnreadableFile) as raised:
        load_limits(folder)
    assert [problem.rule for problem in raised.value.problems] == [
        "file-missing",
        "version-unknown",
    ]


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
    assert not files.wrong
    assert placement(files) is Placement.SPREAD


def test_a_config_map_that_is_swapped_is_seen(folder: Path, tmp_path: Path) -> None:
    """A kubelet swaps one symbolic link, `..data`; the new files may have the size and times of the
    old ones."""
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


# What a limits file holds becomes limits, or every problem in it with a path and a remedy.

CAPABILITY = {
    "compute_capability": "9.0",
    "clients": 48,
    "cores_per_sm": 128,
    "context_base_mib": 28,
    "context_per_sm_kib": 3772,
    "server_mib": 76,
    "sm_granularity": 2,
    "sm_minimum": 8,
    "measured": True,
    "source": "a test",
}
CARD = {
    "name": "NVIDIA H200",
    "short": "H200",
    "compute_capability": "9.0",
    "memory_mib": 143155,
    "sms": 132,
    "measured": True,
    "source": "a test",
}
FACTS_DATA = {"version": "v1", "capabilities": [CAPABILITY], "cards": [CARD]}


def test_a_complete_policy_is_read() -> None:
    assert read_policy(copy.deepcopy(POLICY_DATA), "policy.yaml") == POLICY


@pytest.mark.parametrize("key", ["sms", "memory_mib", "measured", "source"])
def test_a_number_in_quotes_or_a_fact_without_a_source_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_gpu_facts({**FACTS_DATA, "cards": [{**CARD, key: {"source": ""}.get(key, "1")}]}, "a")
    assert [problem.where for problem in raised.value.problems] == [f"cards[0].{key}"]


@given(ANY_JSON)
def test_any_json_is_limits_or_problems(data: object) -> None:
    for read in (read_policy, read_gpu_facts):
        held = outcome(read, data)
        if isinstance(held, InvalidInput):
            assert held.problems
            assert all(problem.remedy for problem in held.problems)


def outcome(
    read: Callable[[object, str], Policy | GpuFacts], data: object
) -> Policy | GpuFacts | InvalidInput:
    try:
        return read(data, "a file")
    except InvalidInput as error:
        return error


SMALL = replace(POLICY, resources=replace(POLICY.resources, memory_unit_mib=128))
RENAMED = replace(SPREAD, resources=replace(POLICY.resources, memory="example.com/vram"))


@pytest.mark.parametrize("later", [SMALL, RENAMED])
def test_resources_stay_those_of_the_start_and_the_rest_of_the_policy_counts(later: Policy) -> None:
    in_force = [POLICY]
    policy = PinnedResources(lambda: in_force[-1], logger())
    assert policy() is POLICY
    in_force.append(later)
    with told_lines() as said:
        pinned = policy()
        assert policy() is pinned
    assert [line["event"] for line in said] == ["resources kept"]
    assert pinned == replace(later, resources=POLICY.resources)
    in_force.append(SPREAD)
    assert policy() == SPREAD
