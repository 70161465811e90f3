"""Who holds a container's grant, by the state that its runtime keeps: the runtime, then the first
process, and nobody where neither is there."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.grants.ledger import LocalGrants
from mpsd.grants.rules.messages import HostContainerName, HostContainerRequest
from mpsd.model.grants import Grant, evenly
from mpsd.model.identity import HostContainer, ProcessIdentity, process_of
from mpsd.platform import processes
from mpsd.platform.event_loop import until
from mpsd.platform.logs import logger
from tests.model.worlds import UUIDS

SOON_S = 30
Start = Callable[[], ProcessIdentity]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def one() -> ProcessIdentity:
        started.append(subprocess.Popen(["sleep", "600"]))
        found = processes.identity_of(started[-1].pid)
        assert found
        return found

    yield one
    for each in started:
        each.kill()
        each.wait()


class Ledger:
    """Of one agent, and the folder in which a runtime keeps its states."""

    def __init__(self, folder: Path) -> None:
        self._root, self._grants = folder / "root", folder / "grants"
        for made in (self._root, self._grants):
            made.mkdir(exist_ok=True)
        self.ledger = self.loaded()

    def loaded(self) -> LocalGrants:
        """Of an agent that starts now."""
        ledger = LocalGrants(self._grants, lambda: None, logger())
        ledger.load()
        return ledger

    def add(self, runtime: ProcessIdentity, name: str = "c1") -> None:
        """A runtime has asked for this container, and got its grant."""
        holder = HostContainer(str(self._root), name, "", runtime, is_made=False)
        self.ledger.expect(name, HostContainerRequest(str(self._root), name, "", {}))
        parts = evenly((UUIDS[0],), 2048, 0)
        self.ledger.add(Grant(name, "gpu0", parts, 100, 8, holder, "train"))

    def state(self, name: str = "c1") -> Path:
        path = self._root / name / "state.json"
        path.parent.mkdir(exist_ok=True)
        return path

    def make(self, first: ProcessIdentity, name: str = "c1") -> None:
        """As its runtime does."""
        state = {"init_process_pid": first.pid, "init_process_start": first.start_ticks}
        self.state(name).write_text(json.dumps(state))

    def holder(self, name: str = "c1") -> ProcessIdentity | None:
        """Who holds its grant now; None for nobody."""
        found = self.ledger.of_container(HostContainerName(str(self._root), name))
        assert found
        grant, is_held = found
        return process_of(grant.holder) if is_held else None


def killed(process: ProcessIdentity) -> None:
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)


async def test_it_goes_from_the_runtime_to_the_first_process_and_ends_with_it(
    tmp_path: Path, start: Start
) -> None:
    here, runtime, first = Ledger(tmp_path), start(), start()
    here.add(runtime)
    assert here.holder() == runtime
    here.make(first)
    assert here.holder() == first
    killed(runtime)
    assert here.holder() == first
    killed(first)
    await until(lambda: here.holder() is None, SOON_S, "nobody holds it")


async def test_what_a_runtime_did_not_make_is_nobodys_once_it_has_ended(
    tmp_path: Path, start: Start
) -> None:
    here, runtime = Ledger(tmp_path), start()
    here.add(runtime)
    killed(runtime)
    await until(lambda: here.holder() is None, SOON_S, "nobody holds it")


async def test_a_state_that_nobody_can_read_is_not_taken_for_no_container(
    tmp_path: Path, start: Start
) -> None:
    here, runtime = Ledger(tmp_path), start()
    here.add(runtime)
    here.state().symlink_to("/etc/passwd")
    killed(runtime)
    assert here.holder() == runtime
    here.state().unlink()
    await until(lambda: here.holder() is None, SOON_S, "nobody holds it")


async def test_a_process_older_than_the_runtime_or_anothers_is_not_what_it_made(
    tmp_path: Path, start: Start
) -> None:
    """Made while mpsd did not run: the new runtime finds it in the way, and ends."""
    here, old, runtime, other = Ledger(tmp_path), start(), start(), start()
    here.add(runtime, "other")
    here.make(other, "other")
    assert here.holder("other") == other
    # of runtimes that are gone, one of them older than both
    for name, first, later in (("c1", old, 1), ("c2", other, -1)):
        here.add(replace(old, start_ticks=old.start_ticks + later), name)
        here.make(first, name)
        assert here.holder(name) is None


async def test_what_came_of_it_while_no_agent_ran_is_found(tmp_path: Path, start: Start) -> None:
    here, runtime, first = Ledger(tmp_path), start(), start()
    here.add(runtime)
    here.ledger.close()
    here.make(first)
    killed(runtime)
    here.ledger = here.loaded()
    assert here.holder() == first
    here.ledger.close()
    killed(first)
    here.ledger = here.loaded()
    assert here.holder() is None
