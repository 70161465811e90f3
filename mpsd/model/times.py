"""Times as Kubernetes writes them (metav1.Time: RFC 3339, UTC, whole seconds), and durations."""

from datetime import UTC, datetime

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86_400

Instant = datetime


def lasting(seconds: float) -> str:
    """Such as `40 s`, `5 min`, `3 h` or `12 d`; `0 s` for the future, since clocks differ."""
    whole = int(max(0.0, min(seconds, 1e12)))
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if whole >= 2 * unit_s:
            return f"{whole // unit_s} {unit}"
    return f"{whole} s"


def stamp(seconds: float) -> str:
    """seconds: since 1970."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc(seconds: float) -> Instant:
    """seconds: since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def in_whole_seconds(time: Instant | None) -> Instant | None:
    """As Kubernetes has times."""
    return None if time is None else time.replace(microsecond=0)


def epoch(time: Instant | None) -> float | None:
    """Seconds since 1970."""
    return None if time is None else time.timestamp()


def seconds(text: str | None) -> float | None:
    """Since 1970; None for what is no such time. Takes what metav1.MicroTime writes too."""
    if text is None or "T" not in text:  # a date alone
        return None
    try:
        read = datetime.fromisoformat(text)
        return read.timestamp() if read.tzinfo else None
    except (ValueError, OverflowError):
        return None


_APART_S = 30.0  # by which clocks differ that nobody keeps together


def clocks_apart(theirs: float, ours: float) -> str:
    """What is to be added to a refusal that may come of it: the clock of this machine, and how far
    it is from theirs; empty where they agree. Seconds since 1970."""
    apart_s = theirs - ours
    if abs(apart_s) <= _APART_S:
        return ""
    way = "behind"
    if apart_s < 0:
        way = "ahead"
    apart = f"this machine's says {stamp(ours)}, which is {lasting(abs(apart_s))} {way}"
    return f"; {apart}: synchronize both with one time service, such as chrony"


def http_seconds(text: str) -> float | None:
    """Since 1970, of a Date as HTTP writes it; None for what is none."""
    # takes as long to load as all else that `kubectl mps status` loads
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
