"""The faults of a domain's GPUs: who was affected, whom to end so that it recovers, and who was there each time.

Nobody is blamed: the log names an innocent process first (docs/mps-observed.md, section 6), so only those affected are
reported, and those affected by each of several faults.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_status import FaultsStatus, HitStatus, SuspectStatus
from mpsd.model.node_view import DomainRecord, Fault, FaultHit
from mpsd.mps.rules.control_protocol import LogEvent, LogLine

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Graces

REMEMBERED = 16  # faults of a domain

# -- the log -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """Faults in the log, as far as it was read. when: of the last one, as the log has it.

    pids: of all that were torn down. listing: whether a line with nothing but a number names one more.
    """

    of_fault: bool = False
    when: str = ""
    pids: frozenset[int] = frozenset()
    listing: bool = False


def read_on(reading: Reading, line: LogLine) -> Reading:
    if line.event is LogEvent.FAULT:
        return replace(reading, of_fault=True, when=line.when, listing=False)
    named = line.event is LogEvent.CLIENT_TORN_DOWN or (reading.listing and line.event is LogEvent.PID)
    pids = reading.pids | {line.pid} if named and line.pid is not None else reading.pids
    listing = line.event is LogEvent.STICKY_ERRORS or (reading.listing and line.event is LogEvent.PID)
    return replace(reading, pids=pids, listing=listing)


def rest_of(reading: Reading) -> Reading:
    """What the next lines are read after, once this was written down: a look may cut a list of pids in two."""
    return Reading(listing=reading.listing)


def is_over(reading: Reading, listed: Collection[int] | None) -> bool:
    """Whether a server that is ACTIVE confirms the fault: it lists none of those that the log says were torn down.

    listed: its clients; None where it did not say. It stays in FAULT until the last of them has gone, so a fault that
    names a process which is still its client was not the server's own.
    """
    return listed is not None and bool(reading.pids) and reading.pids.isdisjoint(listed)


def last_fault(lines: Iterable[LogLine], after: str) -> Reading:
    """What a whole log says of its last fault; nothing where that was not after this time, as the log writes it."""
    reading = Reading()
    for line in lines:
        reading = read_on(Reading() if line.event is LogEvent.FAULT else reading, line)
    return reading if reading.when > after else Reading()


# -- what is known of them -----------------------------------------------------------------------------------------


def noted(faults: Sequence[Fault], fault: Fault) -> tuple[Fault, ...]:
    """With one more; the oldest is forgotten where there are too many."""
    return (*faults, fault)[-REMEMBERED:]


def with_more_hit(faults: Sequence[Fault], hit: Sequence[FaultHit], strangers: Sequence[int]) -> tuple[Fault, ...]:
    """With those whom the log named later of the last fault, which has not healed."""
    last = faults[-1]
    more = tuple(one for one in hit if one.process.pid not in last.pids)
    unknown = tuple(pid for pid in strangers if pid not in last.pids)
    return (*faults[:-1], replace(last, hit=last.hit + more, strangers=last.strangers + unknown))


def unhealed(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if fault.healed_at is None)


def healed(faults: Iterable[Fault], now: float) -> tuple[Fault, ...]:
    """As they are once the server serves again, or another one does."""
    return tuple(replace(fault, healed_at=now) if fault.healed_at is None else fault for fault in faults)


def is_known(faults: Iterable[Fault], pids: Collection[int]) -> bool:
    """Whether a fault that has not healed hit all of these already, so that the log only says more of it."""
    open_faults = unhealed(faults)
    hit = {pid for fault in open_faults for pid in fault.pids}
    return bool(open_faults) and hit.issuperset(pids)


# -- how they heal -------------------------------------------------------------------------------------------------


def to_end(faults: Iterable[Fault], listed: Collection[int], now: float, graces: "Graces") -> tuple[FaultHit, ...]:
    """Who is to be ended by now: those hit that linger beyond the grace. listed: the pids that the server still names.

    Until the last of them is gone the server lets nobody in, and their contexts are lost in any case.
    """
    return tuple(
        hit
        for fault in unhealed(faults)
        if now >= fault.at + graces.fault_grace_s
        for hit in fault.hit
        if hit.ended_at is None and hit.process.pid in listed
    )


def ended(faults: Iterable[Fault], process: ProcessIdentity, now: float) -> tuple[Fault, ...]:
    def after(fault: Fault) -> Fault:
        hits = (replace(hit, ended_at=now) if hit.process == process else hit for hit in fault.hit)
        return replace(fault, hit=tuple(hits))

    return tuple(after(fault) if fault.healed_at is None else fault for fault in faults)


def next_due_s(faults: Iterable[Fault], now: float, graces: "Graces") -> float | None:
    """Seconds until somebody may have to be ended; None where that is not to come."""
    waits = [fault.at + graces.fault_grace_s - now for fault in unhealed(faults)]
    return min((wait for wait in waits if wait > 0), default=None)


def why_stuck(faults: Iterable[Fault], now: float, graces: "Graces") -> str:
    """Why only a new daemon can help: the server did not recover in time; empty where it may yet."""
    limit_s = graces.fault_grace_s + graces.wedged_limit_s
    if all(now < fault.at + limit_s for fault in unhealed(faults)):
        return ""
    return f"its server is still in FAULT {limit_s:g} s after the fault"


# -- who was there -------------------------------------------------------------------------------------------------


def suspects(faults: Sequence[Fault], names: Mapping[str, PodName]) -> tuple[SuspectStatus, ...]:
    """Every pod that at least the last two faults hit, those that most hit first. names: of pods, by uid.

    One of them may be the cause of all; each of them may just have shared the GPU.
    """
    found = []
    for pod in faults[-1].pods if faults else ():
        run = presence(faults, pod)
        if run > 1:
            found.append(SuspectStatus(str(names.get(pod, pod)), pod, run, faults[-run].at))
    return tuple(sorted(found, key=lambda one: (-one.faults, one.uid)))


def presence(faults: Sequence[Fault], pod: str) -> int:
    """How many faults in a row, up to the last, hit this pod."""
    missed = (back for back, fault in enumerate(reversed(faults)) if pod not in fault.pods)
    return next(missed, len(faults))


def faults_status(record: DomainRecord, names: Mapping[str, PodName]) -> FaultsStatus:
    """names: of pods, by uid."""
    last = record.faults[-1] if record.faults else None
    return FaultsStatus(
        count=record.faults_total,
        last=last.at if last else None,
        suspects=suspects(record.faults, names),
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
