"""seeds.md C on V100 cards of 16160 MiB: eGPU's document, number by number."""

from collections.abc import Iterator

import pytest

from tests.host.host import Host, host_of
from tests.host.published import CARDS, OUT_OF_MEMORY, SUCCESS, largest, results

MIB = 1024**2
RESERVED = 10 * MIB  # where the document says nothing else
ON = {"AMP_VGPU_ENABLE": "1", "AMP_USE_HOST_DAEMON": "1", "NVIDIA_DRIVER_CAPABILITIES": "all"}
FIVE_GB = ON | {"GPU_MEM_PER_DEVICE": "5000000000", "NVIDIA_VISIBLE_DEVICES": "0"}
FIVE_OF_16 = ON | {
    "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
    "ALIYUN_COM_GPU_MEM_DEV": "16",
    "NVIDIA_VISIBLE_DEVICES": "0",
}
A_THIRD = ON | {
    "GPU_UTIL_PER_DEVICE": "33",
    "GPU_MEM_PER_DEVICE": "5000000000",
    "NVIDIA_VISIBLE_DEVICES": "0",
}


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """Six cards, because the document names 3 and 5."""
    yield from host_of("V100-16160x6", cards=CARDS, domains=[[3, 5]])


@pytest.mark.parametrize("switch", [{}, {"AMP_VGPU_ENABLE": "0"}], ids=["unset", "0"])
def test_c1_without_the_switch_the_container_is_started_as_it_was(
    host: Host, switch: dict[str, str]
) -> None:
    off = {name: value for name, value in FIVE_GB.items() if name != "AMP_VGPU_ENABLE"}
    host.ran_as_it_was(off | switch)
    if switch:
        # CONTAINER and DEV are eGPU's where its switch is
        host.ran_as_it_was({**FIVE_OF_16, **switch})


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


@pytest.mark.parametrize("mixed", ["indices", "uuids", "both"])
def test_c2_cards_are_named_by_index_by_uuid_and_by_a_mix_of_both(host: Host, mixed: str) -> None:
    third, fifth = host.simulation.gpus[3].uuid, host.simulation.gpus[5].uuid
    named = {"indices": "3,5", "uuids": f"{third},{fifth}", "both": f"3,{fifth}"}[mixed]
    made = host.holding(ON | {"GPU_MEM_PER_DEVICE": "5000000000", "NVIDIA_VISIBLE_DEVICES": named})
    share = ((5000000000 - RESERVED) // MIB, 0)
    assert host.ledger == dict.fromkeys((0, 1, 2, 4), (0, 0)) | dict.fromkeys((3, 5), share)
    assert made.lines[0]["devices"] == 2


def test_c2_unused_cards_are_joined_for_a_container_that_names_them(host: Host) -> None:
    made = host.holding(ON | {"GPU_MEM_PER_DEVICE": "5000000000", "NVIDIA_VISIBLE_DEVICES": "0,1"})
    assert made.lines[0]["devices"] == 2
    assert host.domain("gpu0-1").gpus == (
        host.simulation.gpus[0].uuid,
        host.simulation.gpus[1].uuid,
    )


def test_c3_five_gb_in_bytes_less_ten_mb_are_available(host: Host) -> None:
    assert largest(host, FIVE_GB) == (5000000000 - RESERVED) // MIB


def test_c5_a_program_over_its_limit_is_told_that_it_is_out_of_memory(host: Host) -> None:
    done = host.ran(FIVE_GB, "sim-cuda", "alloc=4400", "free", "alloc=5000")
    assert results(done) == [SUCCESS, OUT_OF_MEMORY]


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


def test_c6_33_percent_are_a_third_of_the_sms(host: Host) -> None:
    made = host.holding(A_THIRD)
    assert made.heard("sms") == 26  # of 80, by twos
    assert host.ledger[0] == ((5000000000 - RESERVED) // MIB, 33)
