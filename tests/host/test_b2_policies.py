"""seeds.md B2 on T4 cards, each with another compute policy: what a container gets of the SMs, and
what it is told."""

from collections.abc import Iterator

import pytest

from mpsd.model.cgpu_policies import POLICIES
from tests.host.host import Host, host_of
from tests.host.published import CARDS

SMS = 40
MAX_INST = 5  # containers a card
POLICY_OF = dict(enumerate(range(6)))  # the card of that ordinal has the policy of that number


def asked(card: int, weight: int | None = None) -> dict[str, str]:
    share = {
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "NVIDIA_VISIBLE_DEVICES": str(card),
    }
    return share if weight is None else share | {"ALIYUN_COM_GPU_SCHD_WEIGHT": str(weight)}


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    cards = {
        str(card): {"policy": policy, "max_inst": MAX_INST} for card, policy in POLICY_OF.items()
    }
    yield from host_of(
        "T4-15109x6", cards=CARDS, compute={"policy": 5, "max_inst": None, "cards": cards}
    )


def sms(host: Host, card: int, weight: int | None = None) -> int:
    """What a container there may use; its user is told what MPS makes of the card's policy."""
    done = host.ran(asked(card, weight), "sim-cuda", "info")
    assert done.code == 0, done
    selected = 2 if (weight or 1) > 1 and POLICY_OF[card] != 3 else POLICY_OF[card]
    assert (
        f"policy {selected}, {POLICIES[selected].name}: {POLICIES[selected].on_mps}" in done.errors
    )
    return int(done.heard("sms"))


def test_b2_equal_is_one_of_max_inst_parts(host: Host) -> None:
    assert sms(host, 0) == SMS // MAX_INST


@pytest.mark.parametrize("card", [1, 2, 4, 5], ids=["preemptive", "weighted", "weak", "native"])
def test_b2_preemptive_and_weighted_and_weak_and_native_have_no_cap(host: Host, card: int) -> None:
    assert sms(host, card) == SMS


@pytest.mark.parametrize("weight", [1, 2, 3])
def test_b2_a_fixed_share_is_weight_of_max_inst(host: Host, weight: int) -> None:
    assert sms(host, 3, weight) == SMS * weight // MAX_INST
