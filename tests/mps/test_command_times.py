"""What `mpsd control` has written of its questions to the daemons."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpsd.model.metrics import COMMAND_BOUNDS_S, CommandTimes
from mpsd.mps.control_daemon import command_times
from mpsd.platform import processes, records
from mpsd.platform.settings import Settings, settings

TIMES = CommandTimes(processes.boot_id())


@pytest.fixture
def chosen() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="mpsd-") as folder:  # short: a socket's path ends at 107 characters
        yield settings(run_directory=folder)


def test_what_is_of_this_boot_is_read_and_nothing_else(chosen: Settings) -> None:
    of_now = replace(TIMES, answered=TIMES.answered.with_one(0.007, COMMAND_BOUNDS_S), unanswered=2)
    for name, written in {"gpu0": of_now, "gpu1": replace(of_now, boot_id="another"), "gpu2": "no times"}.items():
        chosen.domain(name).make()
        records.write(chosen.domain(name).commands, written)
    assert command_times(chosen, ["gpu0", "gpu1", "gpu2", "gpu3"]) == {"gpu0": of_now}
