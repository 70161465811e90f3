"""A container as its user has it: what its program said, how it ended, and what the runtime's verbs
say of it.

One rule: every verb goes through mpsd-runtime, as an engine's would; only the clean-up asks runc
itself.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.host.bundle import RUNC, Bundle
from tests.whole.machine.machine import SOON_S, eventually

Line = Mapping[str, Any]
_MOST_KILLS = 10  # of one question to runc, by a test that kills whatever runc does


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended. output: its standard output; errors: its standard error."""

    code: int
    output: str
    errors: str

    @property
    def lines(self) -> list[Line]:
        return json_lines(self.output)

    def heard(self, key: str) -> Any:
        """The value of `key` in the first line that has it, which there must be."""
        found = [line[key] for line in self.lines if key in line]
        assert found, f"never said {key!r}: {self}"
        return found[0]


def json_lines(text: str) -> list[Line]:
    """One JSON object a line; a line that is not whole yet, or is none, is left out."""
    return [
        json.loads(line)
        for line in text.splitlines(keepends=True)
        if line.startswith("{") and line.endswith("}\n")
    ]


def ended(
    argv: Sequence[str | Path], environment: Mapping[str, str], within_s: float = SOON_S
) -> Ended:
    """The command, once it has ended."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Container:
    """One bundle under one name. launcher: mpsd-runtime; root: the runtime's folder of state."""

    def __init__(
        self, launcher: Path, root: Path, name: str, bundle: Bundle, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.bundle = bundle
        self._launcher = launcher
        self._root = root
        self._environment = environment
        self._said = bundle.folder / "said"

    def __str__(self) -> str:
        return (
            f"container {self.name}, {self.status or 'not there'}, said {self.output!r} and"
            f" {self.errors!r}"
        )

    # -- verbs

    def create(self) -> Ended:
        """`create`; the container's process has its output and errors in files, as the runtime
        itself."""
        return self._in_files("create", "--bundle", self.bundle.folder, self.name)

    def run(self, within_s: float = SOON_S) -> Ended:
        """`run`, until the container has ended."""
        return self._in_files("run", "--bundle", self.bundle.folder, self.name, within_s=within_s)

    def start(self) -> Ended:
        return self._ask("start", self.name)

    def exec(self, *command: str, options: Sequence[str] = ()) -> Ended:
        return self._ask("exec", *options, self.name, *command)

    def send(self, signum: signal.Signals) -> Ended:
        return self._ask("kill", self.name, signum.name.removeprefix("SIG"))

    def delete(self, *, force: bool = False) -> Ended:
        return self._ask("delete", *(["--force"] if force else []), self.name)

    def held(self) -> "Container":
        """Created, started, and its program says that it is ready."""
        for done in (self.create(), self.start()):
            assert done.code == 0, f"{done}; {self}"
        self.heard("ready")
        return self

    def remove(self) -> None:
        """Whatever it is doing; the poststop hook of its bundle runs."""
        subprocess.run(
            [RUNC, "--root", str(self._root), "delete", "--force", self.name],
            capture_output=True,
            timeout=SOON_S,
        )

    # -- what is seen

    @property
    def output(self) -> str:
        return self._text("out")

    @property
    def errors(self) -> str:
        return self._text("err")

    @property
    def lines(self) -> list[Line]:
        return json_lines(self.output)

    @property
    def state(self) -> Mapping[str, Any]:
        """runc's word on it; empty where runc does not know it."""
        asked = [RUNC, "--root", str(self._root), "state", self.name]
        for _again in range(_MOST_KILLS):
            done = subprocess.run(asked, capture_output=True, text=True, timeout=SOON_S)
            if done.returncode >= 0:
                break
        found: Mapping[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    @property
    def status(self) -> str:
        """created, running, stopped; empty where runc does not know it."""
        return str(self.state.get("status", ""))

    @property
    def pid(self) -> int:
        """Its first process, as this machine counts."""
        return int(self.state["pid"])

    def variables(self) -> Mapping[str, str]:
        """The environment that its first process was started with."""
        text = Path(f"/proc/{self.pid}/environ").read_bytes().decode()
        return dict(entry.split("=", 1) for entry in text.split("\0") if entry)

    def heard(self, key: str) -> Any:
        """The value of `key` in the first line that has it, waiting for that; fails when it ends
        without one."""

        def look() -> list[Any]:
            over = self.status != "running"
            found = [line[key] for line in self.lines if key in line]
            assert found or not over, f"never said {key!r}: {self}"
            return found

        return eventually(look, f"{key!r} from {self.name}")[0]

    def until_stopped(self) -> None:
        eventually(lambda: self.status == "stopped", f"{self.name} has ended")

    def kill_outright(self) -> None:
        """SIGKILL past the runtime."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _text(self, kind: str) -> str:
        with suppress(FileNotFoundError):
            return self._said.with_suffix(f".{kind}").read_text()
        return ""

    def command(self, verb: str, *words: str | Path) -> list[str]:
        return [str(word) for word in (self._launcher, "--root", self._root, verb, *words)]

    def _ask(self, verb: str, *words: str | Path) -> Ended:
        return ended(self.command(verb, *words), self._environment)

    def _in_files(self, verb: str, *words: str | Path, within_s: float = SOON_S) -> Ended:
        """In files, because the container's process keeps them when the runtime has ended."""
        with (
            self._said.with_suffix(".out").open("wb") as output,
            self._said.with_suffix(".err").open("wb") as errors,
        ):
            done = subprocess.run(
                self.command(verb, *words),
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=within_s,
            )
        return Ended(done.returncode, self.output, self.errors)
