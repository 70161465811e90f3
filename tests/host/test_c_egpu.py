"""seeds.md C on V100 cards of 16160 MiB: eGPU's document, number by number."""

from collections.abc import Iterator

import pytest

from tests.host.host import Host, host_of
from tests.host.published import CARDS

MIB = 1024**2
RESERVED = 10 * MIB  # where the document says nothing else
ON = {"AMP_VGPU_ENABLE": "1", "AMP_USE_HOST_DAEMON": "1", "NVIDIA_DRIVER_CAPABILITIES": "all"}
FIVE_GB = ON | {"GPU_MEM_PER_DEVICE": "5000000000", "NVIDIA_VISIBLE_DEVICES": "0"}


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """Six cards, because the document names 3 and 5."""
    yield from host_of("V100-16160x6", cards=CARDS, domains=[[3, 5]])


def test_c1_the_published_container_has_two_gb_and_half_of_card_1(host: Host) -> None:
    environment = ON | {
        "GPU_MEM_PER_DEVICE": "2000000000",
        "GPU_UTIL_PER_DEVICE": "50",
        "NVIDIA_VISIBLE_DEVICES": "1",
    }
    made = host.holding(environment)
    assert host.ledger[1] == ((2000000000 - RESERVED) // MIB, 50)
    assert {card: ledger for card, ledger in host.ledger.items() if card != 1} == dict.fromkeys(
        (0, 2, 3, 4, 5), (0, 0)
    )
    assert made.heard("sms") == 40
    assert made.lines[0]["uuid"] == host.simulation.gpus[1].uuid


def test_c2_cards_are_named_by_index_and_by_uuid(host: Host) -> None:
    named = f"3,{host.simulation.gpus[5].uuid}"
    made = host.holding(ON | {"GPU_MEM_PER_DEVICE": "5000000000", "NVIDIA_VISIBLE_DEVICES": named})
    share = ((5000000000 - RESERVED) // MIB, 0)
    assert host.ledger == dict.fromkeys((0, 1, 2, 4), (0, 0)) | dict.fromkeys((3, 5), share)
    assert made.lines[0]["devices"] == 2


def test_c5_a_program_that_lifts_its_limit_and_takes_more_is_ended_and_its_neighbour_is_not(
    host: Host,
) -> None:
    """MPS itself lets nobody have more than the largest grant on the card, which is the neighbour's
    here."""
    neighbour = host.holding(FIVE_GB | {"GPU_MEM_PER_DEVICE": "10000000000"})
    done = host.ran(FIVE_GB, "sim-cuda", "lift=0=9000M", "alloc=6000", "hold=25")
    assert done.code != 0, done
    assert not [line for line in done.lines if "end" in line]
    assert neighbour.status == "running"
    assert host.granted_to(neighbour).used_mib
