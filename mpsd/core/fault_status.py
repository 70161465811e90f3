"""What a status says of the faults of a domain, on the node and in the cluster.

One rule: names and units here are an interface; fields are added, never renamed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.core.faults import suspects
from mpsd.core.identity import PodName
from mpsd.core.node_view import DomainRecord


@dataclass(frozen=True, slots=True)
class SuspectStatus:
    """A pod that each of the last `faults` faults hit, since the first of these (seconds since 1970).

    pod: its namespace and name; its uid alone where it is gone.
    """

    pod: str
    uid: str
    faults: int
    since: float


@dataclass(frozen=True, slots=True)
class FaultsStatus:
    """count: of this boot. last: seconds since 1970; None where there was none.

    suspects: who was hit by at least the last two; which of them caused them, if one did, nobody can say.
    """

    count: int = 0
    last: float | None = None
    suspects: tuple[SuspectStatus, ...] = ()


def faults_status(record: DomainRecord, names: Mapping[str, PodName]) -> FaultsStatus:
    """names: of pods, by uid."""
    return FaultsStatus(
        count=record.faults_total,
        last=record.faults[-1].at if record.faults else None,
        suspects=tuple(
            SuspectStatus(str(names.get(one.pod, one.pod)), one.pod, one.faults, one.since)
            for one in suspects(record.faults)
        ),
    )
