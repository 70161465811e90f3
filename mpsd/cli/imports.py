"""How a program imports what it runs on.

One rule: what is imported stays until the program ends, so nothing ever looks for garbage among it.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting() -> Iterator[None]:
    """For imports: the garbage collector neither runs meanwhile nor looks at what they brought, not even at the end.

    Those looks were a third of the time that `mpsd run`, `mpsd up` and `mpsd webhook` took to start.
    """
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:  # else what is there now is somebody's work, which may become garbage
            gc.freeze()
        gc.enable()


@contextmanager
def unswept() -> Iterator[None]:
    """For a program that makes one answer and ends: looking for garbage among it would be half of its work."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
