"""`mpsd check` as people and machines see it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.asking import Done, ask

LIMITS = Path(__file__).parents[2] / "limits"


def check(*arguments: str, **environment: str) -> Done:
    return ask("check", *arguments, **environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("policy.yaml", "gpus.yaml"):
        shutil.copy(LIMITS / name, tmp_path / name)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_sound_files_say_in_a_line_each_what_is_in_force() -> None:
    done = check(str(LIMITS))
    assert (done.returncode, done.stderr) == (0, "")
    policy, facts = done.stdout.splitlines()
    assert policy.startswith(
        f"{LIMITS / 'policy.yaml'}: aliyun.com/gpu-mem in GiB, binpack placement, "
    )
    assert facts.startswith(f"{LIMITS / 'gpus.yaml'}: ")
    assert "the largest is NVIDIA B300" in facts


def test_every_fault_of_both_files_is_said_and_the_answer_is_no(folder: Path) -> None:
    change(folder / "policy.yaml", "placement: binpack", "placment: binpack")
    change(folder / "gpus.yaml", "clients: 48, cores_per_sm: 64", 'clients: "48", cores_per_sm: 0')
    done = check(str(folder))
    assert (done.returncode, done.stdout) == (1, "")
    for said in (
        "placement: is missing",
        'placment is "binpack": is not a field here',
        "capabilities[0].cores_per_sm is 0",
    ):
        assert said in done.stderr


def test_rules_of_admission_that_are_left_out_are_listed_with_their_shipped_mode(
    folder: Path,
) -> None:
    change(folder / "policy.yaml", "    host-pid: warn", "    #")
    change(folder / "policy.yaml", "    privileged: enforce", "    #")
    done = check(str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert "shipped mode: privileged: enforce, host-pid: warn" in done.stdout
    policy, facts = json.loads(check(str(folder), "-o", "json").stdout)
    assert policy["rules_by_default"] == {"privileged": "enforce", "host-pid": "warn"}
    assert "rules_by_default" not in facts


def test_one_bad_file_does_not_hide_what_the_other_puts_in_force(folder: Path) -> None:
    change(folder / "policy.yaml", "version: v1", "version: v1\n\tx: 1")
    done = check(str(folder))
    assert done.returncode == 1
    assert "gpus.yaml: 9 compute capabilities" in done.stdout
    assert "policy.yaml: 1 problem\n  line 3, column 1" in done.stderr


def test_machines_get_one_record_a_file(folder: Path) -> None:
    change(folder / "policy.yaml", "memory_unit_mib: 1024", "memory_unit_mib: 0")
    done = check(str(folder), "-o", "json")
    assert (done.returncode, done.stderr) == (1, "")
    policy, facts = json.loads(done.stdout)
    assert policy["file"] == str(folder / "policy.yaml")
    assert not policy["sound"]
    assert [problem["where"] for problem in policy["problems"]] == ["resources.memory_unit_mib"]
    assert facts["sound"]
    assert facts["problems"] == []
