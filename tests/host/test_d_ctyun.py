"""seeds.md D on four V100: CTyun's test report, command by command."""

from collections.abc import Iterator

import pytest

from tests.host.container import Container, Ended
from tests.host.host import Host, host_of
from tests.host.published import CARDS

Cards = list[tuple[int, int]]  # MEM and WEIGHT of the cards 0, 1, 2


def egpu(cards: Cards) -> dict[str, str]:
    each = [
        f"PGPU={number},MEM={mem},WEIGHT={weight}" for number, (mem, weight) in enumerate(cards)
    ]
    return {
        "EGPU": ":".join(["POLICY=0,ONLINE=0,TYPE=DOCKER", *each]),
        "NVIDIA_VISIBLE_DEVICES": "0,1,2",
    }


def ledger(*granted: Cards) -> dict[int, tuple[int, int]]:
    """What all these come to; the fourth card is never asked for."""
    of_card = {card: [cards[card] for cards in granted] for card in range(3)}
    return {
        card: (sum(m for m, _ in each), sum(w for _, w in each)) for card, each in of_card.items()
    } | {3: (0, 0)}


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """A program that uses several cards needs one domain over them."""
    yield from host_of("V100-32768x4", cards=CARDS, domains=[[0, 1, 2]])


def refused(host: Host, cards: Cards) -> tuple[Container, Ended]:
    """A container that is not created, and what its user is told; the ledger is as before."""
    before = host.ledger
    made = host.container(egpu(cards))
    done = made.create()
    assert done.code == 1, done
    assert made.status == ""
    assert made.delete().code != 0  # there is nothing to delete
    assert host.ledger == before
    return made, done


def test_d1_three_cards_with_3276_mib_and_10_percent_each(host: Host) -> None:
    asked: Cards = [(3276, 10)] * 3
    made = host.holding(egpu(asked))
    assert host.ledger == ledger(asked)
    assert made.lines[0]["devices"] == 3
    assert made.heard("sms") == 8
    (grant,) = host.status()["grants"]
    assert [(card["memoryMiB"], card["reservedPercent"]) for card in grant["cards"]] == asked


def test_d4_the_fourth_container_is_refused_and_nothing_stays_reserved(host: Host) -> None:
    first: Cards = [(20480, 10), (20480, 10), (10240, 10)]
    second: Cards = [(10240, 10), (10240, 10), (20480, 10)]
    third: Cards = [(2048, 10)] * 3
    held = [host.holding(egpu(cards)) for cards in (first, second, third)]
    assert host.ledger == ledger(first, second, third)
    assert {host.ledger[card][0] for card in range(3)} == {32768}
    _made, done = refused(host, [(1024, 10)] * 3)
    assert "0 of 32768 MiB free, and 1024 MiB are requested" in done.errors
    assert all(container.status == "running" for container in held)
    for container in held:
        assert container.delete(force=True).code == 0
    host.nothing_reserved()
