"""Managed memory: what is proven of it, and what is nobody's."""

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform.mappings import MappedBytes
from mpsd.watchdog import managed_memory
from mpsd.watchdog.managed_memory import ManagedMemory, UvmMapping, is_upper_bound, managed_mib

CARD_MIB, MIB = 24_000, 1024 * 1024
ME, OTHER = os.getpid(), 1
POOL_MIB = 544_128  # of addresses, that a pool of any size maps
SIZES = st.integers(0, 30_000) | st.just(POOL_MIB)
MAPPED = st.dictionaries(
    st.integers(2, 9), st.builds(UvmMapping, SIZES, st.integers(1, 3), st.booleans()), max_size=5
)


def on_one(mib: int) -> UvmMapping:
    return UvmMapping(mib, 1)


@given(MAPPED, st.integers(0, CARD_MIB))
def test_nobody_has_more_than_it_maps_and_a_pool_no_more_than_is_unexplained(
    mapped: dict[int, UvmMapping], unexplained_mib: int
) -> None:
    found = managed_mib(mapped, unexplained_mib, CARD_MIB)
    assert all(0 < mib <= mapped[pid].mib for pid, mib in found.items())
    uncertain = sum(
        mib for pid, mib in found.items() if mapped[pid].gpus > 1 or mapped[pid].mib > CARD_MIB
    )
    assert uncertain <= unexplained_mib
    for pid, one in mapped.items():
        others_are_known = all(other.is_all for at, other in mapped.items() if at != pid)
        if not others_are_known and is_upper_bound(one, CARD_MIB):
            assert pid not in found


def test_what_one_process_allocated_counts_before_it_is_touched() -> None:
    assert managed_mib({2: on_one(4096), 3: on_one(0)}, 0, CARD_MIB) == {2: 4096}


def test_a_pool_counts_as_what_nobody_else_can_have() -> None:
    assert managed_mib({2: on_one(POOL_MIB), 3: on_one(4096)}, 5120, CARD_MIB) == {2: 1024, 3: 4096}


def test_of_two_pools_neither_is_proven() -> None:
    assert managed_mib({2: on_one(POOL_MIB), 3: on_one(POOL_MIB)}, 5120, CARD_MIB) == {}


def test_a_pool_proves_nothing_beside_one_that_may_map_more() -> None:
    hides = UvmMapping(0, 1, is_all=False)
    assert managed_mib({2: on_one(POOL_MIB), 3: hides}, 5120, CARD_MIB) == {}
    assert managed_mib({2: UvmMapping(6144, 2), 3: hides}, 4096, CARD_MIB) == {}
    assert managed_mib({2: on_one(4096), 3: hides}, 4096, CARD_MIB) == {2: 4096}
    pool = UvmMapping(POOL_MIB, 1, is_all=False)
    assert managed_mib({2: pool}, 5120, CARD_MIB) == {2: 5120}, "nobody else is there"


def test_a_program_on_two_gpus_counts_on_each_what_is_unexplained_there() -> None:
    assert managed_mib({2: UvmMapping(6144, 2)}, 4096, CARD_MIB) == {2: 4096}


class Card:
    """A GPU on which this very process uses 100 MiB by NVML, looked at once a second."""

    def __init__(self, uvm: Path) -> None:
        self.other = OTHER
        self.memory = ManagedMemory(CARD_MIB)
        self.now = 0.0
        self._uvm = uvm
        self._mapped: list[mmap.mmap] = []

    def map(self, mib: int) -> None:
        with self._uvm.open("a+b") as file:
            file.truncate(mib * MIB)
            self._mapped.append(mmap.mmap(file.fileno(), mib * MIB, prot=mmap.PROT_READ))

    def unmap(self) -> None:
        while self._mapped:
            self._mapped.pop().close()

    def look(self, unexplained_mib: int, *, times: int = 1) -> dict[int, int]:
        for _ in range(times):
            self.now += 1.0
            self.memory.look(
                100 + unexplained_mib, ((ME, 100 * MIB), (self.other, 0)), lambda _pid: 1, self.now
            )
        return dict(self.memory.of)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    for patience in ("_WAIT_S", "_PATIENCE_S"):  # each read ends in its look, however slow it is
        monkeypatch.setattr(managed_memory, patience, 60.0)
    made = Card(tmp_path / "nvidia-uvm")
    yield made
    made.unmap()


def test_what_a_process_maps_is_its_own_from_the_look_at_which_the_gpu_has_more_in_use(
    card: Card,
) -> None:
    assert card.look(300, times=3) == {}
    card.map(2 + 4096)
    assert card.look(300 + 4096) == {ME: 4096}
    card.unmap()
    assert card.look(300) == {}
    assert card.memory.unexplained_mib == 0
    card.map(2 + 4096)
    assert card.look(300 + 4096) == {ME: 4096}, "the same again is found again"
    card.map(2048)
    assert card.look(300 + 4096) == {ME: 6144}, "what changes hands does not show in the sum"


def test_who_gives_back_as_many_pages_as_it_maps_is_looked_at_again(card: Card) -> None:
    card.look(300, times=3)
    kept = mmap.mmap(-1, 4096 * MIB, prot=mmap.PROT_READ)
    card.map(2 + 128)
    assert card.look(300 + 128) == {ME: 128}
    kept.close()
    card.map(4096)
    assert card.look(300 + 128 + 4096, times=2) == {ME: 128 + 4096}


def test_what_nobody_maps_is_unexplained_after_a_second_and_nobodys(card: Card) -> None:
    card.look(300, times=3)
    assert card.look(300 + 5120) == {}
    assert card.memory.unexplained_mib == 0, "a process that starts is counted late"
    card.look(300 + 5120)
    assert (card.memory.of, card.memory.unexplained_mib) == ({}, 5120)
    card.look(300 + 100)
    assert card.memory.unexplained_mib == 0


def test_what_was_there_before_anything_was_known_is_not_unexplained(card: Card) -> None:
    card.map(2 + 1024)
    assert card.look(300 + 1024, times=5) == {ME: 1024}
    assert card.memory.unexplained_mib == 0


def test_nothing_is_concluded_where_nvml_does_not_know_what_a_process_uses(card: Card) -> None:
    card.look(300, times=3)
    card.memory.look(20_000, ((ME, None),), lambda _pid: 1, card.now + 5)
    assert (card.memory.of, card.memory.unexplained_mib) == ({}, 0)


# -- a pool beside others

_MAPS = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
AT, SIZE, FIXED_NOREPLACE = 0x3_0000_0000, 64 * 1024**2, 0x100000
def at(flags, file, offset):
    flags |= FIXED_NOREPLACE
    assert libc.mmap(AT, SIZE, mmap.PROT_READ, flags, file, offset) == AT, ctypes.get_errno()
at(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
print(flush=True)
for offset in map(int, sys.stdin):
    libc.munmap(ctypes.c_void_p(AT), ctypes.c_size_t(SIZE))
    at(mmap.MAP_SHARED, os.open(sys.argv[1], os.O_RDONLY), offset or AT)
    print(flush=True)
"""


class Other:
    """Another process, which maps a file in the place of memory: in all as many pages."""

    def __init__(self, file: Path) -> None:
        file.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAPS, str(file)], stdin=-1, stdout=-1, text=True
        )
        self._wait()

    def map(self, offset: int) -> None:
        """offset: in the file; 0 for the address, as NVIDIA's driver demands."""
        assert self.process.stdin
        self.process.stdin.write(f"{offset}\n")
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline()


@pytest.fixture
def other(card: Card, tmp_path: Path) -> Iterator[Other]:
    made = Other(tmp_path / "renamed")
    card.other = made.process.pid
    with made.process:
        yield made
        made.process.kill()


def test_what_lasts_for_two_looks_is_the_pool_s(card: Card, other: Other) -> None:
    other.map(4096)
    card.look(300, times=3)
    card.map(2 + POOL_MIB)
    assert card.look(300 + 5120) == {}
    assert card.look(300 + 5120) == {ME: 5120}
    assert card.look(300 + 6144) == {ME: 5120}
    assert card.look(300 + 4096) == {ME: 4096}


def test_memory_is_not_the_pool_s_beside_who_maps_a_device_under_another_name(
    card: Card, other: Other
) -> None:
    card.look(300, times=3)
    card.map(2 + POOL_MIB)
    other.map(0)
    assert card.look(300 + 8000, times=3) == {}
    assert card.memory.unexplained_mib == 8000 // 64 * 64


def test_who_was_read_before_is_read_again_before_memory_is_the_pool_s(
    card: Card, other: Other
) -> None:
    """It can have mapped the device in the place of as much memory."""
    card.look(300, times=3)
    card.map(2 + POOL_MIB)
    assert card.look(300 + 1024, times=2) == {ME: 1024}
    other.map(0)
    assert card.look(300 + 8000, times=3) == {}
    other.map(4096)
    assert card.look(300 + 8000, times=3) == {}, "whoever has hidden once may have before the look"


def test_what_a_process_that_is_gone_had_is_not_the_pool_s(card: Card, other: Other) -> None:
    card.look(300, times=3)
    card.map(2 + POOL_MIB)
    other.process.kill()
    other.process.wait()
    assert card.look(300 + 8000, times=3) == {}


def test_memory_is_not_the_pool_s_while_another_is_not_read(
    card: Card, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    go_on = MappedBytes.go_on

    def never_ends(mapped: MappedBytes) -> None:
        if mapped.pid == card.other:
            released.wait()
        go_on(mapped)

    monkeypatch.setattr(MappedBytes, "go_on", never_ends)
    monkeypatch.setattr(managed_memory, "_WAIT_S", 0.0)
    try:
        card.look(300, times=3)
        card.map(2 + POOL_MIB)
        assert card.look(300 + 8000, times=3) == {}
    finally:
        released.set()
