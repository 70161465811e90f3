"""seeds.md D on four V100: CTyun's test report, command by command."""

from collections.abc import Iterator

import pytest

from tests.host.container import Container, Ended
from tests.host.host import Host, host_of
from tests.host.published import CARDS, OUT_OF_MEMORY, SUCCESS, results

NEEDS_MIB = 7782  # resnet.py with a batch of 1280: about 7.6 GB
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


@pytest.mark.parametrize("device", [0, 1, 2])
def test_d2_a_program_that_needs_7_6_gb_is_out_of_memory_under_3276_mib(
    host: Host, device: int
) -> None:
    done = host.ran(egpu([(3276, 10)] * 3), "sim-cuda", f"device={device}", f"alloc={NEEDS_MIB}")
    assert results(done) == [OUT_OF_MEMORY]
    assert done.heard("alloc_MiB") < 3276


@pytest.mark.parametrize("device", [0, 1, 2])
def test_d2_it_runs_under_8192_mib(host: Host, device: int) -> None:
    done = host.ran(
        egpu([(8192, 10)] * 3), "sim-cuda", f"device={device}", f"alloc={NEEDS_MIB}", "launch=0.2"
    )
    assert results(done) == [SUCCESS]
    assert done.heard("launches_per_s") > 0


def test_d3_10_and_50_and_100_percent_are_that_much_of_a_card_whatever_the_memory(
    host: Host,
) -> None:
    """Published: 499.7, 2551.3 and 5045.5 examples a second under 10240 MiB, and 498.1 under 8192
    with 10 %."""

    def rate(memory_mib: int, weight: int) -> float:
        work = ["prepare=arithmetic", "measure=0.3"]
        return float(
            host.ran(egpu([(memory_mib, weight)] * 3), "sim-cuda", *work).heard("launches_per_s")
        )

    whole = rate(10240, 100)
    parts = [100 * rate(*asked) / whole for asked in ((10240, 10), (10240, 50), (8192, 10))]
    assert parts == [pytest.approx(published, abs=1) for published in (9.9, 50.6, 9.9)]


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
