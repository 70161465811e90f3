"""What the API server held of a node's GPUs after every single change, whoever made it.

A pod counts once, by what kubelet gave it, else by what is written on it, else by its reservation.
"""

import json
from collections.abc import Iterator, Mapping

from mpsd.kubelet.rules.node_pods import GPU
from mpsd.scheduler.rules.reservations import KEY
from mpsd.simulator.api_server.kinds import Object
from mpsd.simulator.api_server.objects import Stored
from tests.simulated_api import SimulatedApi
from tests.whole.scheduler.world import GIB

Load = Mapping[str, int]  # MiB by GPU


def overfull(api: SimulatedApi, gib: Mapping[str, int]) -> list[str]:
    """Every moment at which a GPU held more than it has. gib: what each GPU may hold."""
    changes: list[Stored] = api.do(lambda: list(api.cluster.store.since(1)))
    return [
        f"after version {version} {uuid} holds {mib / GIB:g} of {gib[uuid]} GiB"
        for version, load in loads(changes)
        for uuid, mib in load.items()
        if mib > gib[uuid] * GIB
    ]


def loads(changes: list[Stored]) -> Iterator[tuple[int, Load]]:
    pods: dict[str, Object] = {}
    nodes: dict[str, Object] = {}
    for change in changes:
        now, before = change.now, change.before
        if change.key.plural == "mpsnodes" and now:
            nodes[change.key.name] = now
        elif change.key.plural == "pods":
            pods |= {now["metadata"]["uid"]: now} if now else {}
            if before and not now:
                pods.pop(before["metadata"]["uid"], None)
        else:
            continue
        load: dict[str, int] = {}
        for node, thing in nodes.items():
            for uuid, mib in _held(node, thing, pods):
                load[uuid] = load.get(uuid, 0) + mib
        yield change.version, load


def _held(node: str, thing: Object, pods: Mapping[str, Object]) -> Iterator[tuple[str, int]]:
    grants = {one["uid"]: one for one in (thing.get("status") or {}).get("grants") or ()}
    for one in grants.values():
        yield from ((uuid, one["memoryMiB"]) for uuid in one["gpus"])
    for uid, pod in pods.items():
        if pod["spec"].get("nodeName") == node and uid not in grants:
            uuids = pod["metadata"]["annotations"][GPU].split(",")
            yield from ((uuid, _mib(pod) // len(uuids)) for uuid in uuids)
    reserved = json.loads((thing["metadata"].get("annotations") or {}).get(KEY, "{}"))
    for uid, one in reserved.items():
        if uid in pods and uid not in grants and not pods[uid]["spec"].get("nodeName"):
            yield from ((uuid, one["mib"]) for uuid in one["gpus"])


def _mib(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"]) * GIB
