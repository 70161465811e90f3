"""The launcher's text: it says what was chosen, however that is written."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.core.runtime_launcher import launcher


@given(*[st.text()] * 4)
def test_every_choice_arrives_as_it_was_made(folder: str, run_directory: str, next_runtime: str, log: str) -> None:
    text = launcher("/usr/bin/python3", folder, run_directory, next_runtime, log)
    text.encode("ascii")
    values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert {folder, run_directory, next_runtime, log} == set(values)
    assert text.splitlines()[0] == "#!/usr/bin/python3 -IS"


@pytest.mark.parametrize("python", ["python3", "", "/usr/my python", "/usr/bin/python\n", "/" + "x" * 300])
def test_a_python_that_no_first_line_can_name_is_refused(python: str) -> None:
    with pytest.raises(ValueError, match="the path of Python"):
        launcher(python, "/x", "/run/mpsd", "", "/log")
