"""One look at a cluster by `kubectl mps top --once`, as text.

One rule: the GPUs are shown before it is known who uses them.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from mpsd.cli.frames import WIDEST, console, print_part
from mpsd.cli.speech import ExitCode
from mpsd.cli.stopping import ended_by_signals
from mpsd.cli.top_layout import cluster_gpus, parts, parts_below
from mpsd.core.top_rows import Sort, Top, TopGpu, ordered


def show_cluster_once(by: Sort, gpus: Callable[[], Sequence[TopGpu] | None], look: Callable[[], Top]) -> NoReturn:
    """One look at a cluster as text; ends the program. gpus: those of that look, None where only all of it tells."""
    with ended_by_signals():
        to = console(WIDEST)
        first = gpus()
        if first:  # somebody waits for them, and who uses them takes longer to read
            print_part(cluster_gpus(ordered(first, by), WIDEST), to)
        top = look().ordered(by)
        for part in parts_below(top, WIDEST) if first else parts(top, WIDEST):
            print_part(part, to)
    sys.exit(ExitCode.YES)
