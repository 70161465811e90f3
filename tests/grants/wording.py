"""Why a request has no room on this machine, as people read it: `wording.txt` has the sentences."""

from collections.abc import Iterator
from dataclasses import replace

from mpsd.agent.rules.decide import Refuse
from mpsd.grants.rules.placement import InsufficientResources, place
from mpsd.model.domain import State
from mpsd.model.grants import Request
from mpsd.model.policy import CardCompute, Compute
from tests.grants.card_worlds import Node, apart, cards, egpu, one_domain
from tests.grants.test_placement import CROWD, SEVEN, TOGETHER, refusal
from tests.model.worlds import POLICY, grant


def places() -> Iterator[InsufficientResources]:
    """One of each thing that a request may lack."""
    full = [grant("a", 15), grant("b", 15, 1)]
    none = place(SEVEN, (), POLICY)
    assert isinstance(none, InsufficientResources)
    yield none
    yield refusal(Request(24 * 1024, None, 1))
    yield refusal(Request(10 * 1024, None, 1), *full)
    yield refusal(Request(1024, 30, 1), grant("most", 1, reserved_percent=80), gpus=1)
    yield refusal(SEVEN, *CROWD, gpus=1)
    yield refusal(Request(7 * 1024, None, 2))
    yield refusal(Request(10 * 1024, None, 2), *full, domain_of=TOGETHER)


def named() -> Iterator[Refuse]:
    """Of containers that name their GPUs; in the last, the weights of cGPU."""
    gpus, (card,) = cards(), cards(count=1)
    full = Node(gpus)
    full.ask(egpu((0, 30000, 10), (1, 1024, 95)))
    weighed = Node((card,), policy=replace(POLICY, compute=Compute(5, None, {"0": CardCompute(1, 10)})))
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "1", "ALIYUN_COM_GPU_MEM_DEV": "32", "ALIYUN_COM_GPU_SCHD_WEIGHT": "8"}
    weighed.ask(share)
    for node, asked in (
        (full, egpu((0, 10240, 5), (1, 10240, 10), (2, 10240, 10))),
        (Node(gpus, apart(gpus)), egpu((0, 1024, 10), (1, 1024, 10))),
        (Node(gpus, (one_domain(gpus, State.DRAINED, "cordoned"),)), egpu((2, 1024, 10))),
        (Node(gpus, (one_domain(gpus[:2]),)), egpu((2, 1024, 10))),
        (weighed, share),
    ):
        answer = node.ask(asked)
        assert isinstance(answer, Refuse)
        yield answer


def wording() -> str:
    lines = [f"{'now' if one.ever else 'for ever'}: {one.reason}" for one in places()]
    return "\n".join([*lines, *(f"{'for ever' if one.for_ever else 'now'}: {one.reason}" for one in named())]) + "\n"
