"""The GPUs of a node or a cluster as shown: the shape of `kubectl mps -o json`, an interface with
the names and units of model.node_report. What is not known is None, and never zero."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import asdict

from mpsd.model.conditions import REASONS_OF_DOMAINS, Truth
from mpsd.model.domain import ALL, drains, unknown_cordons
from mpsd.model.names import HEARTBEAT_S, STALE_S
from mpsd.model.node_report import (
    GpuReport,
    GrantReport,
    NodeStatus,
)
from mpsd.model.problem import shortened, shown
from mpsd.model.times import epoch, lasting


class ServedGpu(GpuReport, frozen=True, omit_defaults=False):
    """A GPU with what its domain and an operator say of it."""

    #: Empty where it is this machine.
    node: str = ""
    #: Of its domain; None where no control daemon holds the GPU.
    state: str | None = None
    restarts: int | None = None
    context_mib: int | None = None
    #: By the spec, as any GPU of its domain.
    cordoned: bool = False


def served_gpus(
    node: NodeStatus, name: str = "", cordoned: frozenset[str] = frozenset()
) -> tuple[ServedGpu, ...]:
    """name: empty where it is this machine. cordoned: as in the spec, UUIDs or `all`; of this
    machine the states show what is."""
    domains = {domain.name: domain for domain in node.domains}
    draining = drains(cordoned, node.domains if cordoned else ())
    found = []
    for gpu in node.gpus:
        domain = domains.get(gpu.domain)
        reported = asdict(gpu)
        reported["label"] = gpu.label or gpu.uuid
        if domain:
            reported["state"] = domain.state
            reported["restarts"] = domain.restarts
            reported["context_mib"] = domain.context_mib
        else:
            reported["domain"] = ""
        drained = not cordoned.isdisjoint({ALL, gpu.uuid}) or reported["domain"] in draining
        found.append(ServedGpu(**reported, node=name, cordoned=drained))
    return tuple(found)


def ended_before(causes: Iterable[str]) -> str:
    """Whose ends are a fault's likely cause, in words."""
    who = shortened([*dict.fromkeys(causes)])
    return f"likely cause, ended just before it: {who}" if who else "its cause is not known"


class PlacedGrant(NamedTuple):
    grant: GrantReport
    #: Of its GPUs.
    labels: tuple[str, ...]
    #: Empty where it is this machine.
    node: str


def placed(
    grants: Iterable[GrantReport], node: NodeStatus, name: str = ""
) -> Iterator[PlacedGrant]:
    """name: of the node, empty where it is this machine."""
    labels = node.labels
    for grant in grants:
        yield PlacedGrant(grant, tuple([labels.get(uuid, uuid) for uuid in grant.gpus]), name)


class ClusterNode(NodeStatus, frozen=True, omit_defaults=False):
    name: str = ""
    #: By a recent report every GPU takes programs.
    ready: bool = False
    #: Of its last report, seconds since 1970; None where there is none.
    reported_at: float | None = None
    #: That is too long ago to be believed.
    stale: bool = False
    #: As in the spec, UUIDs or `all`.
    cordoned: tuple[str, ...] = ()
    gpus: tuple[ServedGpu, ...] = ()
    #: The grants of its pods; None where the node does not know them.
    pods: tuple[GrantReport, ...] | None = None
    #: What is wrong with the object, a sentence each.
    unreadable: tuple[str, ...] = ()

    @property
    def cordoned_labels(self) -> str:
        """What is cordoned, by label; empty where nothing is."""
        labels = self.labels
        return ",".join(sorted(labels.get(one, one) for one in self.cordoned))


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The nodes of a cluster. now: seconds since 1970, by the clock of whoever asks."""

    now: float
    nodes: tuple[ClusterNode, ...]

    @property
    def ready(self) -> bool:
        return bool(self.nodes) and all(node.ready for node in self.nodes)


def is_stale(reported_at: float | None, now: float) -> bool:
    return reported_at is not None and now - reported_at > STALE_S


# Sentences about a node; each begins with its name, for it is read in a list of many nodes.


def silence(node: ClusterNode, now: float) -> str | None:
    """Why what is shown of a node may be out of date."""
    if node.reported_at is None:
        return (
            f"{node.name} has reported nothing yet; check that a pod of the DaemonSet mpsd-agent"
            " runs there"
        )
    if not node.stale:
        return None
    silent = (
        f"has reported nothing for {lasting(now - node.reported_at)} (expected every"
        f" {lasting(HEARTBEAT_S)})"
    )
    why = "its agent does not run, or does not reach the API server"
    return f"{node.name} {silent}: {why}; its last report is shown"


def troubles(node: ClusterNode, now: float) -> Iterator[str]:
    """What an operator should know of a node beside its rows and its domains, a sentence each."""
    if silent := silence(node, now):
        yield silent
    for one in node.conditions:
        if one.status != Truth.TRUE and one.reason not in REASONS_OF_DOMAINS:
            since = epoch(one.last_transition_time)
            lasts = "" if since is None else f" for {lasting(now - since)}"
            yield f"{node.name}: {one.type} is {one.status}{lasts}, {one.reason}: {one.message}"
    for gpu in node.gpus:
        if gpu.unseen:
            yield f"{node.name}: it is not known which processes use {gpu.label}: {gpu.unseen}"
    for unknown in unknown_cordons(frozenset(node.cordoned), node.domains) if node.domains else ():
        yield f"{node.name}: spec.cordoned names {shown(unknown)}, which is not a GPU of this node"
    if node.unreadable:
        more = f" (and {len(node.unreadable) - 1} more)" if len(node.unreadable) > 1 else ""
        yield f"{node.name}: its MPSNode cannot be read: {node.unreadable[0]}{more}"
