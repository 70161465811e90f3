"""The sentences about a node's state, as people read them: `wording.txt` has them all."""

from collections.abc import Iterator
from dataclasses import replace

from mpsd.model.cluster_status import troubles
from mpsd.model.conditions import mps_ready
from mpsd.model.domain import State, remedy
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.names import STALE_S
from mpsd.model.node_view import NodeView
from tests.model.worlds import UUIDS, blind
from tests.mpsnodes import NOW, mpsnode
from tests.status.pod_worlds import node


def _conditions() -> Iterator[NodeView]:
    view = node()
    yield from (node(state=state, reason="the reason") for state in State)
    yield node(unknown=("kubelet does not answer",), grants_known=False)
    yield blind(node())
    yield blind(node(), UUIDS[1])
    yield replace(view, domains=view.domains[:1])
    yield replace(view, domains=(), gpus=())
    drained = node(state=State.DRAINED)
    yield replace(drained, gpus=drained.gpus[:1], domains=drained.domains[:1])


def _troubles() -> Iterator[str]:
    mistyped, wrong = mpsnode("gpu-a1"), mpsnode("gpu-a1")
    mistyped["spec"]["cordoned"] = ["GPU-0"]
    wrong["status"]["gpus"][0]["usedMiB"] = "much"
    last = read_mpsnode(mpsnode("gpu-a1"), NOW).reported_at or NOW
    for thing, now in (
        (mpsnode("gpu-a1"), last + STALE_S + 1),
        (mpsnode("gpu-b2"), NOW),
        (mistyped, NOW),
        (wrong, NOW),
    ):
        yield from troubles(read_mpsnode(thing, now), now)


def wording() -> str:
    found = map(mps_ready, _conditions())
    lines = [
        "MPSReady",
        *(f"  {one.status} {one.reason}: {one.message}" for one in found),
        "remedy",
    ]
    lines += [f"  {state}: {remedy(state, 'the reason') or 'none'}" for state in State]
    return "\n".join([*lines, "trouble", *(f"  {one}" for one in _troubles())]) + "\n"
