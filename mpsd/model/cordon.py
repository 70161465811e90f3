"""What an operator takes out of use: `spec.cordoned` of a node's MPSNode.

One rule: a domain is drained whole, since its GPUs share one control daemon.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mpsd.model.domains import Domain

ALL = "all"


def read_cordoned(mpsnode: Mapping[str, Any]) -> frozenset[str]:
    """UUIDs, or `all`. Any JSON; what cannot be read cordons nothing."""
    spec = mpsnode.get("spec")
    cordoned = spec.get("cordoned") if isinstance(spec, dict) else None
    return frozenset(one for one in cordoned if isinstance(one, str)) if isinstance(cordoned, list) else frozenset()


def drains(cordoned: frozenset[str], domains: Iterable[Domain]) -> dict[str, str]:
    """The domains to drain, by name, each with the reason in words."""
    reasons = {}
    for domain in domains:
        named = sorted(cordoned.intersection((ALL, *domain.gpus)))
        if named:
            reasons[domain.name] = f"cordoned by spec.cordoned of the MPSNode: {', '.join(named)}"
    return reasons


def unknown_cordons(cordoned: frozenset[str], domains: Sequence[Domain]) -> tuple[str, ...]:
    """What is cordoned and is no GPU of this node, such as one that was mistyped."""
    here = {ALL, *(uuid for domain in domains for uuid in domain.gpus)}
    return tuple(sorted(cordoned - here))
