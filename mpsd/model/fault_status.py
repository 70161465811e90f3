"""What a status says of the faults of a domain, on the node and in the cluster.

One rule: names and units here are an interface; fields are added, never renamed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.model.identity import PodName
from mpsd.model.node_view import DomainRecord, Fault
from mpsd.mps.rules.faults import suspects


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
class HitStatus:
    """How many processes of a pod a fault hit. pod: as of a suspect; None for processes of no pod that is known."""

    pod: str | None
    processes: int


@dataclass(frozen=True, slots=True)
class FaultsStatus:
    """count: of this boot. last: seconds since 1970; None where there was none.

    suspects: who was hit by at least the last two; which of them caused them, if one did, nobody can say. hit: by the
    last one. healed: when that was over; None while it is not.
    """

    count: int = 0
    last: float | None = None
    suspects: tuple[SuspectStatus, ...] = ()
    hit: tuple[HitStatus, ...] = ()
    healed: float | None = None


def faults_status(record: DomainRecord, names: Mapping[str, PodName]) -> FaultsStatus:
    """names: of pods, by uid."""
    last = record.faults[-1] if record.faults else None
    return FaultsStatus(
        count=record.faults_total,
        last=last.at if last else None,
        suspects=tuple(
            SuspectStatus(str(names.get(one.pod, one.pod)), one.pod, one.faults, one.since)
            for one in suspects(record.faults)
        ),
        hit=_hit(last, names) if last else (),
        healed=last.healed_at if last else None,
    )


def _hit(fault: Fault, names: Mapping[str, PodName]) -> tuple[HitStatus, ...]:
    """Pods by their names, and at the end what is in none that is known."""
    pods = {hit.process.pid: hit.pod for hit in fault.hit}
    number = Counter(pods.get(pid) for pid in fault.pids)
    known = [HitStatus(str(names.get(pod, pod)), count) for pod, count in number.items() if pod is not None]
    others = [HitStatus(None, number[None])] if number[None] else []
    return (*sorted(known, key=lambda one: str(one.pod)), *others)
