"""How a client of MPS ends without harm to its neighbours: stopped first, killed once what it
queued has run. One that is killed in a kernel of milliseconds takes others of its GPU along
(docs/mps-observed.md, section 15)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import EndRecord, Queue

MOST_STOPS = 3  # of a client that somebody continues: once, and twice again
IDLE_SAMPLES = 2  # of NVML, in a row, in which the server has done nothing

# When it was taken, in microseconds since 1970, and the use in percent; None: not known.
Sample = tuple[int, int | None]


class Step(Enum):
    """What is to be done about a client that ends. STOP: write the record, and stop it (again)."""

    STOP = auto()
    WAIT = auto()
    KILL = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class EndView:
    """One look at a client that ends."""

    #: seconds of CLOCK_BOOTTIME
    now_s: float
    is_alive: bool
    #: whether each of its threads is stopped
    is_stopped: bool
    #: whether a fault has ended its context, so that its end harms nobody
    is_hit: bool
    #: as of a client that is killed now
    queue: Queue


def begun(
    process: ProcessIdentity, gpus: Iterable[str], reason: str, drain_s: float, now_s: float
) -> EndRecord:
    """A new end, before the first stop."""
    return EndRecord(process, tuple(gpus), reason, drain_s, now_s + drain_s)


def next_step(end: EndRecord, seen: EndView) -> tuple[Step, EndRecord]:
    """What to do now, and the record from then on. A stop that does not hold yet, as of a thread
    that waits for a device, is sent again uncounted; who continues the client lengthens its end by
    a drain, MOST_STOPS times."""
    if not seen.is_alive:
        return Step.OVER, end
    if seen.is_hit or end.drain_s <= 0 or seen.now_s >= end.deadline_s:
        return Step.KILL, end
    if seen.is_stopped:
        return (Step.KILL if seen.queue is Queue.DRY else Step.WAIT), replace(end, is_held=True)
    if end.stops and not end.is_held:
        return Step.STOP, end
    if end.stops >= MOST_STOPS:
        return Step.KILL, end
    deadline_s = seen.now_s + end.drain_s
    return Step.STOP, replace(end, stops=end.stops + 1, deadline_s=deadline_s, is_held=False)


def queue_of(samples: Mapping[str, Iterable[Sample]], gpus: Iterable[str]) -> Queue:
    """By the last samples after the stop of each GPU's server (by UUID). No sample is not zero
    use."""
    last = [_last_uses(samples.get(gpu, ())) for gpu in gpus]
    if any(any(uses) for uses in last):
        return Queue.IN_USE
    if any(len(uses) < IDLE_SAMPLES or None in uses for uses in last):
        return Queue.UNKNOWN
    return Queue.DRY


def _last_uses(samples: Iterable[Sample]) -> list[int | None]:
    by_time = dict(sorted(samples))
    return list(by_time.values())[-IDLE_SAMPLES:]


def together(queues: Iterable[Queue]) -> Queue:
    """Of several clients: the worst."""
    return max(queues, key=[*Queue].index, default=Queue.UNKNOWN)
