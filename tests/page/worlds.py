"""Nodes to be looked at."""

from dataclasses import replace

from msgspec.structs import replace as changed

from mpsd.agent.rules.node_events import REFUSED
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import State
from mpsd.model.events import PastEvent, Reason
from mpsd.model.node_report import (
    NO_VIOLATIONS,
    FaultsReport,
    GrantViolations,
    SeenViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
)
from mpsd.model.node_view import Client, DomainView, NodeView
from mpsd.model.times import stamp, utc
from mpsd.status.page.rules.pages import (
    aged,
    cluster_page,
    node_page,
    node_parts,
    own_scene,
    pods_here,
)
from mpsd.status.page.rules.view import PageHead, PageScope, PageView, PodsHeard, PodsHere, pod_card
from mpsd.status.rules.explanation import explanation_of
from mpsd.status.rules.node_report import node_report
from mpsd.status.rules.pods import read_pod_seen
from tests.model.worlds import GPUS as SOME
from tests.model.worlds import POLICY, identity
from tests.page_worlds import GIB, domain, granted, node
from tests.status.cluster_worlds import cluster_node, held
from tests.status.test_pod_explanation import pod, scene

_GPUS = tuple(replace(SOME[0], uuid=f"GPU-{ordinal:032x}", ordinal=ordinal) for ordinal in range(4))
_PODS = (
    (0, "research/resnet-sweep-0-x7k2p", 7, 6.2, 30),
    (0, "research/resnet-sweep-1-9qv4m", 7, 5.9, 30),
    (0, "serving/llm-gateway-6d5f9c-bd2lq", 6, 3.1, 40),
    (1, "serving/embedder-84cc6f-k7zzt", 9, 8.8, 50),
    (1, "default/notebook-lin", 5, 0.4, 0),
    (2, "research/finetune-llama-0", 20, 18.7, 0),
    (3, "default/notebook-wang", 4, 1.2, 20),
    (3, "batch/transcode-job-77-vw8xk", 3, 3.4, 20),
)


def troubled(now: float) -> PageView:
    """A node beside a kubelet on an ordinary bad night: one GPU in fault, one pod over its grant,
    two that wait."""
    grants = [
        (granted(_GPUS[gpu], name.split("/")[1], gib * GIB, name.split("/")[0], percent), used)
        for gpu, name, gib, used, percent in _PODS
    ]
    clients = tuple(
        Client(
            identity(4100 + number),
            grant.gpus[0],
            int(used * GIB),
            True,
            "python train.py",
            grant.id,
        )
        for number, (grant, used) in enumerate(grants)
    )
    foreign = Client(identity(991), _GPUS[1].uuid, GIB, False, "python3 /tmp/bench.py", None)
    base = node(_GPUS, [grant for grant, _used in grants])
    in_fault = replace(
        domain(_GPUS[2], State.FAULT, "a program had a GPU fault; its clients are being ended")
    )
    domains = [DomainView(replace(in_fault, since=now - 140, restarts_total=1), frozenset())]
    domains += [
        DomainView(replace(domain(gpu), since=now - 90_000), frozenset())
        for gpu in _GPUS
        if gpu != _GPUS[2]
    ]
    seen: NodeView = replace(base, now=now, clients=(*clients, foreign), domains=tuple(domains))
    over = ViolationReport(
        at=utc(now - 30),
        kind="memory_over_grant",
        action="kill",
        gpu=_GPUS[3].uuid,
        pid=4107,
        command="ffmpeg",
        grant="g",
        pod="batch/transcode-job-77-vw8xk",
        message="pid 4107 (ffmpeg): its pod uses 3481 MiB of gpu3, and may use 3072",
    )
    watched = SeenViolations(ViolationsReport(since=utc(now - 86_000), last=(over,)), {})
    happened = [
        PastEvent(
            now - 140,
            Reason.FAULT.value,
            "gpu-a1",
            "MPS domain gpu2 had a fault, which ended every program there",
        ),
        PastEvent(now - 60, REFUSED, "python train.py", "no single GPU has 40 GiB: the most is 23"),
        PastEvent(now - 7300, Reason.READY.value, "gpu-a1", "MPS domain gpu3 serves"),
    ]
    return node_page(
        node_report(seen, POLICY, watched, "0.1.0"), "gpu-a1", happened, pods=_bound(seen, now)
    )


def _bound(seen: NodeView, now: float) -> PodsHere:
    """Two pods of the node that do not run yet: one for its GPU, one for its image."""
    pulls = {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "registry.example/evaluate:v3"',
    }
    pods = [
        _starting("research", "finetune-qwen-0", 3, _GPUS[2].uuid, now - 120, 40),
        _starting("research", "evaluate-3-kx2lw", 2, _GPUS[0].uuid, now - 900, waiting=pulls),
    ]
    around = own_scene("gpu-a1", seen, POLICY)
    return pods_here([read_pod_seen(one, POLICY) for one in pods], {}, around, PodsHeard())


def _starting(
    namespace: str,
    name: str,
    gib: int,
    gpu: str,
    bound: float,
    percent: int = 0,
    waiting: dict[str, str] | None = None,
) -> object:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(bound)}
    states = [{"name": "main", "state": {"waiting": waiting}}] if waiting else []
    return pod(
        gib,
        percent,
        metadata={**_named(namespace, name), "annotations": {"mpsd.io/gpu": gpu}},
        spec={"nodeName": "gpu-a1"},
        status={"conditions": [scheduled], "containerStatuses": states},
    )


def hostile() -> NodeView:
    """A node whose tenants have chosen their names for the page."""
    evil = "<img src=x onerror=document.title='caught'>"
    pods = [
        granted(SOME[0], evil, 4 * GIB, "<b>ns</b>"),
        granted(SOME[1], "\u202eevil\u2066", 4 * GIB),
    ]
    base = node(SOME, pods)
    foreign = Client(
        identity(9),
        SOME[0].uuid,
        GIB,
        True,
        f"</script><script>document.title='caught'</script>{evil}",
        None,
    )
    reason = f"{evil} {{n}} </style>"
    domains = (base.domains[0], DomainView(domain(SOME[1], State.DOWN, reason), frozenset()))
    return replace(base, clients=(*(base.clients or ()), foreign), domains=domains, unknown=(evil,))


def cluster(now: float) -> PageView:
    """Eight nodes: one in fault, one silent, and pods that wait."""
    nodes = [_node(f"gpu-a{number}", now) for number in range(1, 9)]
    first, *rest = nodes[2].domains
    broken = changed(
        first,
        state=State.FAULT.value,
        since=utc(now - 75),
        reason="a program had a GPU fault",
        faults=FaultsReport(1, utc(now - 75)),
    )
    gpus = tuple(
        changed(gpu, state=State.FAULT.value) if gpu.domain == first.name else gpu
        for gpu in nodes[2].gpus
    )
    nodes[2] = changed(nodes[2], ready=False, domains=(broken, *rest), gpus=gpus)
    nodes[0] = _broke_a_limit(nodes[0], now)
    nodes[5] = aged(changed(nodes[5], reported_at=now - 1500), now)
    around = scene(*nodes)
    pods = [
        ("research", "finetune-qwen-0", 20, 4000),
        ("research", "resnet-sweep-7-2k9dx", 12, 700),
        ("batch", "embed-all-0", 30, 90_000),
    ]
    made = [
        {**_named(space, name), "creationTimestamp": stamp(now - ago)}
        for space, name, _gib, ago in pods
    ]
    seen = [
        read_pod_seen(pod(one[2], metadata=metadata), POLICY)
        for one, metadata in zip(pods, made, strict=True)
    ]
    cards = [pod_card(one, explanation_of(one, replace(around, now=now))) for one in seen]
    head = PageHead(PageScope.CLUSTER, "cluster", "0.1.0", now)
    return cluster_page(head, [node_parts(one, now) for one in nodes], cards)


def _broke_a_limit(node: ClusterNode, now: float) -> ClusterNode:
    """Its first pod did so three times, and its second never."""
    first, second, *others = node.pods or ()
    last = ViolationReport(at=utc(now - 60), kind="memory_over_grant", action="kill", pod=first.pod)
    own = GrantViolations((ViolationCount(kind="memory_over_grant", count=3),), last)
    pods = changed(first, violations=own), changed(second, violations=NO_VIOLATIONS), *others
    seen = ViolationsReport(pods=1, counts=own.counts, last=(last,))
    return changed(node, pods=pods, violations=seen)


def _named(namespace: str, name: str) -> dict[str, str]:
    return {"namespace": namespace, "name": name, "uid": f"uid-of-{name}"}


def _node(name: str, now: float) -> ClusterNode:
    sizes = (23, 23, 23, 23)
    pods = tuple(
        changed(
            held(f"{job}-{name[-1]}", gib, ordinal, name, 25),
            pod=f"{space}/{job}-{name[-1]}",
            used_mib=int(gib * GIB * used),
            clients=1,
        )
        for ordinal in range(len(sizes))
        for space, job, gib, used in (
            ("research", f"sweep-{ordinal}", 9, 0.8),
            ("serving", f"llm-{ordinal}", 7, 0.55),
        )
    )
    made = cluster_node(name, sizes, held=pods)
    gpus = tuple(
        changed(
            gpu,
            model="NVIDIA A30",
            granted_mib=16 * GIB,
            granted_percent=50,
            used_mib=11 * GIB,
            clients=2,
        )
        for gpu in made.gpus
    )
    domains = tuple(changed(one, since=utc(now - 90_000)) for one in made.domains)
    return changed(made, reported_at=now - 4, gpus=gpus, domains=domains, version="0.1.0")
