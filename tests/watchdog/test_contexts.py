"""What a context shows of its SMs: all that were recorded on an H200 are told apart, and nobody
else is accused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.gpu_facts import Capability
from mpsd.model.grants import Gpu, GpuShare, Grant
from mpsd.model.node_view import Client
from mpsd.model.violations import ViolationKind
from mpsd.watchdog.rules.escapes import (
    RESERVED_APART_S,
    most_sms,
    reserved_kib,
    shows_lifted,
    threads_lifted,
)
from mpsd.watchdog.rules.judge import SECOND_SCAN_S
from tests.model.gpu_worlds import EVERYTHING_KILLS, Watch, client, kinds, pod_grant
from tests.model.manifests import FACTS
from tests.model.worlds import GPUS, UUIDS

RECORD = (
    Path(__file__).parents[2] / "docs" / "benchmarks" / "2026-11-24-contexts-H200-580.159.04.json"
)
_FOUND = FACTS.capability("9.0")
assert _FOUND is not None
HOPPER: Capability = _FOUND
H200 = Gpu(UUIDS[0], 0, "NVIDIA H200", 143_155, 132, HOPPER)
CAPPED = pod_grant("a", 100_000, percent=30)  # 38 SMs


@dataclass(frozen=True)
class Recorded:
    """A context as it was recorded. percent: in its program's environment."""

    kind: str
    percent: int
    lifted: bool
    sms: int
    reserved_kib: int
    held_mib: int
    used_mib: float

    @property
    def is_found(self) -> bool:
        grant = replace(CAPPED, thread_percent=self.percent)
        seen = client(1, grant, int(self.used_mib), reserved_kib=self.reserved_kib)
        return bool([*threads_lifted(seen, H200, grant)])


CONTEXTS = [Recorded(*row) for row in json.loads(RECORD.read_text())["rows"]]


def test_every_recorded_context_that_lifted_its_threads_is_found_and_no_honest_one() -> None:
    lifted = [one for one in CONTEXTS if one.lifted]
    honest = [one for one in CONTEXTS if not one.lifted]
    assert (len(lifted), len(honest)) == (84, 232)
    assert [one for one in lifted if not one.is_found] == []
    assert [one for one in honest if one.is_found] == []


def test_what_was_recorded_is_what_the_facts_say() -> None:
    for one in CONTEXTS:
        assert HOPPER.reserved_kib(one.sms) == one.reserved_kib
        assert HOPPER.least_sms(one.reserved_kib, 132) <= one.sms
        # two were on a server with a percentage
        assert one.lifted or HOPPER.sms_given(one.percent, 132) >= one.sms


@given(st.integers(1, 100), st.integers(1, 132), st.integers(0, 100_000))
def test_a_context_within_its_share_is_never_found_whatever_it_allocates(
    percent: int, sms: int, more_mib: int
) -> None:
    grant = replace(CAPPED, thread_percent=percent)
    honest = min(sms, most_sms(grant, H200))
    used_mib = HOPPER.context_cost_mib(honest) + more_mib
    assert not [
        *threads_lifted(
            client(1, grant, used_mib, reserved_kib=HOPPER.reserved_kib(honest)), H200, grant
        )
    ]


@pytest.mark.parametrize(
    ("kib", "used_mib"),
    [
        (0, 516),  # nothing was read
        (6144, 180),  # it has not the memory of such a context
        (6144, None),
        (6144 + 4, 516),  # no size that a reservation has
        (8192, 516),  # more than all SMs reserve
        (4 * 1024**2 + 2048, 516),  # what cuInit reserves, before there is a context
    ],
)
def test_what_no_context_of_more_sms_shows_accuses_nobody(kib: int, used_mib: int | None) -> None:
    assert not [*threads_lifted(client(1, CAPPED, used_mib, reserved_kib=kib), H200, CAPPED)]


@pytest.mark.parametrize(("less_mib", "is_found"), [(8, True), (9, False)])
def test_a_context_may_hold_8_mib_less_than_the_facts_say(less_mib: int, is_found: bool) -> None:
    used_mib = HOPPER.context_cost_mib(HOPPER.least_sms(6144, H200.sms)) - less_mib
    seen = client(1, CAPPED, used_mib, reserved_kib=6144)
    assert bool([*threads_lifted(seen, H200, CAPPED)]) == is_found


def test_what_a_grant_was_before_it_was_reduced_is_what_its_programs_have() -> None:
    reduced = replace(CAPPED, thread_percent=10, earlier_percent=100)
    assert not [*threads_lifted(client(1, reduced, 516, reserved_kib=6144), H200, reduced)]


@pytest.mark.parametrize(
    ("percent", "capability", "gpus", "shows"),
    [
        (30, HOPPER, 1, True),
        (98, HOPPER, 1, True),  # 128 of 132 SMs
        (99, HOPPER, 1, False),  # 130 reserve as much as 132
        (100, HOPPER, 1, False),
        (30, HOPPER, 2, False),
        (30, GPUS[0].capability, 1, False),  # nobody has looked at these
    ],
)
def test_only_grants_are_looked_at_that_could_show_it(
    percent: int, capability: Capability, gpus: int, shows: bool
) -> None:
    parts = tuple(GpuShare(uuid, 1024, 0) for uuid in UUIDS[:gpus])
    grant = replace(CAPPED, thread_percent=percent, parts=parts)
    assert shows_lifted(grant, {H200.uuid: replace(H200, capability=capability)}) is shows


# -- two scans


def seen(used_mib: int = 516, kib: int = 6144, grant: Grant = CAPPED) -> Client:
    return client(1, grant, used_mib, reserved_kib=kib)


def test_a_lifted_share_is_reported_once_it_was_seen_for_a_tenth_of_a_second() -> None:
    watch = Watch(EVERYTHING_KILLS)
    first = watch.look((CAPPED,), seen(), gpus=(H200,))
    assert (first.violations, first.scan_again) == ((), True)
    assert watch.look((CAPPED,), seen(), after_s=SECOND_SCAN_S, gpus=(H200,)).violations == ()
    assert kinds(watch.look((CAPPED,), seen(), after_s=RESERVED_APART_S, gpus=(H200,))) == {
        1: {ViolationKind.THREADS_LIFTED}
    }


def test_a_context_that_shows_more_for_a_moment_while_it_is_made_is_left_alone() -> None:
    watch = Watch(EVERYTHING_KILLS)
    watch.look((CAPPED,), seen(), gpus=(H200,))
    assert watch.look((CAPPED,), seen(kib=2048), gpus=(H200,)).violations == ()
    assert watch.look((CAPPED,), seen(), gpus=(H200,)).violations == (), "and it begins anew"


def test_it_is_reported_once_and_stays_so() -> None:
    watch = Watch()
    found = [watch.look((CAPPED,), seen(516 + n), gpus=(H200,)).violations for n in range(4)]
    assert [len(one) for one in found] == [0, 1, 0, 0]
    ((violation,),) = (one for one in found if one)
    assert (violation.kind.reason, violation.response.ends) == ("GPUThreadsLifted", False)
    assert "129 SMs of gpu0 or more, and 30 % of them are 38" in violation.message


# -- the address space

BEFORE = (
    b"00400000-00420000 r--p 00000000 fe:00 79246                             "
    b" /usr/bin/python3.12\n"
)
AFTER = b"7f3ba8000000-7f3dac000000 ---p 00000000 00:00 0 \n"
DEVICE = b"/dev/nvidia0"


def line(start: int, size: int, mode: bytes = b"---p", path: bytes = b"") -> bytes:
    return b"%x-%x %b 00000000 00:00 0 %b\n" % (
        start,
        start + size,
        mode,
        path and b" " * 25 + path,
    )


def context(kib: int, path: bytes = DEVICE, gap: int = 0) -> list[bytes]:
    first, size = 0x2_0000_0000, kib * 1024
    return [line(first, size), line(first + size + gap, 2048 * 1024, b"rw-s", path)]


@pytest.mark.parametrize("kib", [2048, 4096, 6144])
@pytest.mark.parametrize(
    "before", [[], [BEFORE], [BEFORE, line(0x10000, 0x1000, b"rw-p", b"[heap]")]]
)
def test_the_reservation_before_the_drivers_first_mapping_is_found(
    kib: int, before: list[bytes]
) -> None:
    assert reserved_kib([*before, *context(kib), AFTER]) == kib
    assert reserved_kib([*before, *context(kib, b"/run/mpsd/simulation/nvidia1"), AFTER]) == kib


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [BEFORE, AFTER],
        # after cuInit, before there is a context
        [BEFORE, line(0x2_0000_0000, 0x1_0020_0000), AFTER],
        [line(0x2_0000_0000, 2**21)],
        context(4096, b"/tmp/data"),
        context(4096, b""),
        context(4096, gap=4096),
        [line(0x2_0000_0000, 2**21, b"rw-p"), *context(2048)[1:]],
        [line(0x2_0000_0000, 2**21, b"---p", b"/dev/nvidia0"), *context(2048)[1:]],
        [line(0x2_0020_0000, 2**21), line(0x2_0040_0000, 2**21, b"rw-s", DEVICE)],
        [line(0x1_FFFF_F000, 2**21), line(0x2_001F_F000, 2**21, b"rw-s", DEVICE)],
    ],
)
def test_whatever_else_lies_there_is_none(lines: list[bytes]) -> None:
    assert reserved_kib(lines) == 0


def test_no_more_is_read_than_needed() -> None:
    def mappings() -> Iterator[bytes]:
        yield from context(2048)
        raise AssertionError("the answer was there")

    assert reserved_kib(mappings()) == 2048


@given(
    st.integers(1, 2**20).map(lambda pages: pages * 4096),
    st.lists(
        st.tuples(
            st.integers(1, 2**20),
            st.sampled_from([b"r-xp", b"---p", b"rw-p"]),
            st.binary(max_size=9),
        )
    ),
    st.binary(max_size=20).filter(lambda name: b"\n" not in name and b"/" not in name),
)
def test_whatever_is_mapped_before_and_behind_it_its_size_is_found(
    size: int, others: list[tuple[int, bytes, bytes]], name: bytes
) -> None:
    """Names are any bytes but a line's end, which the kernel escapes."""
    at, lines = 0x1000, list[bytes]()
    for pages, mode, path in others:
        end = at + pages * 4096
        if end > 0x2_0000_0000:
            break
        lines.append(line(at, pages * 4096, mode, path.replace(b"\n", b"?")))
        at = end
    here = [
        line(0x2_0000_0000, size),
        line(0x2_0000_0000 + size, 4096, b"rw-s", b"/dev/nvidia" + name),
    ]
    assert reserved_kib([*lines, *here, AFTER]) == size // 1024


@given(st.lists(st.binary(max_size=60)))
def test_any_bytes_are_read(lines: list[bytes]) -> None:
    assert reserved_kib(lines) == 0
