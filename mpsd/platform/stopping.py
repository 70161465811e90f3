"""Signals that end a verb which has much to clear away.

One rule: at most one signal is an exception, so that no second one can come between and keep the clean-up from its end.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a closed terminal, too, leaves nothing behind


class Stopped(BaseException):
    """Somebody sent a signal."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


@contextmanager
def first_signal_stops() -> Iterator[None]:
    """Stopped in this block at the first signal; those after it, and after this block, do nothing."""
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
    """With what a shell expects of a program that a signal ends, once it has cleared away."""
    try:
        with first_signal_stops():
            yield
    except Stopped as stopped:
        sys.exit(128 + stopped.signum)
