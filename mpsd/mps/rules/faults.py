"""The faults of a domain's GPUs: what confirms one, who was hit, who may have caused it, whom to
end. The daemon confirms one, or clients that vanished together; nothing is taken from its log,
which any tenant can write (docs/mps-observed.md, section 4). Who ends in mid-kernel takes others
along, so those that ended just before are likely causes; who faulted itself cannot be told from
those hit (section 6)."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from mpsd.model.identity import END_UNKNOWN, PodName, ProcessIdentity, killed_by
from mpsd.model.node_report import NO_FAULTS, CauseReport, FaultsReport, HitReport, SuspectReport
from mpsd.model.node_view import (
    ContainerEnds,
    DomainRecord,
    Fault,
    FaultCause,
    FaultHit,
    NodeView,
    Reasons,
    pod_names,
)
from mpsd.model.problem import program_of
from mpsd.model.times import utc

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Graces

REMEMBERED = 16  # faults of a domain
PodNames = Mapping[str, PodName]  # by uid

# -- ends of clients

BEFORE_S = 0.5  # how long before a fault an end may have caused it
# how long after it mpsd may see that end: a killed client's memory was back after 0.07 s
LATE_S = 0.1
# in which all vanish whom a fault hits, where they are gone before anybody can ask the server
TOGETHER_S = 0.2
# between the ends of a container's first process and of those that the kernel kills with it
_APART_S = 0.01
# no signal, SIGILL, TRAP, ABRT, BUS, FPE, SEGV, SYS (signal(7))
_BY_ITSELF = frozenset({0, 4, 5, 6, 7, 8, 11, 31})


@dataclass(frozen=True, slots=True)
class ClientDeath:
    """The end of a client that the server had listed, as mpsd saw it."""

    client: FaultHit
    #: whose it was: a pod's uid, or else the cgroups of its program
    owner: str
    #: seconds of CLOCK_BOOTTIME
    at_s: float
    #: by which signal; 0: by none, or nobody knows
    signum: int
    how: str
    #: whether it exited with code 0
    is_well: bool = False

    @property
    def is_by_itself(self) -> bool:
        """It exited or crashed, as after a fault; nobody killed it."""
        return self.signum in _BY_ITSELF


@dataclass(frozen=True, slots=True)
class FaultSigns:
    """What was seen of a fault. Times are in seconds of CLOCK_BOOTTIME."""

    #: when mpsd first looked for it
    noticed_s: float
    #: when mpsd last asked before that, and the server had no fault
    clear_s: float
    #: by pid, those that the server listed while it was in fault, and that lived then; where it has
    #: several GPUs, those on one that had an Xid
    listed: Mapping[int, FaultHit] = field(default_factory=dict)
    #: when the server answered that it is over; 0 where it answered that it is in fault
    over_s: float = 0.0


def near(
    deaths: Iterable[ClientDeath], signs: FaultSigns, known: Iterable[Fault]
) -> tuple[ClientDeath, ...]:
    """The ends that belong to a fault, but those that an earlier one explains. A server is in fault
    until the last of those hit is gone."""
    explained: set[ProcessIdentity] = set()
    for fault in known:
        explained.update(one.process for one in fault.hit)
        explained.update(one.process for one in fault.causes or ())
    first_s = signs.noticed_s - BEFORE_S
    last_s = max(signs.noticed_s + LATE_S, signs.over_s)
    recent = [one for one in deaths if first_s <= one.at_s <= last_s]
    return tuple(one for one in recent if one.client.process not in explained)


def vanished_together(
    deaths: Iterable[ClientDeath], noticed_s: float, survivors: Collection[FaultHit]
) -> bool:
    """Whether these ends confirm a fault that was over before the server was asked. One survivor
    from before refutes it. It takes clients of several owners, as one tenant may end its own
    together, and none that is known to have ended well."""
    owners = set()
    for one in deaths:
        if one.at_s >= noticed_s - TOGETHER_S and not one.is_well:
            owners.add(one.owner)
    return not survivors and len(owners) > 1


def causes(deaths: Iterable[ClientDeath], signs: FaultSigns) -> tuple[ClientDeath, ...]:
    """Those whose end came before the fault, and not by it. deaths: those `near` it. Nobody the
    server listed in fault; of the others:
    - After whose end the server still had no fault.
    - Whom somebody killed, up to the first end of a program by itself after the fault was noticed,
      which the fault may have caused.
    """
    every = tuple(deaths)
    after = [one.at_s for one in every if one.is_by_itself and one.at_s >= signs.noticed_s]
    last_s = signs.noticed_s + LATE_S
    if after:
        last_s = max(signs.noticed_s, min(after) - _APART_S)
    return tuple(one for one in every if _may_have_caused(one, signs, last_s))


def _may_have_caused(death: ClientDeath, signs: FaultSigns, last_s: float) -> bool:
    if death.client.process.pid in signs.listed:
        return False
    if death.at_s <= signs.clear_s:
        return True
    return not death.is_by_itself and death.at_s <= last_s


def hit_by(
    signs: FaultSigns, deaths: Iterable[ClientDeath], *, one_gpu: bool
) -> tuple[FaultHit, ...]:
    """Who lost a context: whom the server listed, and who ended near it, but causes. Where not
    one_gpu, nobody knows on which GPU those were that have ended."""
    every = tuple(deaths)
    found = dict(signs.listed)
    if one_gpu:
        found.update({one.client.process.pid: one.client for one in every})
    for cause in causes(every, signs):
        found.pop(cause.client.process.pid, None)
    return tuple(found[pid] for pid in sorted(found))


def settled(
    fault: Fault, signs: FaultSigns, deaths: Iterable[ClientDeath], *, one_gpu: bool
) -> Fault:
    """Once all ends near it have been seen."""
    every = tuple(deaths)
    found = []
    for one in causes(every, signs):
        who = one.client
        found.append(FaultCause(who.process, who.command, who.pod, one.how, who.grant))
    ended_at = {one.process: one.ended_at for one in fault.hit}
    all_hit = hit_by(signs, every, one_gpu=one_gpu)
    hit = [replace(one, ended_at=ended_at.get(one.process)) for one in all_hit]
    return replace(fault, hit=tuple(hit), causes=tuple(found))


_INTERPRETER = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh)")
_SCRIPT = re.compile(r"[\w./+@~-]{1,200}\.(?:py|sh)")


def recorded_command(command: str) -> str:
    """The program, and an interpreter's script: other arguments may be secret."""
    program, _space, arguments = command.partition(" ")
    script = arguments.partition(" ")[0]
    if _INTERPRETER.fullmatch(program) and _SCRIPT.fullmatch(script):
        return f"{program} {script}"
    return program_of(program)


# -- what Kubernetes says of their causes

# between a fault and the end of its cause's container, whose time is in whole seconds
REASON_S = 3.0
_KILLED = killed_by("SIGKILL")
_SAYS_LESS = frozenset({"Completed", "Error"})  # than that signal


def reasons(view: NodeView, ends: ContainerEnds, known: Reasons) -> Reasons:
    """Why causes of faults ended, where the node knows only that, or SIGKILL, and their pod's
    containers ended then for one reason. known: as before; pods may be gone."""
    found: dict[ProcessIdentity, str] = {}
    unexplained: list[tuple[float, FaultCause]] = []
    for fault in chain.from_iterable(domain.record.faults for domain in view.domains):
        for cause in fault.causes or ():
            if cause.process in known:
                found[cause.process] = known[cause.process]
            elif cause.how in (END_UNKNOWN, _KILLED):
                unexplained.append((fault.at, cause))
    if not unexplained:
        return found
    names = pod_names(view)
    for at, cause in unexplained:
        uid = cause.pod or ""
        if pod := names.get(uid):
            uid = pod.uid
        near = {end.reason for end in ends.get(uid, ()) if abs(end.at - at) <= REASON_S} - {""}
        if cause.how == _KILLED:
            near -= _SAYS_LESS
        if len(near) == 1:
            found[cause.process] = near.pop()
    return found


# -- what is known of them


def noted(faults: Sequence[Fault], fault: Fault) -> tuple[Fault, ...]:
    """With one more; the oldest is forgotten where there are too many."""
    return (*faults, fault)[-REMEMBERED:]


def unhealed(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if fault.healed_at is None)


def healed(faults: Iterable[Fault], now: float) -> tuple[Fault, ...]:
    """As they are once the server serves again, or another one does."""
    return tuple(replace(fault, healed_at=fault.healed_at or now) for fault in faults)


def also_hit(faults: Sequence[Fault], listed: Mapping[int, FaultHit]) -> tuple[Fault, ...]:
    """With those in the last one too."""
    *earlier, last = faults
    more = [listed[pid] for pid in sorted(listed) if pid not in last.pids]
    return (*earlier, replace(last, hit=(*last.hit, *more)))


# -- how they heal


def to_end(
    faults: Iterable[Fault], listed: Collection[int] | None, now_s: float, graces: "Graces"
) -> tuple[FaultHit, ...]:
    """Who is to be ended: those hit that linger beyond the grace and are `listed` by the server,
    which admits nobody until they are gone. listed: None for everybody. now_s: as `Fault.at_s`."""
    found: list[FaultHit] = []
    for fault in unhealed(faults):
        if now_s >= fault.at_s + graces.fault_grace_s:
            found += [hit for hit in fault.hit if hit.ended_at is None]
    return tuple(hit for hit in found if listed is None or hit.process.pid in listed)


def ended(faults: Iterable[Fault], process: ProcessIdentity, now: float) -> tuple[Fault, ...]:
    found = []
    for fault in faults:
        hits = list(fault.hit)
        for at, hit in enumerate(hits):
            if fault.healed_at is None and hit.process == process:
                hits[at] = replace(hit, ended_at=now)
        found.append(replace(fault, hit=tuple(hits)))
    return tuple(found)


def next_due_s(faults: Iterable[Fault], now_s: float, graces: "Graces") -> float | None:
    """Seconds until somebody may have to be ended; None where that is not to come."""
    waits = [fault.at_s + graces.fault_grace_s - now_s for fault in unhealed(faults)]
    return min((wait for wait in waits if wait > 0), default=None)


def why_stuck(faults: Iterable[Fault], now_s: float, graces: "Graces") -> str:
    """Why only a new daemon can help: the server did not recover in time; else empty."""
    limit_s = graces.fault_grace_s + graces.wedged_limit_s
    if all(now_s < fault.at_s + limit_s for fault in unhealed(faults)):
        return ""
    return f"its server is still in FAULT {limit_s:g} s after the fault"


# -- who was there


def suspects(faults: Sequence[Fault], names: PodNames) -> tuple[SuspectReport, ...]:
    """Pods that at least the last two faults hit, most first: each may be the cause, or just have
    shared the GPU."""
    found = []
    for pod in faults[-1].pods if faults else ():
        run = presence(faults, pod)
        if run > 1:
            found.append(SuspectReport(str(names.get(pod, pod)), pod, run, utc(faults[-run].at)))
    return tuple(sorted(found, key=lambda one: (-(one.faults or 0), one.uid)))


def presence(faults: Sequence[Fault], pod: str) -> int:
    """How many faults in a row, up to the last, hit this pod."""
    missed = (back for back, fault in enumerate(reversed(faults)) if pod not in fault.pods)
    return next(missed, len(faults))


def faults_report(record: DomainRecord, names: PodNames, reasons: Reasons) -> FaultsReport:
    if not record.faults and not record.faults_total:
        return NO_FAULTS
    if not record.faults:
        return FaultsReport(record.faults_total)
    last = record.faults[-1]
    healed = None
    if last.healed_at is not None:
        healed = utc(last.healed_at)
    return FaultsReport(
        count=record.faults_total,
        last=utc(last.at),
        suspects=suspects(record.faults, names),
        hit=_hit(last, names),
        healed=healed,
        causes=causes_report(last, names, reasons),
    )


def causes_report(fault: Fault, names: PodNames, reasons: Reasons) -> tuple[CauseReport, ...]:
    found = []
    for one in fault.causes or ():
        uid = one.pod or ""
        program = f"{one.process} ({one.command})"
        if one.grant:
            program = f"{one.grant}: {program}"
        how = one.how
        if one.process in reasons:
            how += f" ({reasons[one.process]})"
        found.append(CauseReport(str(names.get(uid, uid)), uid, program, how))
    return tuple(found)


def _hit(fault: Fault, names: PodNames) -> tuple[HitReport, ...]:
    """Pods by their names, then programs by their grants, then what is in none that is known."""
    known = {hit.process.pid: hit for hit in fault.hit}
    number = Counter(_holder(known.get(pid), names) for pid in fault.pids)
    found = [HitReport(pod, uid, count, program) for (pod, uid, program), count in number.items()]
    return tuple(sorted(found, key=lambda one: (not one.pod, not one.program, str(one))))


def _holder(hit: FaultHit | None, names: PodNames) -> tuple[str, str, str]:
    """Its pod and that one's uid, or else its program, as in a HitReport."""
    if hit and hit.pod is not None:
        return str(names.get(hit.pod, hit.pod)), hit.pod, ""
    if hit and hit.grant:
        return "", "", f"{hit.grant} ({hit.command})"
    return "", "", ""
