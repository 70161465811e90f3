"""The transcripts of real hardware, taken apart, so that the tests type no expectation a second
time."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "transcripts"

_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNKNOWN_UUID = "GPU-00000000-0000-0000-0000-000000000000"
_CLIENT = re.compile(r"\$ client (?P<environment>\{.*\})? ?\((?P<arguments>.*)\)")
_RESULT = re.compile(r"  pid (?P<pid>\d+) rc=(?P<exit>-?\d+): (?P<line>.*)")
_COMMAND_END = re.compile(r"(?P<last>.*?)(?:\[stderr (?P<error>.*)\])? *\[rc=(?P<exit>\d+)\]")


@dataclass(frozen=True, slots=True)
class Transcript:
    """One file; its UUIDs are replaced by those of the machine that a test plays it on."""

    text: str

    def section(self, title: str) -> str:
        """What stands under the heading that begins with `title`."""
        found = re.search(
            rf"^######## {re.escape(title)}.*?\n(.*?)(?=^######## |\Z)",
            self.text,
            re.DOTALL | re.MULTILINE,
        )
        assert found, title
        return found[1]


@dataclass(frozen=True, slots=True)
class AskedCommand:
    """A control command and what came of it; `output` without the white space around it."""

    line: str
    output: str
    error: str
    exit: int


@dataclass(frozen=True, slots=True)
class RanClient:
    """A CUDA process and what it printed."""

    environment: Mapping[str, str]
    arguments: Sequence[str]
    exit: int
    lines: Sequence[Mapping[str, Any]]

    @property
    def title(self) -> str:
        return " ".join(
            [*(f"{name}={value}" for name, value in self.environment.items()), *self.arguments]
        )


def transcript(number: int, uuids: Sequence[str]) -> Transcript:
    """The transcript with this number, as if its GPUs were those with these UUIDs."""
    (path,) = FOLDER.glob(f"h200-r580-{number}-*.txt")
    text = path.read_text()
    theirs = [uuid for uuid in dict.fromkeys(_UUID.findall(text)) if uuid != _UNKNOWN_UUID]
    for there, here in zip(theirs, uuids, strict=False):
        text = (
            text.replace(there, here).replace(there[:22], here[:22]).replace(there[:12], here[:12])
        )
    return Transcript(text)


def steps(section: str) -> Iterator[AskedCommand | RanClient]:
    """The commands (`> x`) and clients (`$ client x`) of a section, in order."""
    lines = section.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("> "):
            yield _asked(line[2:], lines[number + 1 :])
        elif match := _CLIENT.fullmatch(line):
            environment = ast.literal_eval(match["environment"] or "{}")
            yield _ran(
                environment, ast.literal_eval(f"({match['arguments']})") or (), lines[number + 1 :]
            )


def commands(section: str) -> Iterator[AskedCommand]:
    """The commands of a section alone."""
    return (step for step in steps(section) if isinstance(step, AskedCommand))


def dashed_commands(text: str) -> Iterator[AskedCommand]:
    """The commands of the first transcript (`--- x`), in order."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("--- "):
            yield _asked(line[4:], lines[number + 1 :])


def _asked(command: str, following: Sequence[str]) -> AskedCommand:
    output: list[str] = []
    for line in following:
        end = _COMMAND_END.fullmatch(line)
        if end:
            error = end["error"] or ""
            output.append(end["last"])
            # the first transcript does not say which stream a line came from
            if int(end["exit"]) and not error:
                return AskedCommand(command, "", "\n".join(output).strip(), int(end["exit"]))
            return AskedCommand(command, "\n".join(output).strip(), error, int(end["exit"]))
        output.append(line)
    raise AssertionError(f"no end after {command}")


def _ran(
    environment: Mapping[str, str], arguments: Sequence[str], following: Sequence[str]
) -> RanClient:
    first = _RESULT.fullmatch(following[0])
    assert first, following[0]
    lines = [json.loads(first["line"])]
    for line in following[1:]:
        if not line.startswith('{"'):
            break
        lines.append(json.loads(line))
    return RanClient(environment, arguments, int(first["exit"]), lines)
