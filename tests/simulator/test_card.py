"""The file that stands for a card: atomic, cheap, and nothing of the dead in it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpsd.simulator import card
from mpsd.simulator.card import CardRefusal, CardView, ContextClaim, create_card
from mpsd.simulator.gpus import MIB

TOTAL_MIB = 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_card(tmp_path / "card", TOTAL_MIB * MIB)
    return tmp_path / "card"


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Forty processes to hold memory."""
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(40)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def client(pid: int, mib: int = 10, most_clients: int = 48) -> ContextClaim:
    return ContextClaim(pid, card.MPS_CLIENT, mib * MIB, most_clients)


def outside(pid: int, mib: int = 10) -> ContextClaim:
    return ContextClaim(pid, card.OUTSIDE_MPS, mib * MIB)


def test_what_is_claimed_and_added_is_held_until_it_is_released(path: Path) -> None:
    opened = CardView(path)
    slot = opened.claim(client(os.getpid()))
    assert opened.add(slot, 5 * MIB)
    assert opened.add(slot, -3 * MIB)
    (holding,) = CardView(path).holdings()
    assert (holding.pid, holding.kind, holding.held_bytes) == (
        os.getpid(),
        card.MPS_CLIENT,
        12 * MIB,
    )
    assert opened.free_bytes() == (TOTAL_MIB - 12) * MIB
    opened.release(slot, os.getpid())
    assert opened.holdings() == ()


def test_what_a_dead_process_held_is_given_back_late_without_harm_to_who_has_its_place(
    path: Path,
) -> None:
    """The server hears that a client is gone after another has claimed what it held."""
    opened = CardView(path)
    process = subprocess.Popen(["sleep", "60"])
    place = opened.claim(client(process.pid))
    process.kill()
    process.wait()
    assert opened.claim(client(os.getpid(), 20)) == place
    opened.release(place, process.pid)
    (holding,) = opened.holdings()
    assert (holding.pid, holding.held_bytes) == (os.getpid(), 20 * MIB)


def test_a_card_gives_no_more_than_it_has(path: Path) -> None:
    opened = CardView(path)
    slot = opened.claim(client(os.getpid(), TOTAL_MIB - 1))
    assert opened.add(slot, MIB)
    assert not opened.add(slot, 1)
    with pytest.raises(CardRefusal):
        opened.claim(client(os.getpid(), 1))


def test_a_dead_process_holds_nothing_even_as_a_zombie(path: Path) -> None:
    opened = CardView(path)
    process = subprocess.Popen(["sleep", "60"])
    opened.claim(client(process.pid, TOTAL_MIB))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert opened.holdings() == ()
    process.wait()
    assert opened.holdings() == ()
    assert opened.free_bytes() == TOTAL_MIB * MIB
    slot = opened.claim(client(os.getpid(), 1))
    assert opened.add(slot, (TOTAL_MIB - 1) * MIB)


def test_a_pid_that_is_used_again_is_not_the_process_that_held(path: Path) -> None:
    opened = CardView(path)
    process = subprocess.Popen(["sleep", "60"])
    slot = opened.claim(client(process.pid))
    process.kill()
    process.wait()
    content = bytearray(path.read_bytes())
    place = content.index(process.pid.to_bytes(4, "little"))
    content[place : place + 4] = os.getpid().to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(content)
    assert slot == 0
    assert opened.holdings() == ()


def test_two_that_allocate_at_once_cannot_both_have_the_last_of_it(path: Path) -> None:
    slots = [CardView(path).claim(client(os.getpid(), 0)) for _ in range(4)]

    def take(slot: int) -> int:
        opened = CardView(path)
        return sum(opened.add(slot, MIB) for _ in range(TOTAL_MIB))

    with ThreadPoolExecutor() as pool:
        assert sum(pool.map(take, slots)) == TOTAL_MIB


def test_the_clients_of_a_card_are_counted(
    path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    opened = CardView(path)
    for process in sleepers:
        opened.claim(client(process.pid, most_clients=40))
    with pytest.raises(CardRefusal) as refused:
        opened.claim(client(os.getpid(), most_clients=40))
    assert refused.value.code == 808


@pytest.mark.parametrize(
    ("mode", "there", "admitted"),
    [
        (card.DEFAULT, True, True),
        (card.EXCLUSIVE_PROCESS, True, False),
        (card.EXCLUSIVE_PROCESS, False, True),
        (card.PROHIBITED, False, False),
    ],
)
def test_the_compute_mode_says_who_may_share(
    path: Path, mode: int, there: bool, admitted: bool
) -> None:
    opened = CardView(path)
    if there:
        opened.claim(ContextClaim(os.getpid(), card.MPS_SERVER, MIB))
    opened.compute_mode = mode
    if admitted:
        opened.claim(outside(os.getpid()))
    else:
        with pytest.raises(CardRefusal):
            opened.claim(outside(os.getpid()))


def test_who_is_stopped_amid_a_change_keeps_nobody_waiting(path: Path) -> None:
    opened = CardView(path)
    slot = opened.claim(client(os.getpid()))
    script = (
        "import fcntl, os, signal, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)"
    )
    stops = [sys.executable, "-c", f"{script}; os.kill(os.getpid(), signal.SIGSTOP)", str(path)]
    with subprocess.Popen(stops) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert opened.add(slot, 5 * MIB)
        assert [one.held_bytes for one in opened.holdings()] == [15 * MIB]
        process.kill()
