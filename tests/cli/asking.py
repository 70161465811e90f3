"""A verb of mpsd asked within this process, from `main` on: what it says on each stream, and its exit code.

One rule: a process of its own takes a third of a second to start, so only what is about the process itself starts one.
"""

import io
import os
from dataclasses import dataclass

import pytest

from mpsd.cli.main import main


@dataclass(frozen=True)
class Done:
    """As subprocess.CompletedProcess has it."""

    returncode: int
    stdout: str
    stderr: str


def ask(*words: str, given: str = "", **environment: str) -> Done:
    """`mpsd WORDS` with this standard input, and with this environment in place of every MPSD_*."""
    stdin, stdout, stderr = (_stream(text) for text in (given, "", ""))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MPSD_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        for name, value in {"argv": ["mpsd", *words], "stdin": stdin, "stdout": stdout, "stderr": stderr}.items():
            patch.setattr(f"sys.{name}", value)
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return Done(code, _written(stdout), _written(stderr))


def _stream(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()
