"""What is to be known of a node of the cluster beside its rows: that it is silent, and what is wrong there.

One rule: a sentence begins with the node's name, for it is read in a list of many nodes.
"""

from collections.abc import Iterator

from mpsd.model.cluster_status import ClusterNode, ConditionStatus
from mpsd.model.conditions import SAID_OF_DOMAINS, Truth
from mpsd.model.cordon import unknown_cordons
from mpsd.model.domains import Domain
from mpsd.model.durations import lasting
from mpsd.model.heartbeat import HEARTBEAT_S
from mpsd.model.problem import shown


def silence(node: ClusterNode, now: float) -> str | None:
    """Why what is shown of a node may not be how it is; None where it has told of late."""
    if node.told_at is None:
        return f"{node.name} has told nothing yet; see whether a pod of the DaemonSet mpsd-agent runs there"
    if not node.stale:
        return None
    how_long = f"for {lasting(now - node.told_at)}, and should every {lasting(HEARTBEAT_S)}"
    why = "its agent does not run, or does not reach the API server"
    return f"{node.name} has told nothing {how_long}: {why}; shown is what it told last"


def troubles(node: ClusterNode, now: float) -> Iterator[str]:
    """What is to be known of a node beside its rows and its domains, a sentence each."""
    if silent := silence(node, now):
        yield silent
    for condition in node.conditions:
        if condition.status != Truth.TRUE and condition.reason not in SAID_OF_DOMAINS:
            yield _said(node, condition, now)
    known = [Domain(domain.name, domain.gpus) for domain in node.domains]
    for stranger in unknown_cordons(frozenset(node.cordoned), known) if known else ():
        yield f"{node.name}: spec.cordoned names {shown(stranger)}, which is no GPU of this node"
    if node.unreadable:
        more = f" (and {len(node.unreadable) - 1} more)" if len(node.unreadable) > 1 else ""
        yield f"{node.name}: what it told cannot be read: {node.unreadable[0]}{more}"


def _said(node: ClusterNode, condition: ConditionStatus, now: float) -> str:
    since = "" if condition.since is None else f" for {lasting(now - condition.since)}"
    return f"{node.name}: {condition.type} is {condition.status}{since}, {condition.reason}: {condition.message}"
