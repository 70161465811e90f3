"""`mpsd explain --env` as people and machines see it: its streams and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from mpsd.operations.explain.manifest import facts_of
from tests.cli.asking import ask
from tests.model.manifests import FACTS

SHARE = ["-e", "ALIYUN_COM_GPU_MEM_CONTAINER=6", "-e", "ALIYUN_COM_GPU_MEM_DEV=15"]
EGPU = "EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,MEM=3276,WEIGHT=10"
UUID = "GPU-28df2127-fac9-f8fd-77de-e461c85c8ef2"


def explained(*arguments: str, code: int = 0) -> dict[str, Any]:
    done = ask("explain", "-o", "json", *arguments)
    assert (done.returncode, done.stderr) == (code, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_share_is_said_in_bytes_and_mib_with_what_differs_on_mps() -> None:
    done = ask("explain", *SHARE, "-e", "ALIYUN_COM_GPU_SCHD_WEIGHT=2", "--gpu", "A10")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "the environment asks in the words of cGPU\n  gpu0, NVIDIA A10: 9475771596 bytes (9036"
        " MiB), no cap on its threads\n    policy 2, weighted preemptive: no cap, and the weight"
        " only counts towards max_inst: MPS has no weights"
    )
    assert "    MPS counts whole MiB, so the limit is 838860 bytes less\n" in done.stdout


def test_a_record_has_every_card() -> None:
    answer = explained("--env", EGPU, "-e", "NVIDIA_VISIBLE_DEVICES=0,1", "--gpu", "V100")
    assert (answer["dialect"], answer["admitted"]) == ("EGPU", True)
    card = answer["cards"][1]
    assert (card["gpu"], card["name"]) == ("gpu1", "Tesla V100-SXM2-32GB")
    assert (card["memory_bytes"], card["memory_mib"]) == (3276 * 1024**2, 3276)
    assert (card["thread_percent"], card["sms"], card["weight"]) == (10, 8, 10)


def test_everything_that_is_wrong_is_said_and_the_exit_code_is_1() -> None:
    more = "-e ALIYUN_COM_GPU_MEM_DEV=15G -e NVIDIA_VISIBLE_DEVICES=0,7 --gpu 4xA10"
    wrong = [*SHARE, *more.split()]
    done = ask("explain", *wrong)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("the environment is refused, 2 problems\n")
    problems = explained(*wrong, code=1)["problems"]
    assert [problem["where"] for problem in problems] == [
        "ALIYUN_COM_GPU_MEM_DEV",
        "NVIDIA_VISIBLE_DEVICES",
    ]


def test_a_switch_that_is_off_is_named_and_the_exit_code_is_0() -> None:
    done = ask("explain", "-e", "AMP_VGPU_ENABLE=0", *SHARE, "--gpu", "T4")
    assert (done.returncode, done.stderr) == (0, "")
    said = 'nothing is asked, and the container is left as it is: AMP_VGPU_ENABLE is "0", not 1\n'
    assert done.stdout == said
    assert explained("-e", "PATH=/bin", "--gpu", "T4")["remark"].startswith(
        "nothing is asked: no variable of"
    )


def test_an_env_file_is_read_and_the_command_line_beats_it(tmp_path: Path) -> None:
    file = tmp_path / "container.env"
    file.write_text(
        f"# eGPU\nAMP_VGPU_ENABLE=1\nGPU_MEM_PER_DEVICE=1\nNVIDIA_VISIBLE_DEVICES=3,{UUID}\n"
    )
    answer = explained("-e", "GPU_MEM_PER_DEVICE=2000000000", "-e", str(file), "--gpu", "V100")
    assert [card["gpu"] for card in answer["cards"]] == ["gpu3", "gpu0"]
    assert [card["memory_bytes"] for card in answer["cards"]] == [1989514240] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (SHARE, "--gpu: is needed with --env; write one of V100"),
        (["-e", "nowhere.env", "--gpu", "T4"], "nowhere.env: 1 problem"),
    ],
)
def test_misuse_exits_with_2_and_says_why_on_standard_error_alone(
    arguments: list[str], said: str
) -> None:
    done = ask("explain", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_every_card_that_is_shipped_may_be_named_in_any_case() -> None:
    assert all(facts_of(card.short.lower(), FACTS).cards == [card] for card in FACTS.cards)
