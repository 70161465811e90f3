"""The output of a demo: sentences for people, or one JSON object a step for machines.

Where something is not as expected, the demo ends there and says what it is.
"""

import json
import time
from collections.abc import Sequence

from mpsd.model.node_report import NodeReport
from mpsd.platform.console import answers
from mpsd.platform.terminal import console
from mpsd.status.machine import show

_INDENT = " " * 12


class DemoFailed(Exception):
    """Something was not as expected: mpsd is broken here."""


class DemoStory:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()

    def chapter(self, title: str) -> None:
        if not self._as_json:
            answers().print(f"\n{title}", style="bold")

    def tell(self, step: str, sentence: str, **facts: object) -> None:
        """One thing that happened; facts: what the sentence was made of."""
        at_s = round(time.monotonic() - self._began, 3)
        if self._as_json:
            print(json.dumps({"step": step, "at_s": at_s, "text": sentence, **facts}), flush=True)
        else:
            answers().print(f"  {at_s:6.2f} s  {sentence}")

    def table(self, node: NodeReport) -> None:
        """As `mpsd status` shows it."""
        if not self._as_json:
            show(node, console())

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Text in columns, the first row their names."""
        if not self._as_json:
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                answers().print(f" {'   '.join(cells).rstrip()}")

    def quote(self, words: str) -> None:
        """Text of a program, or commands to enter."""
        if not self._as_json:
            for line in words.splitlines():
                answers().print(f"{_INDENT}{line}", style="dim")

    @staticmethod
    def check(held: bool, what: str) -> None:
        """Ends the demo where something is not as expected."""
        if not held:
            raise DemoFailed(what)
