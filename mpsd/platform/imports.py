"""How a program imports what it runs on.

One rule: what is imported stays until the program ends, so nothing ever looks for garbage among it.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # 128 and SIGINT, as shells and kubectl say of what Ctrl-C ended: neither yes nor no


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
def starting() -> Iterator[None]:
    """The same of a program that has begun nothing yet: Ctrl-C ends it here and now, without a traceback. To tear down
    a module of which half was imported crashes some of those that are written in C.
    """
    try:
        with lasting():
            yield
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


@contextmanager
def unswept() -> Iterator[None]:
    """For a program that makes one answer and ends: looking for garbage among it would be half of its work."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
