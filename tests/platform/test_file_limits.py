"""How many files a long-running process of mpsd may open, and the programs that it starts."""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.mps.log_tail import LogTail
from mpsd.platform import event_loop, processes, records
from mpsd.platform.event_loop import DeathWatch
from mpsd.platform.process_environment import environment_of
from tests.world.captured import captured

_OWN = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of this process, as they are again after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one_and_a_child_has_the_one_from_before() -> None:
    """In a process of its own, for the limit of one holds for all that follows in it."""
    program = f"""
import asyncio, resource, sys
from mpsd.mps.control_daemon import communicate
from mpsd.platform import life
hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
async def main():
    soft, own_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == own_hard == hard, (soft, own_hard)
    wait = "import time; time.sleep(0.2); {_OWN}"
    code, output, errors = await communicate([sys.executable, "-c", wait], {{}}, 20)
    assert output.split() == ["256", str(hard)], (code, output, errors)
    return 0
sys.exit(life.run("test", main))
"""
    done = captured([sys.executable, "-c", program], check=False)
    assert done.returncode == 0, done.stderr


def no_more_files(hard: int) -> None:
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))


def test_a_holder_counts_as_alive_until_there_is_a_descriptor_to_hold_it(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_HOLD_AGAIN_S", 0.05)

    async def main() -> None:
        ended = asyncio.Event()
        child = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220 - asyncio would hold it by a file of its own
        identity = processes.identity_of(child.pid)
        assert identity
        no_more_files(limits[1])
        watch = DeathWatch(identity, ended.set)
        assert watch.alive
        child.kill()
        await asyncio.sleep(0.3)
        assert not ended.is_set()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        async with asyncio.timeout(20):
            await ended.wait()
        watch.close()
        child.wait()

    asyncio.run(main())


def test_what_cannot_be_read_for_want_of_descriptors_is_not_taken_for_absent(
    limits: tuple[int, int], tmp_path: Path
) -> None:
    records.write(tmp_path / "record.json", 7)
    no_more_files(limits[1])
    with pytest.raises(OSError, match="Too many open files"):
        records.read(tmp_path / "record.json", int)
    with pytest.raises(OSError, match="Too many open files"):
        environment_of(os.getpid(), ("PATH",))


def test_a_log_that_cannot_be_copied_on_a_full_disk_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpsd.mps.log_tail.ROTATE_BYTES", 4)
    log = tmp_path / "control.log"
    (tmp_path / "control.log.1").symlink_to("/dev/full")
    tail = LogTail(log, from_end=False)
    log.write_text("one\ntwo\n")
    assert tail.lines() == ["one", "two"]
    assert log.read_text() == "one\ntwo\n"
