"""What stands in a line of the log, for machines and for people."""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform import logs
from tests.told_lines import told_lines


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with told_lines():
        yield


def test_a_json_line_has_the_fields_then_the_event_its_level_and_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("json")
    logs.logger(role="control").warning(
        "domain ended", domain="gpu0", pid=7, gpus=("a", "b"), seen={1}
    )
    said = capsys.readouterr()
    line = json.loads(said.err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line.pop("timestamp"))
    fields = {"role": "control", "domain": "gpu0", "pid": 7, "gpus": ["a", "b"], "seen": "{1}"}
    assert line == fields | {"event": "domain ended", "level": "warning"}
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_fault_is_told_with_its_traceback_and_as_one_json_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("json")
    try:
        raise ValueError("of this test")
    except ValueError as error:
        logs.logger().error("not ended", exc_info=error)
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert line["level"] == "error"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: of this test")


@given(st.text())
def test_what_a_tenant_names_cannot_end_a_line_or_colour_a_terminal(text: str) -> None:
    line = {"event": "ended", "level": "info", "timestamp": "now", "program": text}
    for shown in (
        logs.as_text(line),
        logs.as_text(line, coloured=True).replace("\x1b[32m", "").replace("\x1b[0m", ""),
    ):
        assert len(shown.splitlines()) == 1
        assert shown.isprintable()


def test_a_silent_program_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    logs.be_silent()
    logs.logger().error("nobody asked")
    assert capsys.readouterr() == ("", "")
