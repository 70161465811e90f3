"""seeds.md B on four A10: cGPU's lists for several cards, and its compute policies."""

from collections.abc import Iterator

import pytest

from tests.host.host import Host, host_of
from tests.host.published import CARDS, SUCCESS, results

A10_MIB = 23028
GPU_TEST0123 = {"ALIYUN_COM_GPU_MEM_DEV": "23", "NVIDIA_VISIBLE_DEVICES": "0,1,2,3"}


def share_mib(gib: int) -> int:
    return A10_MIB * gib // 23


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """A program that uses several cards needs one domain over them."""
    yield from host_of("A10-23028x4", cards=CARDS, domains=[[0, 1, 2, 3]])


def test_b1_a_list_is_for_the_cards_in_turn(host: Host) -> None:
    gib = [3, 4, 5, 6]
    environment = GPU_TEST0123 | {"ALIYUN_COM_GPU_MEM_CONTAINER": "3,4,5,6"}
    made = host.holding(environment, name="gpu_test0123")
    assert host.ledger == {card: (share_mib(each), 0) for card, each in enumerate(gib)}
    granted = host.granted_to(made)
    assert [card.memory_mib for card in granted.cards] == [share_mib(each) for each in gib]
    assert made.lines[0]["devices"] == 4


def test_b1_who_takes_more_of_a_card_than_its_own_share_does_not_keep_it(host: Host) -> None:
    """MPS knows one limit for all cards of a program, the largest; what is over a smaller one is
    the watchdog's."""
    environment = GPU_TEST0123 | {"ALIYUN_COM_GPU_MEM_CONTAINER": "3,4,5,6"}
    done = host.ran(environment, "sim-cuda", "device=0", f"alloc={share_mib(4)}", "hold=25")
    assert results(done) == [SUCCESS]
    assert done.code != 0, done
    host.until_nothing_reserved()
