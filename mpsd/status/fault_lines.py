"""What `mpsd status` says of the faults of a domain, also once they are over.

One rule: nobody is named a culprit; all that is said is whom the last fault hit.
"""

from collections.abc import Iterator

from mpsd.agent.rules.fault_happenings import listed
from mpsd.model.durations import DAY_S, lasting
from mpsd.model.fault_status import FaultsStatus, HitStatus
from mpsd.platform.speech import one_line
from mpsd.status.tables import clock

SHOWN_S = DAY_S  # after it was


def fault_lines(domain: str, faults: FaultsStatus, now: float) -> Iterator[str]:
    """How often it had one, and of the last one when, whom and for how long; nothing where that was a day ago."""
    if faults.last is None or now - faults.last >= SHOWN_S:
        return
    at = f"{clock(faults.last)} ({lasting(now - faults.last)} ago)"
    had = (
        f"a fault in this boot, at {at}; it"
        if faults.count == 1
        else f"{faults.count} faults in this boot; the last, at {at},"
    )
    who = listed([_named(one) for one in faults.hit]) if faults.hit else "nobody that is known"
    over = "is not over" if faults.healed is None else f"was over after {max(0.0, faults.healed - faults.last):.1f} s"
    yield one_line(f"{domain} had {had} hit {who} and {over}")


def _named(one: HitStatus) -> str:
    return f"{one.pod or 'processes of no known pod'} ({one.processes})"
