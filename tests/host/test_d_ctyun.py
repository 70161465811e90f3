"""seeds.md D1 on four V100: CTyun's container with three cards."""

from collections.abc import Iterator

import pytest

from tests.host.host import Host, host_of
from tests.host.published import CARDS


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """A program that uses several cards needs one domain over them."""
    yield from host_of("V100-32768x4", cards=CARDS, domains=[[0, 1, 2]])


def test_d1_three_cards_with_3276_mib_and_10_percent_each(host: Host) -> None:
    each = [f"PGPU={number},MEM=3276,WEIGHT=10" for number in range(3)]
    asked = ":".join(["POLICY=0,ONLINE=0,TYPE=DOCKER", *each])
    made = host.holding({"EGPU": asked, "NVIDIA_VISIBLE_DEVICES": "0,1,2"})
    assert host.ledger == dict.fromkeys(range(3), (3276, 10)) | {3: (0, 0)}
    assert made.lines[0]["devices"] == 3
    assert made.heard("sms") == 8
    (grant,) = host.status()["grants"]
    cards = [(card["memoryMiB"], card["reservedPercent"]) for card in grant["cards"]]
    assert cards == [(3276, 10)] * 3
