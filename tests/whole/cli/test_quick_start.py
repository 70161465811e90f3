"""What docs/quick-start.md shows of a simulated machine is what happens, from top to bottom."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.docs.commands import Told, told_in
from tests.docs.pages import ROOT, page
from tests.whole.machine.machine import MPSD, SOON_S, eventually

_HEADING = "## On a laptop, without a GPU"
_BACKGROUND = re.compile(r"> (?P<log>\w+\.log)(?: 2>&1)? &$")
# What differs each time: ids, pids, seconds, and how wide a column that holds them is.
_MASKED = (
    (re.compile(r"GPU-[0-9a-f-]{36}"), "GPU"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "GRANT"),
    (re.compile(r'("pid"|"init_s"): [\d.]+'), r"\1: N"),
    (re.compile(r"\d+(?=\s+sim-cuda)"), "PID"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"[ \t]+"), " "),
)


def commands() -> Iterator[Told]:
    """Of the section, those with output."""
    text = page("docs/quick-start.md").text
    first = text[: text.index(_HEADING)].count("\n")
    last = text[: text.index("\n## ", text.index(_HEADING) + 1)].count("\n")
    for fence in page("docs/quick-start.md").fences:
        if first < fence.line < last and fence.text.startswith("$ "):
            yield from told_in(fence)


def masked(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        for pattern, word in _MASKED:
            line = pattern.sub(word, line)
        found += [line.strip()] if line.strip() else []
    return found


class Shell:
    def __init__(self, folder: Path) -> None:
        (folder / "mpsd").symlink_to(ROOT / "mpsd")
        self.folder = folder
        self.run_directory = tempfile.mkdtemp(prefix="mpsd-")  # short: sockets are below it
        environment = {
            "PATH": f"{MPSD.parent}:{os.environ['PATH']}",
            "MPSD_RUN_DIR": self.run_directory,
        }
        self.bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment | {"COLUMNS": "120", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def says(self, line: str) -> list[str]:
        assert self.bash.stdin
        assert self.bash.stdout
        self.bash.stdin.write(f"{line}\necho --- done\n")
        self.bash.stdin.flush()
        found = iter(self.bash.stdout.readline, "--- done\n")
        return [said.rstrip("\n") for said in found]

    def settled(self, log: Path, line: str) -> bool:
        if " up " in line:
            return "YES" in self.says("mpsd status > /dev/null 2>&1 && echo YES")
        return log.exists() and "alloc_MiB" in log.read_text()

    def end(self) -> None:
        """Programs first, then mpsd, as the page says; whatever is left then has no deadline to
        wait for."""
        self.says("kill %2 %3 %4; wait %2 %3 %4; kill %1; wait %1")
        self.bash.communicate(timeout=SOON_S)
        shutil.rmtree(self.run_directory)


def shows(shell: Shell, told: Told) -> bool:
    return masked(shell.says(told.line)) == masked([*told.output])


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        for told in commands():
            if background := _BACKGROUND.search(told.line):
                assert shell.says(told.line) == []
                eventually(
                    partial(shell.settled, tmp_path / background["log"], told.line), told.line
                )
            elif told.line == "mpsd status":  # what is used is seen at the next look
                eventually(partial(shows, shell, told), f"{told.place}: {told.line}")
            else:
                assert masked(shell.says(told.line)) == masked([*told.output]), told.place
    finally:
        shell.end()
