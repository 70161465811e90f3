"""How a demo is told: each step from what was seen, in sentences for people or one JSON object a step for machines.

One rule: where something does not go as it should, the story ends there and says what it is.
"""

import json
import time
from collections.abc import Sequence

from mpsd.model.node_status import NodeStatus
from mpsd.platform.console import answers
from mpsd.status.terminal import console
from mpsd.status.verbs import show

_INDENT = " " * 12


class DemoFailed(Exception):
    """Something in the story did not come as it should: mpsd is broken here."""


class DemoStory:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()

    def chapter(self, title: str) -> None:
        if not self._as_json:
            answers().print(f"\n{title}", style="bold")

    def tell(self, step: str, sentence: str, **facts: object) -> None:
        """One thing that happened; `facts` are what the sentence was made of."""
        at_s = round(time.monotonic() - self._began, 3)
        if self._as_json:
            print(json.dumps({"step": step, "at_s": at_s, "text": sentence, **facts}), flush=True)
        else:
            answers().print(f"  {at_s:6.2f} s  {sentence}")

    def table(self, node: NodeStatus) -> None:
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
        """What a program said, in its own words."""
        if not self._as_json:
            for line in words.splitlines():
                answers().print(f"{_INDENT}{line}", style="dim")

    @staticmethod
    def check(held: bool, what: str) -> None:
        """Ends the story where it does not go as it should."""
        if not held:
            raise DemoFailed(what)
