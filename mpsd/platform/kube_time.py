"""Times as Kubernetes writes them.

One rule: whole seconds of UTC, RFC 3339, as metav1.Time has them.
"""

from datetime import UTC, datetime


def stamp(seconds: float) -> str:
    """seconds: since 1970."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float | None:
    """Since 1970; None for what is no such time. Takes what metav1.MicroTime writes too."""
    if "T" not in text:  # a date alone
        return None
    try:
        read = datetime.fromisoformat(text)
        return read.timestamp() if read.tzinfo else None
    except (ValueError, OverflowError):
        return None


def http_seconds(text: str) -> float | None:
    """Since 1970, of a Date as HTTP writes it; None for what is none."""
    from email.utils import parsedate_to_datetime  # as long to load as all else that a first word needs of ours

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
