"""The launcher's text: it says what was chosen, however that is written."""

import ast
import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.engines.launcher import launcher

PRINTABLE = st.text("".join(char for char in string.printable if char.isprintable()))


@given(st.text(), st.text(), PRINTABLE, st.text(), PRINTABLE)
def test_every_choice_arrives_as_it_was_made(
    folder: str, run_directory: str, next_runtime: str, log: str, python: str
) -> None:
    text = launcher(f"/{python}", folder, run_directory, next_runtime, log)
    text.encode("ascii")
    lines = text.splitlines()
    called = shlex.split(lines[-1])
    assert called[:3] == ["exec", f"/{python}", "-ISc"]
    assert called[4:] == ["$0", "$@"]
    values = [
        node.value for node in ast.walk(ast.parse(called[3])) if isinstance(node, ast.Constant)
    ]
    assert {folder, run_directory, next_runtime, log, 0} == set(values)
    (following,) = (line for line in lines if "mpsd_next in" in line)
    usual = ["nvidia-container-runtime", "runc"]
    assert shlex.split(following)[3:] == [
        *([next_runtime] if next_runtime else usual)[:-1],
        *_last(next_runtime),
    ]


def _last(next_runtime: str) -> list[str]:
    """The last of the names, and what the shell has behind it."""
    return shlex.split(f"{shlex.quote(next_runtime or 'runc')}; do")


@pytest.mark.parametrize(
    ("python", "next_runtime"),
    [("python3", ""), ("", ""), ("/usr/bin/python\n", ""), ("/usr/bin/python", "rünc")],
)
def test_what_no_script_can_name_is_refused(python: str, next_runtime: str) -> None:
    with pytest.raises(ValueError, match=r"the path of Python|the next runtime"):
        launcher(python, "/x", "/run/mpsd", next_runtime, "/log")
