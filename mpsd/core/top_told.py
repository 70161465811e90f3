"""The GPUs of a cluster for `top`, of what its MPSNodes tell: they are shown before the pods have been read.

One rule: as core.node_rows: what is as an agent writes it makes the rows that all that can be read of it makes.
"""

from collections.abc import Iterator
from typing import TypedDict

from mpsd.core.cluster_status import Seconds, amount, gpu_label, is_stale
from mpsd.core.mpsnode_told import ToldDomain, ToldMetadata
from mpsd.core.top_rows import NO_DAEMON, SILENT, TopGpu


class ToldTopGpu(TypedDict, total=False):
    uuid: str | None
    index: int | None
    model: str | None
    domain: str | None
    promisedMiB: int | None
    grantedMiB: int | None
    usedMiB: int | None
    clients: int | None


class ToldTopStatus(TypedDict, total=False):
    toldAt: str | None
    gpus: list[ToldTopGpu] | None
    domains: list[ToldDomain] | None


class ToldTopNode(TypedDict, total=False):
    """The fields of an MPSNode that these rows are made of, for whoever reads JSON by types."""

    metadata: ToldMetadata | None
    status: ToldTopStatus | None


def told_gpus(told: ToldTopNode, now: float, seconds: Seconds) -> Iterator[TopGpu]:
    status: ToldTopStatus = told.get("status") or {}
    name = (told.get("metadata") or {}).get("name") or "(no name)"
    states = {domain.get("name") or "": domain.get("state") or "unknown" for domain in status.get("domains") or ()}
    is_silent = is_stale(seconds(status.get("toldAt") or ""), now)
    for gpu in status.get("gpus") or ():
        uuid = gpu.get("uuid") or ""
        yield TopGpu(
            node=name,
            gpu=uuid,
            label=gpu_label(uuid, amount(gpu.get("index"))),
            model=gpu.get("model") or "",
            state=SILENT if is_silent else states.get(gpu.get("domain") or "") or NO_DAEMON,
            memory_mib=amount(gpu.get("promisedMiB")),
            granted_mib=amount(gpu.get("grantedMiB")),
            used_mib=amount(gpu.get("usedMiB")),
            clients=amount(gpu.get("clients")),
            sm_percent=None,
        )
