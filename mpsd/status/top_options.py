"""The options of `mpsd top` and `kubectl mps top`."""

from typing import Annotated

import typer

from mpsd.status.rules.top_rows import Sort

SortBy = Annotated[Sort, typer.Option("--sort", help="What the rows are sorted by; who is over its limit comes first.")]
Once = Annotated[bool, typer.Option("--once", help="One look, without control codes, for a pipe or a file.")]
Iterations = Annotated[
    int | None,
    typer.Option("--iterations", metavar="NUMBER", help="So many looks, then end.", min=1, show_default=False),
]
