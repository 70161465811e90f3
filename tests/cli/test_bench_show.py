"""`mpsd bench --show`: an earlier run in tables and claims; and everything that is refused before a
run."""

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
        " 20 %     2 GiB    26   80 %     arithmetic        331.0",
        " holds           a program does its SMs' part of the work, beside others",
        "cost was not measured: gpu0 is measured, but a program was placed on gpu1",
        "not run: sharing, reactions",
    ):
        assert said in done.out
    assert "played" not in done.out


def test_one_broken_claim_is_a_no(bench: Bench, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    done = bench("--show", REST, "--save", again)
    assert done.code == 1
    assert (
        " cannot tell     mpsd takes of MPS's throughput, 4 × small: 1.67 %, promised < 1"
        in done.out
    )
    assert bench("--show", again).out == done.out


def test_json_has_every_claim_and_can_be_shown_again(bench: Bench, tmp_path: Path) -> None:
    told = bench("--show", SHARES, "-o", "json").out
    claims = json.loads(told)["claims"]
    assert {claim["verdict"] for claim in claims} == {"holds", "not measured", "no limit"}
    assert claims[0]["limit"] == {"bound": "≥", "value": 10.0}
    again = tmp_path / "again.json"
    again.write_text(told)
    assert bench("--show", again, "-o", "json").out == told


def test_a_file_tells_the_terminal_nothing(bench: Bench, tmp_path: Path) -> None:
    def change(record: Any) -> None:
        record["machine"]["gpu"] = record["machine"]["driver"] = record["skipped"][0][1] = (
            "\x1b[2J[red]"
        )

    done = bench("--show", changed(tmp_path, change))
    assert "\x1b" not in done.out
    assert done.out.count("[2J[red]") >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Input data was truncated"),
        ('{"version": 1}', "version is 1: this mpsd reads version 3; use the mpsd that wrote it"),
        ('{"version": 2, "x": ' + "[" * 100_000, "not-json.json: "),
    ],
)
def test_what_is_no_benchmark_is_refused(
    text: str, said: str, bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "not-json.json"
    file.write_text(text)
    done = bench("--show", file)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_wrong_field_is_named(bench: Bench, tmp_path: Path) -> None:
    file = changed(tmp_path, lambda record: record["shares"][1].update(sms="52"))
    done = bench("--show", file)
    assert done.code == 2
    assert (
        f"{file}: shares[1].sms: is not a benchmark: Expected `int`, got `str`; name a file that"
        " `mpsd bench --save" in done.err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--save", "/no/such/folder/x.json"], "--save is /no/such/folder/x.json: there is no"),
        (["--show", str(SHARES), "shares"], "GROUP: cannot be combined with --show"),
        (["--simulate", "H999"], "H999"),
    ],
)
def test_misuse_is_refused_before_anything_is_measured(
    words: list[str], said: str, bench: Bench
) -> None:
    done = bench(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
