"""How far a benchmark is: a bar on a terminal, else a line a step.

One rule: on standard error alone, so that tables and JSON can be redirected.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mpsd.platform.output import complaints

_A_SECOND = 2  # seldom: what is measured next to it must not notice


class Steps:
    """Told of each step before it begins."""

    def __init__(self, bar: Progress | None = None) -> None:
        """bar: None where there is no terminal."""
        self._bar = bar
        self._task = None if bar is None else bar.add_task("looks at this machine", total=None)
        self._begun, self._total = 0, 0
        self.now = "the beginning"  # what is being measured

    def expect(self, total: int) -> None:
        self._total = total

    def step(self, what: str) -> None:
        self._begun, self.now = self._begun + 1, what
        total = max(self._total, self._begun)  # a part may be mistaken about itself
        if self._bar is None or self._task is None:
            complaints().print(f"mpsd bench: {self._begun}/{total} {what}")
        else:
            self._bar.update(self._task, description=what, completed=self._begun - 1, total=total)


@contextmanager
def steps() -> Iterator[Steps]:
    """The bar is gone afterwards."""
    if not sys.stderr.isatty():
        yield Steps()
        return
    words = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), words)
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True, refresh_per_second=_A_SECOND) as bar:
        yield Steps(bar)
