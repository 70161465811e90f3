"""What a line of words is read as, and what shells are offered for the last of them."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mpsd.platform import completion
from mpsd.platform.command_line import OUTPUT, Between, flag, option, read, takes
from tests.world.captured import captured
from tests.world.fork import MPSD
from tests.world.unread import full_disk, without_reader

_MPSD = f"{sys.executable} -c 'from mpsd.cli.main import main; main()'"


def _friends(given: Mapping[str, Any]) -> list[str]:
    return [name for name in ("ann", "bob") if name not in given.get("names", ())]


def _fails(given: Mapping[str, Any]) -> list[str]:
    raise OSError(f"nobody answers {given}")


@takes(
    option("names", nargs="+", metavar="NAME", help="Who.", complete=_friends),
    option("--times", type=Between(1, 3, int), metavar="N", help="How often."),
    option("--whose", metavar="NAME", help="Whose.", complete=_fails),
    flag("-q", "--quiet", help="Say nothing."),
    OUTPUT,
)
def greet(*, names: list[str], times: int = 2, quiet: bool = False, **_more: object) -> None:
    """Greet people."""


def read_of(*words: str) -> dict[str, Any]:
    return read("mpsd greet", greet, words)


def test_only_what_is_given_is_passed_on() -> None:
    assert read_of("ann") == {"names": ["ann"]}
    assert read_of("ann", "--times", "3", "-q") == {"names": ["ann"], "times": 3, "quiet": True}


def test_options_may_stand_between_arguments_and_be_joined_to_their_value() -> None:
    expected = {"names": ["ann", "bob"], "output": "json"}
    for form in (["-o", "json"], ["-ojson"], ["-o=json"], ["--output=json"]):
        assert read_of("ann", *form, "bob") == expected


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["ann", "--times", "0"], ("--times", "'0'", "from 1 to 3")),
        (["ann", "--times", "4"], ("--times", "'4'", "from 1 to 3")),
        (["ann", "--times", "nan"], ("--times", "'nan'")),
        (["ann", "--times", "1.5"], ("--times", "'1.5'", "whole number")),
        (["ann", "-o", "xml"], ("--output", "'xml'", "text, json")),
        (["ann", "--quie"], ("--quie",)),
        (["ann", "--times"], ("--times",)),
        ([], ("NAME",)),
    ],
)
def test_a_wrong_line_is_a_usage_error_that_names_what_is_wrong(
    words: list[str], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        read_of(*words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert [word for word in (*named, "mpsd greet --help") if word not in said] == []


def offered(*words: str) -> list[str]:
    *before, begun = words
    return [
        line.split("\t")[0]
        for line in completion.lines(completion.after(greet, before, begun), begun)
    ]


def test_tab_offers_options_values_and_arguments_that_are_not_there_yet() -> None:
    assert offered("--q") == ["--quiet"]
    assert offered("-o", "") == ["text", "json"]
    assert offered("ann", "") == ["bob"]
    assert offered("--quiet", "a") == ["ann"]
    assert offered("--times", "") == []


def test_tab_offers_nothing_and_says_nothing_where_nobody_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert offered("ann", "--whose", "") == []
    assert offered("--no-such-option", "--times", "x", "") == []
    assert capsys.readouterr() == ("", "")


def test_bash_completes_a_program_with_its_script(tmp_path: Path) -> None:
    program = tmp_path / "mpsd"
    program.write_text(f'#!/bin/sh\nexec {_MPSD} "$@"\n')
    program.chmod(0o755)
    script = completion.script("mpsd", "bash")
    line = "COMP_WORDS=(mpsd explain --g) COMP_CWORD=2"
    asks = f'PATH="{tmp_path}:$PATH"\n{script}\n{line}\n_mpsd_offers\necho "${{COMPREPLY[@]}}"'
    done = captured(["bash", "-c", asks])
    assert done.stdout == "--gpu\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(shell: str, tmp_path: Path) -> None:
    if not (program := shutil.which(shell)):
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(completion.script("mpsd", shell))
    subprocess.run([program, "-n", script], timeout=30, check=True)


def test_a_verb_whose_reader_has_gone_ends_without_a_word() -> None:
    with without_reader() as stdout:
        done = subprocess.run(
            [MPSD, "--show-completion", "bash"], stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_verb_whose_output_no_disk_takes_says_so() -> None:
    with full_disk() as stdout:
        done = subprocess.run(
            [MPSD, "--show-completion", "bash"], stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert os.strerror(errno.ENOSPC).encode() in done.stderr
