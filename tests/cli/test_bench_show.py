"""`mpsd bench --show`: earlier runs in tables, claims and pictures; and everything that is refused before a run."""

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mpsd.cli.main import main

DATA = Path(__file__).parents[1] / "data" / "bench"
SHARES, REST = DATA / "shares.json", DATA / "rest.json"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Bench = Callable[..., Done]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    def run(*words: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["mpsd", "bench", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run


def changed(folder: Path, change: Callable[[Any], object]) -> Path:
    """A copy of shares.json that is otherwise in one thing."""
    record = json.loads(SHARES.read_text())
    change(record)
    file = folder / "changed.json"
    file.write_text(json.dumps(record))
    return file


def test_an_earlier_run_is_shown_with_its_claims(bench: Bench) -> None:
    done = bench("--show", SHARES)
    assert (done.code, done.err) == (0, "")
    for said in (
        "NVIDIA H200, 139.7 GiB, 132 SMs, driver 580.159.04, CUDA 13.0",
        " 20 %    26   80 %     arithmetic        331.0",
        "nvidia-cuda-mps-server",
        " holds           a program does its SMs' part of the work, beside others",
        "torch was not measured: torchvision is not installed",
        "not run: sharing, ratio, sizes, cost, clients, priority, reactions",
    ):
        assert said in done.out
    assert "played" not in done.out


def test_runs_of_different_parts_are_shown_together_and_one_broken_claim_is_a_no(bench: Bench, tmp_path: Path) -> None:
    both = tmp_path / "both.json"
    done = bench("--show", SHARES, "--show", REST, "--save", both)
    assert done.code == 1
    assert " cannot tell     mpsd takes of MPS's throughput, 4 × small: 1.67 %, promised < 1" in done.out
    assert "2026-11-22T05:00:00Z/2026-11-22T06:00:00Z" in done.out
    assert "torch was not measured" not in done.out
    assert bench("--show", both).out == done.out


def test_json_has_every_claim_and_can_be_shown_again(bench: Bench, tmp_path: Path) -> None:
    told = bench("--show", SHARES, "-o", "json").out
    claims = json.loads(told)["claims"]
    assert {claim["verdict"] for claim in claims} == {"holds", "not measured"}
    assert claims[0]["limit"] == {"bound": "≥", "value": 10.0}
    again = tmp_path / "again.json"
    again.write_text(told)
    assert bench("--show", again, "-o", "json").out == told


def test_figures_that_are_played_are_said_to_be(bench: Bench, tmp_path: Path) -> None:
    played = changed(tmp_path, lambda record: record["machine"].update(simulated=True))
    assert "These figures are simulated" in bench("--show", played).out


def test_a_file_tells_the_terminal_nothing(bench: Bench, tmp_path: Path) -> None:
    def change(record: Any) -> None:
        record["machine"]["gpu"] = record["listed"] = record["skipped"][0][1] = "\x1b[2J[red]"

    done = bench("--show", changed(tmp_path, change))
    assert "\x1b" not in done.out
    assert done.out.count("[2J[red]") >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Input data was truncated"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `version`"),
        ('{"version": 2}', "version is 2: this mpsd reads version 1; use the mpsd that wrote it"),
        ('{"version": 1}', "missing required field"),
        ("\udcff", "JSON is malformed"),
        ('{"version": 1, "x": ' + "[" * 100_000, "not-json.json: "),
    ],
)
def test_what_is_no_benchmark_is_refused(text: str, said: str, bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "not-json.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    done = bench("--show", file)
    assert (done.code, done.out) == (2, "")
    assert str(file) in done.err
    assert said in done.err


def test_a_wrong_field_is_named(bench: Bench, tmp_path: Path) -> None:
    file = changed(tmp_path, lambda record: record["shares"][1].update(sms="52"))
    done = bench("--show", file)
    assert done.code == 2
    assert (
        f"{file}: shares[1].sms: is not a benchmark: Expected `int`, got `str`; name a file that `mpsd bench --save"
        in done.err
    )


def test_files_that_are_not_there_are_all_named(bench: Bench, tmp_path: Path) -> None:
    done = bench("--show", tmp_path, "--show", tmp_path / "none.json")
    assert done.code == 2
    assert "Is a directory" in done.err
    assert "none.json: No such file" in done.err


def test_runs_of_other_machines_or_of_the_same_part_do_not_go_together(bench: Bench, tmp_path: Path) -> None:
    other = changed(tmp_path, lambda record: record["machine"].update(gpu="NVIDIA A30"))
    done = bench("--show", SHARES, "--show", other)
    assert done.code == 2
    assert 'machine.gpu is "NVIDIA A30": is not "NVIDIA H200", as in' in done.err
    assert f"shares: is in {SHARES} too, and a part is shown of one run; leave one of the files out" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--plot", "picture.gif"],
            "--plot is picture.gif: is not a supported picture format; end the name with .png or",
        ),
        (["need", "--plot", "picture.png"], "has nothing to show of these parts; leave it out, or measure clients, "),
        (["--save", "/no/such/folder/x.json"], "--save is /no/such/folder/x.json: there is no folder"),
        (["--window", "nan"], "--window: is 'nan'; write a number from 0.05 to 600"),
        (["--show", str(SHARES), "need"], "PART: cannot be combined with --show"),
        (["--simulate", ""], "names no GPUs"),
        (["--simulate", "H999"], "H999"),
        (["speed"], "speed"),
    ],
)
def test_misuse_is_refused_before_anything_is_measured(words: list[str], said: str, bench: Bench) -> None:
    done = bench(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_who_called_it_adopts_no_orphans_afterwards(bench: Bench) -> None:
    bench("--simulate", "H999")
    adopts = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert adopts.value == 0


def test_help_teaches_by_example(bench: Bench) -> None:
    assert "mpsd bench need --simulate H200" in bench("--help").out


# -- pictures ------------------------------------------------------------------------------------------------------


def test_without_matplotlib_the_extra_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = bench("--show", SHARES, "--plot", tmp_path / "x.png")
    assert (done.code, done.out) == (2, "")
    assert "pip install '.[bench]'" in done.err


def test_what_was_measured_is_drawn(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
    picture = tmp_path / "all.svg"
    assert bench("--show", SHARES, "--show", REST, "--plot", picture).code == 1
    assert picture.read_bytes().startswith(b"<?xml")


def test_where_nothing_can_be_drawn_that_is_said(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
    bare = changed(tmp_path, lambda record: record.pop("shares"))
    done = bench("--show", bare, "--plot", tmp_path / "x.png")
    assert done.code == 2
    assert "nothing was measured that can be drawn" in done.err
