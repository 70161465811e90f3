"""How a program starts, without the garbage collector, and is stopped."""

import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

# 128 and SIGINT, as shells say of what Ctrl-C ended
INTERRUPTED = 130


@contextmanager
def lasting() -> Iterator[None]:
    """For imports: the garbage collector passes over what they bring. Its looks were a third of the
    time that `mpsd run` took to start."""
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # else it is somebody's work, which may become garbage
        if len(sys.modules) > known:
            gc.freeze()
        gc.enable()


@contextmanager
def starting() -> Iterator[None]:
    """The same of a program that has begun nothing: Ctrl-C ends it at once. To tear down half an
    import crashes some modules in C."""
    try:
        with lasting():
            yield
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def find_all(modules: Iterable[str]) -> None:
    """ModuleNotFoundError for one that is not installed. None is loaded."""
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def unswept() -> Iterator[None]:
    """For a program that makes one answer and ends."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# -- signals that stop a verb with much to clean up

# a closed terminal, too, leaves nothing behind
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    def __init__(self, signum: int) -> None:
        self.signum = signum


@contextmanager
def first_signal_stops() -> Iterator[None]:
    """Raises Stopped at the first signal; later ones do nothing."""
    listening = True

    def stop(signum: int, _frame: object) -> None:
        nonlocal listening
        if listening:
            listening = False
            raise Stopped(signum)

    try:
        for signum in STOP_SIGNALS:
            signal.signal(signum, stop)
        yield
    finally:
        listening = False


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Exits as shells expect of a program that a signal ends, once it has cleared away."""
    try:
        with first_signal_stops():
            yield
    except Stopped as stopped:
        sys.exit(128 + stopped.signum)
