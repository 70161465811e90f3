"""Grants whose records cannot be read: rebuilt from what their programs were started with, or
nothing is granted."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpsd.agent.rules.decide import Admit, Refuse, SetLimit, decide
from mpsd.grants.kept import ProgramGrant, living
from mpsd.grants.ledger import GrantableGpus, LocalGrants
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, MEMORY_LIMIT
from mpsd.model.grants import evenly
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import LedgerView, NodeView, UnreadableGrant
from mpsd.mps.records import NodeDomains
from mpsd.platform import processes, records
from mpsd.platform.logs import logger
from mpsd.platform.process_environment import environment_of
from mpsd.platform.settings import GRANT
from mpsd.simulator.programs import wait_until
from tests.model.worlds import GPUS, POLICY, UUIDS, view, waiting

ID = os.urandom(6).hex()  # all processes of the machine are looked at
Start = Callable[..., ProcessIdentity]
Damage = Callable[[bytes], bytes]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program with these variables and no others."""
    started: list[subprocess.Popen[bytes]] = []

    def one(**variables: str) -> ProcessIdentity:
        started.append(subprocess.Popen(["/bin/sleep", "600"], env=variables))
        found = processes.identity_of(started[-1].pid)
        assert found
        # for a moment after its exec the kernel shows none
        wait_until(
            lambda: environment_of(found.pid, (GRANT,)) or not variables, 20, "its environment"
        )
        return found

    yield one
    for each in started:
        each.kill()
        each.wait()


def given_variables(
    run: Path, memory_mib: int = 20 * 1024, gpu: int = 0, percent: int = 30
) -> dict[str, str]:
    """What `mpsd run` starts a program with."""
    limits = environment(ClientLimit(memory_mib, percent), str(run / f"gpu{gpu}" / "client"))
    return {**limits, CUDA_VISIBLE_DEVICES: UUIDS[gpu], GRANT: ID}


def granted(holder: ProcessIdentity, name: str = ID, gib: int = 20, gpu: int = 0) -> ProgramGrant:
    return ProgramGrant(
        name, f"gpu{gpu}", evenly((UUIDS[gpu],), gib * 1024, 30), 30, 8, holder, "/bin/sleep 600"
    )


def write(run: Path, grant: ProgramGrant) -> Path:
    path = run / "grants" / f"{grant.id}.json"
    path.parent.mkdir(exist_ok=True)
    records.write(path, grant)
    return path


def loaded(run: Path, meanwhile: Callable[[], object] | None = None) -> LedgerView:
    """What an agent that starts now knows. meanwhile: what happens before it looks again."""

    async def load() -> LedgerView:
        here = GrantableGpus(lambda: POLICY, NodeDomains(run, GPUS, POLICY, logger()))
        ledger = LocalGrants(run / "grants", lambda: None, logger(), here)
        ledger.load()
        if meanwhile:
            meanwhile()
            await ledger.refresh()
        found = ledger.view
        ledger.close()
        return found

    return asyncio.run(load())


def seen(ledger: LedgerView) -> NodeView:
    return replace(view(grants=ledger.held), unreadable=ledger.unreadable)


def damages() -> dict[str, Damage]:
    return {
        "empty": lambda _sound: b"",
        "cut off": lambda sound: sound[: len(sound) // 2],
        "no JSON": lambda _sound: b"\0" * 64,
        "another schema": lambda _sound: f'{{"id": "{ID}"}}'.encode(),
        "another grant's": lambda sound: sound.replace(ID.encode(), b"ba9876543210"),
    }


@pytest.mark.parametrize("damage", damages())
def test_a_grant_is_rebuilt_from_what_its_holder_was_started_with(
    tmp_path: Path, start: Start, damage: str
) -> None:
    holder = start(**given_variables(tmp_path))
    # has lowered its own limits
    child = start(**given_variables(tmp_path, memory_mib=1024, percent=10))
    path = write(tmp_path, granted(holder))
    path.write_bytes(damages()[damage](path.read_bytes()))

    ledger = loaded(tmp_path)

    (held,) = ledger.held
    assert held.grant == granted(holder)
    assert child != holder
    assert ledger.unreadable == ()
    assert records.read(path, ProgramGrant) == held.grant


def test_a_record_of_another_user_and_one_that_is_no_file_are_unreadable(
    tmp_path: Path, start: Start
) -> None:
    path = write(tmp_path, granted(start()))
    path.chmod(0o666)
    assert [one.reason for one in loaded(tmp_path).unreadable] == ["may be written by every user"]
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 65534, 65534)
        assert [one.reason for one in loaded(tmp_path).unreadable] == ["belongs to user 65534"]
    path.unlink()
    os.mkfifo(path)
    assert [one.reason for one in loaded(tmp_path).unreadable] == ["is no regular file"]
    path.unlink()
    path.symlink_to("nothing")
    assert [one.reason for one in loaded(tmp_path).unreadable] == ["is a link to nothing"]
    assert path.is_symlink()


@pytest.mark.parametrize(
    "changed",
    [
        {GRANT: "another"},
        {MEMORY_LIMIT: ""},
        {MEMORY_LIMIT: "0=20G"},
        {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"},
    ],
)
def test_what_proves_no_grant_closes_its_gpus(
    tmp_path: Path, start: Start, changed: dict[str, str]
) -> None:
    path = write(tmp_path, granted(start(**(given_variables(tmp_path) | changed))))
    path.write_bytes(b"")

    ledger = loaded(tmp_path)

    assert ledger.held == ()
    (broken,) = ledger.unreadable
    named = "gpu0" if MEMORY_LIMIT in changed else None
    assert broken == UnreadableGrant(ID, str(path), "Input data was truncated", named)
    assert path.read_bytes() == b""
    assert living(path.parent) == [
        f"the holder of grant {ID}, whose record cannot be read ({path}: Input data was truncated)"
    ]
    actions = decide(replace(seen(ledger), waiting=(waiting("new", 1),)), POLICY)
    if named:  # the other GPU is as it was
        (admitted,) = [one for one in actions if isinstance(one, Admit)]
        assert admitted.grant.domain == "gpu1"
        assert {one.domain for one in actions if isinstance(one, SetLimit)} == {"gpu1"}
    else:
        (refused,) = actions
        assert isinstance(refused, Refuse)
        assert not refused.for_ever
        assert f"once no program uses them, run `rm {path}`" in refused.reason


def test_processes_that_disagree_on_their_domain_prove_none(tmp_path: Path, start: Start) -> None:
    path = write(tmp_path, granted(start(**given_variables(tmp_path))))
    start(**given_variables(tmp_path, memory_mib=1, gpu=1))
    path.write_bytes(b"{")
    (broken,) = loaded(tmp_path).unreadable
    assert broken.domain is None


def test_what_does_not_fit_beside_the_others_was_changed_and_is_not_rebuilt(
    tmp_path: Path, start: Start
) -> None:
    """It was made smaller since its program was started, and another has the rest."""
    path = write(tmp_path, granted(start(**given_variables(tmp_path)), gib=10))
    other = granted(start(), "other", gib=12)
    write(tmp_path, other)
    path.write_bytes(b"{")
    ledger = loaded(tmp_path)
    assert [held.grant for held in ledger.held] == [other]
    assert [one.domain for one in ledger.unreadable] == ["gpu0"]


def test_the_share_of_the_threads_that_is_counted_is_never_more_than_the_others_leave(
    tmp_path: Path, start: Start
) -> None:
    path = write(tmp_path, granted(start(**given_variables(tmp_path, 1024, percent=100))))
    write(tmp_path, granted(start(), "other", gib=1))
    path.write_bytes(b"{")
    rebuilt = next(held.grant for held in loaded(tmp_path).held if held.grant.id == ID)
    assert (rebuilt.thread_percent, rebuilt.reserved_percent) == (100, 70)


def test_a_record_that_is_repaired_or_removed_is_noticed(tmp_path: Path, start: Start) -> None:
    path = write(tmp_path, granted(start()))
    sound = path.read_bytes()
    path.write_bytes(b"")
    repaired = loaded(tmp_path, lambda: path.write_bytes(sound))
    assert ([held.grant.id for held in repaired.held], repaired.unreadable) == ([ID], ())
    path.write_bytes(b"")
    assert loaded(tmp_path, path.unlink) == LedgerView()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(
    at=st.integers(0, 10_000),
    flip=st.integers(0, 255),
    marked=st.booleans(),
    gib=st.integers(1, 23),
)
def test_whatever_is_cut_off_or_flipped_no_card_is_granted_twice_and_no_limit_falls(
    tmp_path: Path, start: Start, at: int, flip: int, marked: bool, gib: int
) -> None:
    """flip: the bits of the byte there; 0 cuts the file off there."""
    holder = start(**(given_variables(tmp_path) if marked else {}))
    try:
        path = write(tmp_path, granted(holder))
        sound = bytearray(path.read_bytes())
        at %= len(sound)
        sound[at] ^= flip
        path.write_bytes(bytes(sound) if flip else bytes(sound[:at]))

        ledger = loaded(tmp_path)

        asks = replace(seen(ledger), waiting=(waiting("new", gib), waiting("more", 23)))
        actions = decide(asks, POLICY)
        now = [granted(holder), *(one.grant for one in actions if isinstance(one, Admit))]
        for gpu in GPUS:
            assert sum(grant.part_of(gpu.uuid).memory_mib for grant in now) <= 23 * 1024
        on_gpu0 = [
            one.limit.memory_mib
            for one in actions
            if isinstance(one, SetLimit) and one.domain == "gpu0"
        ]
        assert all(limit_mib >= 20 * 1024 for limit_mib in on_gpu0)
    finally:  # while it lives it would prove this grant to the next example
        os.kill(holder.pid, signal.SIGKILL)
        wait_until(lambda: not processes.is_alive(holder), 20, "it has ended")
