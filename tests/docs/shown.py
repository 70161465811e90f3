"""The output that pages claim: each command after a `$` is run here, or has a row that says why
not."""

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

# What the others need, and where what they show is tried instead.
NEEDS = {
    r"kubectl |kubectl-|make e2e": (
        "a cluster: tests/whole/cli plays one for each verb, tests/e2e has a real one"
    ),
    r"docker |podman |nerdctl |ctr ": "a container engine, and root: tests/host",
    r"mpsd (up|run|status|smi|set|control|doctor)\b": (
        "a machine with mpsd on it: tests/whole/cli, tests/whole/machine"
    ),
    r"mpsd (install|uninstall) ": (
        "an engine's files, and root: tests/cli/test_install.py, tests/host"
    ),
    r"mpsd (agent|webhook|scheduler)\b": "a cluster, or the files of one: tests/whole",
    r"mpsd (bench|demo)\b": (
        "minutes, and figures that differ each time: tests/whole (bench, cli/test_demo.py)"
    ),
    r"mpsd (top|bundle)\b": "a machine with mpsd on it",
    r"(curl|kill|nvidia-smi|python3? |pip |make |ls |jq |tar )": (
        "a machine with mpsd on it, or a checkout of its own"
    ),
}
_LEFT_OUT = "…"
_MPSD = """mpsd() { "$PYTHON" -c 'from mpsd.cli.main import main; main()' "$@"; }"""


def is_tried(told: Told) -> bool:
    return bool(_TRIED.match(told.line) or _FILE.match(told.line))


def why_not(told: Told) -> str:
    """What it would need; empty where nobody has said so."""
    return next((why for pattern, why in NEEDS.items() if re.match(pattern, told.line)), "")


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
