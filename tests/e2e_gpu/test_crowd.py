"""Forty clients on one GPU, and one who starts among them."""

from collections.abc import Callable

from tests.e2e.installation import PERCENT
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods, assert_fills, share
from tests.e2e.waiting import eventually
from tests.e2e_gpu.costs import assert_small
from tests.e2e_gpu.installation import CONTEXT_MIB, GpuInstallation

_PODS, _EACH, _GIB = 20, 2, 6
_NAMES = [f"crowd-{number}" for number in range(_PODS)]


def test_a_program_gets_its_share_while_a_crowd_starts(mpsd: GpuInstallation, pods: Pods) -> None:
    """Two programs in each pod, which take what they may have together."""
    one = " ".join([*pods.client, "alloc=350", "free", "alloc=300", "hold"])
    crowd = pods.asks(1) | {"command": ["sh", "-c", f"{one} & exec {one}"]}
    crowd["resources"]["limits"][PERCENT] = str(100 // _PODS)  # for small contexts
    half = _PODS // 2
    pods.create(*(share(name, crowd) for name in _NAMES[:half]))
    pods.create(share("victim", pods.asks(_GIB, "alloc=9000", "hold")))
    pods.create(*(share(name, crowd) for name in _NAMES[half:]))
    said = pods.wait_until_holding("victim")
    assert_fills(said, _GIB, CONTEXT_MIB)
    for name in _NAMES:
        pods.wait_until_holding(name)
    pods.assert_holds("victim")

    def are_there() -> bool:
        clients = {
            grant["pod"].rpartition("/")[2]: grant["clients"] for grant in mpsd.status()["grants"]
        }
        assert sum(clients.values()) == _PODS * _EACH + 1, clients
        return True

    eventually(are_there, "all of them on MPS")


def test_forty_clients_cost_control_and_agent_little(
    mpsd: GpuInstallation,
    pods: Pods,
    machine: Machine,
    record_property: Callable[[str, object], None],
) -> None:
    pods.assert_holds("victim")
    assert_small(8.0, record_property)
