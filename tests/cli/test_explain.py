"""`mpsd explain` as people and machines see it: its streams and its exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import ask
from tests.world.captured import captured

MANIFESTS = Path(__file__).parents[1] / "data" / "manifests"
SAMPLE, SEVERAL, TWO_GPUS = (
    str(MANIFESTS / f"{name}.yaml") for name in ("mps-sample", "several", "two-gpus")
)
PROGRAM = [sys.executable, "-c", "from mpsd.cli.main import main; main()"]


def program(
    *arguments: str, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """`mpsd` as a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MPSD_")}
    return captured([*PROGRAM, *arguments], input=given, env=clean | environment, check=False)


def explained(*arguments: str, given: str = "", code: int = 0) -> list[dict[str, Any]]:
    """What `mpsd explain -o json` says."""
    done = ask("explain", "-o", "json", *arguments, given=given)
    assert (done.returncode, done.stderr) == (code, "")
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def test_the_published_sample_is_admitted_with_its_limits_and_environment() -> None:
    (job,) = explained("-f", SAMPLE)
    assert (job["object"], job["admitted"], job["problems"]) == ("Job default/mps-sample", True, [])
    assert [warning["rule"] for warning in job["warnings"]] == ["host-pid", "host-root"]
    assert job["limits"] == [{"container": "mps-sample", "memory_mib": 7168, "thread_percent": 100}]
    environment = job["environment"]["mps-sample"]
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mpsd/client"


def test_every_object_of_every_file_is_said_and_one_refusal_is_a_no() -> None:
    verdicts = explained("-f", SEVERAL, "-f", SAMPLE, code=1)
    assert [(verdict["object"], verdict["admitted"]) for verdict in verdicts] == [
        ("ConfigMap train-env", True),
        ("Deployment prod/infer", True),
        ("CronJob default/nightly", False),
        ("Job default/mps-sample", True),
    ]
    assert [warning["rule"] for warning in verdicts[1]["warnings"]] == [
        "environment-unseen",
        "host-root",
        "host-root",
    ]
    assert [problem["rule"] for problem in verdicts[2]["problems"]] == [
        "quantity-malformed",
        "percent-step",
        "host-ipc-missing",
        "environment-blocked",
    ]


def test_a_gpu_model_says_how_many_sms_and_what_the_context_leaves() -> None:
    (verdict,) = explained("-f", SAMPLE, "--gpu", "h200")
    (limit,) = verdict["limits"]
    assert (limit["gpu"], limit["sms"]) == ("NVIDIA H200", 132)
    assert (limit["context_mib"], limit["left_mib"]) == (514, 6654)


def test_a_request_is_refused_that_the_named_gpu_cannot_hold() -> None:
    large = Path(SAMPLE).read_text().replace("gpu-mem: 7", "gpu-mem: 15")
    (verdict,) = explained("-f", "-", "--gpu", "T4", given=large, code=1)
    assert [problem["rule"] for problem in verdict["problems"]] == ["memory-over-card"]
    assert explained("-f", "-", "--gpu", "A10", given=large)[0]["admitted"]


def test_people_read_what_a_pod_gets_in_plain_words() -> None:
    done = program("explain", "-f", SAMPLE, "--gpu", "H200")
    assert (done.returncode, done.stderr) == (0, "")
    name, words, on_this_gpu = done.stdout.splitlines()[:3]
    assert name == "Job default/mps-sample is admitted"
    assert words.startswith("  container mps-sample gets 7 GiB of one GPU, CUDA's own context ")
    assert "is 132 of 132 SMs; a context takes 514 MiB and leaves 6654 MiB" in on_this_gpu


def test_people_read_how_a_request_is_divided() -> None:
    words = ask("explain", "-f", TWO_GPUS).stdout.splitlines()[1]
    assert words.startswith("  container wide gets 7 GiB of each of 2 GPUs, ")
    assert words.endswith(" and 30 % of its threads, reserved for it")


def test_people_read_every_problem_with_place_value_and_remedy() -> None:
    done = ask("explain", "-f", SEVERAL)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "ConfigMap train-env is admitted: asks for no GPU"
    assert "CronJob default/nightly is refused, 4 problems" in lines
    template = "spec.jobTemplate.spec.template.spec"
    assert (
        f'  {template}.containers[train].resources.limits[aliyun.com/gpu-mem] is "40Gb": '
        "is not a Kubernetes quantity; write whole GiB, such as 40" in lines
    )


def test_no_colours_and_no_folding_reach_a_pipe() -> None:
    done = program("explain", "-f", SEVERAL, COLUMNS="40", TERM="xterm-256color")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 100


def test_what_a_manifest_says_reaches_the_terminal_as_text_only() -> None:
    pod = '{kind: "Pod", metadata: {name: "\\e[31mred [bold]x[/bold]"}, spec: {}}'
    done = ask("explain", "-f", "-", given=pod)
    assert "Pod default/\\x1b[31mred [bold]x[/bold] is refused" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["-f", SAMPLE, "--gpu", "H1000"],
            '"H1000": is not a card in gpus.yaml; write one of',
        ),
        (["-f", SAMPLE, "--limits", "nowhere"], "nowhere/policy.yaml"),
        ([], "-f or --env: one of them is needed, and not both"),
        (["-f", "-"], "holds no object"),
    ],
)
def test_misuse_exits_with_2_and_says_why_on_standard_error_alone(
    arguments: list[str], said: str
) -> None:
    done = ask("explain", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_machines_read_of_unreadable_files_beside_the_verdicts_on_the_others() -> None:
    done = ask("explain", "-o", "json", "-f", "one.yaml", "-f", SAMPLE)
    assert done.returncode == 2
    assert "one.yaml" in done.stderr
    sample, unread = json.loads(done.stdout)
    assert (sample["object"], sample["admitted"]) == ("Job default/mps-sample", True)
    assert (unread["object"], unread["admitted"]) == ("one.yaml", False)
    assert [problem["rule"] for problem in unread["problems"]] == ["file-missing"]
    assert unread.keys() == sample.keys()


def test_other_limits_can_be_named_by_flag_or_variable(tmp_path: Path) -> None:
    for name in ("policy.yaml", "gpus.yaml"):
        text = (
            (Path("limits") / name).read_text().replace("aliyun.com/gpu-mem ", "example.com/mem ")
        )
        (tmp_path / name).write_text(text)
    assert "asks for no GPU" in ask("explain", "-f", SAMPLE, "--limits", str(tmp_path)).stdout
    assert "asks for no GPU" in ask("explain", "-f", SAMPLE, MPSD_LIMITS=str(tmp_path)).stdout


def by_priority(folder: Path, how: str) -> None:
    """Limits that give priorities."""
    shutil.copy("limits/gpus.yaml", folder)
    shipped = Path("limits/policy.yaml").read_text()
    (folder / "policy.yaml").write_text(shipped.replace("\n  by: none ", f"\n  by: {how} "))


def asking_pod(metadata: str, spec: str = "") -> str:
    main = "containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 7}}}]"
    return (
        f"{{apiVersion: v1, kind: Pod, metadata: {{name: a, {metadata}}}, spec: {{hostIPC: true,"
        f" {spec} {main}}}}}"
    )


BELOW = "annotations: {mpsd.io/gpu-priority: below-normal}"


@pytest.mark.parametrize(
    ("how", "metadata", "spec", "priority", "said"),
    [
        ("annotation", BELOW, "", 1, "is below normal: its annotation"),
        ("priority-class", "labels: {}", "", 0, "is normal: its priority 0 is not under 0"),
        (
            "priority-class",
            "labels: {}",
            "priorityClassName: batch,",
            None,
            "the value of its PriorityClass batch: ",
        ),
        ("none", BELOW, "priority: -1,", None, ""),
    ],
)
def test_a_pod_gets_the_priority_that_the_policy_gives_it_with_the_reason(
    tmp_path: Path, how: str, metadata: str, spec: str, priority: int | None, said: str
) -> None:
    by_priority(tmp_path, how)
    pod = asking_pod(metadata, spec)
    (record,) = explained("-f", "-", "--limits", str(tmp_path), given=pod)
    assert record["priority"] == priority
    expected = None if priority is None else str(priority)
    assert record["environment"]["main"].get("CUDA_MPS_CLIENT_PRIORITY") == expected
    text = ask("explain", "-f", "-", "--limits", str(tmp_path), given=pod).stdout
    assert said in text if said else "priority" not in text


def test_an_exempt_namespace_and_a_rule_that_only_notes_are_said(tmp_path: Path) -> None:
    shutil.copy("limits/gpus.yaml", tmp_path)
    (tmp_path / "policy.yaml").write_text(
        Path("limits/policy.yaml").read_text().replace("host-pid: warn ", "host-pid: audit")
    )
    sample = Path(SAMPLE).read_text()
    said = ask("explain", "-f", "-", "--limits", str(tmp_path), given=sample).stdout
    assert (
        "\n  note spec.template.spec.hostPID is true: shows the pod its neighbours' processes"
        in said
    )
    exempt = sample.replace("metadata:\n", "metadata:\n  namespace: kube-system\n", 1)
    assert (
        ask("explain", "-f", "-", given=exempt).stdout
        == "Job kube-system/mps-sample is admitted: namespace kube-system is exempt\n"
    )


def test_help_teaches_by_example_without_loading_any_verb() -> None:
    overview = ask("--help")
    assert overview.returncode == 0
    assert "mpsd explain -f job.yaml --gpu H200" in overview.stdout
    verb = ask("explain", "--help")
    assert "kubectl get pods -A -o yaml | mpsd explain -f - -o json" in verb.stdout


def test_a_mistyped_verb_is_recognised() -> None:
    done = ask("explan")
    assert done.returncode == 2
    assert "'explain'" in done.stderr


def test_a_closed_standard_input_is_an_unreadable_file() -> None:
    command = f"exec {sys.executable} -c 'from mpsd.cli.main import main; main()' explain -f - <&-"
    done = captured(["bash", "-c", command], check=False)
    assert done.returncode == 2
    assert "standard input: 1 problem" in done.stderr


def test_a_terminal_that_knows_ascii_alone_gets_the_rest_escaped() -> None:
    pod = "{kind: Pod, metadata: {name: é}, spec: {}}"
    done = program("explain", "-f", "-", given=pod, PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
