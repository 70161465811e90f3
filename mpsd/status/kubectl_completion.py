"""What kubectl asks its plugins at Tab, for the programs that are such plugins.

One rule: a line a word, then what cobra calls a directive.
https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/ and kubectl's own pkg/cmd/plugin.
"""

import io
import os
import shlex
import sys
from contextlib import redirect_stdout, suppress

import typer

_NO_FILES = 4  # cobra's ShellCompDirectiveNoFileComp


def offer(app: typer.Typer, program: str) -> None:
    """Says what may follow the words of the command line, the last of which is begun."""
    *words, incomplete = sys.argv[1:] or [""]
    line = shlex.join([program, *words]) + " " + (shlex.quote(incomplete) if incomplete else "")
    # typer's way to ask for completions is the environment; fish's form is a line a word, its help after a tab.
    asked = {
        f"_{program.replace('-', '_').upper()}_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    os.environ |= asked
    try:
        with redirect_stdout(io.StringIO()) as offered, suppress(SystemExit):
            app(prog_name=program)
    finally:
        for name in asked:
            del os.environ[name]
    lines = [line for line in offered.getvalue().splitlines() if line]  # an empty one would be offered too
    print(*lines, f":{_NO_FILES}", sep="\n")
