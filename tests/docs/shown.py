"""The output that pages claim, of the commands after a `$` that need no machine."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.docs.commands import Told
from tests.docs.pages import ROOT

# These ask no machine and no cluster: files in, words out.
_TRIED = re.compile(
    r"(mpsd (explain|check|bench --show)\b|mpsd( \w+)? --help\b|mpsd --version\b|sed -i .* limits/)"
)
# what the reader is told to have in it, and the commands after it read
_FILE = re.compile(r"cat ([\w.-]+)$")

_LEFT_OUT = "…"
_MPSD = """mpsd() { "$PYTHON" -c 'from mpsd.cli.main import main; main()' "$@"; }"""


def is_tried(told: Told) -> bool:
    return bool(_TRIED.match(told.line) or _FILE.match(told.line))


def differs(told: Told, folder: Path) -> str:
    """What it says in this folder, where the page shows something else; empty where the two
    agree."""
    if file := _FILE.match(told.line):
        (folder / file[1]).write_text("\n".join(told.output) + "\n")
        return ""
    ran = subprocess.run(
        ["bash", "-c", f"{_MPSD}\n{told.line}"],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    shown, said = _trimmed(told.output), _trimmed(ran.stdout.splitlines())
    return "" if _agree(shown, said) else f"{told.place}: $ {told.line}\n" + "\n".join(said)


def _trimmed(lines: Sequence[str]) -> list[str]:
    kept = [line.rstrip() for line in lines]
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _agree(shown: Sequence[str], said: Sequence[str]) -> bool:
    """`…` alone stands for any lines; at another place, for the rest of what stands there."""
    pattern = "\n".join(
        r"(?:.|\n)*" if line.strip() == _LEFT_OUT else re.escape(line).replace(_LEFT_OUT, ".*")
        for line in shown
    )
    return bool(re.fullmatch(pattern, "\n".join(said)))
