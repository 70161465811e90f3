"""Taking GPUs of a node out of use, and putting them back: what `spec.cordoned` is to be, and what
that does. A GPU keeps its place, unless it or one of its domain is named: a domain drains whole."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import ALL, drains
from mpsd.model.node_report import GrantReport
from mpsd.model.problem import InvalidInput, Problem, shortened
from mpsd.model.quantity import gib


@dataclass(frozen=True, slots=True)
class CordonChange:
    """cordoned: what `spec.cordoned` is to be. By UUID, gpus: those that were named; along: those
    that go with them, since they share a domain; kept: those that were to be put back and stay out
    of use, since another GPU of their domain is cordoned.
    """

    cordon: bool
    cordoned: tuple[str, ...]
    gpus: tuple[str, ...]
    along: tuple[str, ...]
    kept: tuple[str, ...]
    changes: bool

    @property
    def touched(self) -> frozenset[str]:
        return frozenset({*self.gpus, *self.along} - set(self.kept))


def cordon_change(node: ClusterNode, named: Sequence[str], *, cordon: bool) -> CordonChange:
    """named: labels, UUIDs or `all`; nothing means all. InvalidInput names every GPU there is
    not."""
    before = frozenset(node.cordoned)
    here = tuple(node.labels)
    if not named or ALL in named:
        gpus = here
        after = frozenset({ALL}) if cordon else frozenset()
    else:
        gpus = _named(node, named)
        after = before
        if ALL not in before:
            after = before.union(gpus)
        elif not cordon:
            after = frozenset(here)
        if not cordon:
            after = after.difference(gpus)
    draining = _draining(node, after)
    along = _mates(node, gpus).difference(gpus)
    return CordonChange(
        cordon=cordon,
        cordoned=tuple(sorted(after)),
        gpus=gpus,
        along=tuple([uuid for uuid in here if uuid in along and (uuid in draining) is cordon]),
        kept=tuple([uuid for uuid in gpus if uuid in draining and not cordon]),
        changes=after != before,
    )


def _draining(node: ClusterNode, cordoned: frozenset[str]) -> frozenset[str]:
    if ALL in cordoned:
        return frozenset(node.labels)
    names = drains(cordoned, node.domains)
    domains = [domain.gpus for domain in node.domains if domain.name in names]
    return cordoned.intersection(node.labels).union(*domains)


def _named(node: ClusterNode, named: Sequence[str]) -> tuple[str, ...]:
    known = {}
    for gpu in node.gpus:
        known[gpu.label] = known[gpu.uuid] = gpu.uuid
    # also what is there by mistake can be put back
    known |= {one: one for one in node.cordoned if one != ALL}
    has = ", ".join([f"{gpu.label} ({gpu.uuid})" for gpu in node.gpus])
    remedy = f"{node.name} has {has or 'none that it has reported'}; name one, or {ALL}"
    problems = [
        Problem("gpu-unknown", name, "", "is no GPU of this node", remedy)
        for name in dict.fromkeys(named)
        if name not in known
    ]
    if problems:
        raise InvalidInput(f"node {node.name}", problems)
    return tuple(dict.fromkeys([known[name] for name in named]))


def merge_patch(change: CordonChange, version: str) -> dict[str, dict[str, object]]:
    """version: the resourceVersion that it was worked out on, so that no other change is lost."""
    return {"metadata": {"resourceVersion": version}, "spec": {"cordoned": list(change.cordoned)}}


def effects(node: ClusterNode, change: CordonChange, *, with_pods: bool = True) -> Iterator[str]:
    """A sentence each. node: as it was before."""
    named = _labels(node, change.gpus) or "every GPU"
    back = [uuid for uuid in change.gpus if uuid not in change.kept]
    if not change.changes:
        already = "cordoned already" if change.cordon else "not cordoned"
        yield f"{node.name}: {already}: {named}"
    elif change.cordon:
        yield f"{node.name}: no new pods on {named} from now on; running programs continue"
    elif back or not change.gpus:
        yield f"{node.name}: new pods are accepted on {_labels(node, back) or named} again"
    if change.changes and change.along:
        yield f"with it, since they share a control daemon: {_labels(node, change.along)}"
    if change.changes and change.cordon and with_pods:
        pods = holders(node, change.touched)
        for pod in pods:
            yield f"pod {holding(pod, node.labels)} runs until it ends"
        if node.pods is None:
            yield f"{node.name} does not report its pods"
        elif not pods:
            yield "no pod is there"
    if change.kept:
        others = _labels(node, _mates(node, change.kept).intersection(change.cordoned))
        yield (
            f"still out of use, since {others} of the same domain is cordoned:"
            f" {_labels(node, change.kept)}"
        )


def holders(node: ClusterNode, gpus: Collection[str]) -> tuple[GrantReport, ...]:
    return tuple([pod for pod in node.pods or () if not set(pod.gpus).isdisjoint(gpus)])


def holding(pod: GrantReport, labels: dict[str, str]) -> str:
    """A pod with what it holds, such as `default/train-0 (12 GiB of gpu0)`, or all that share a
    claim."""
    amount = "something" if pod.memory_mib is None else f"{gib(pod.memory_mib)} GiB"
    gpus = ",".join([labels.get(uuid, uuid) for uuid in pod.gpus])
    return f"{shortened(pod.names)} ({amount} of {gpus})"


def _mates(node: ClusterNode, gpus: Sequence[str]) -> frozenset[str]:
    domains = [domain.gpus for domain in node.domains if not set(domain.gpus).isdisjoint(gpus)]
    return frozenset().union(*domains)


def _labels(node: ClusterNode, gpus: Collection[str]) -> str:
    labels = node.labels
    here = [label for uuid, label in labels.items() if uuid in gpus]
    return ", ".join([*here, *[one for one in gpus if one not in labels]])
