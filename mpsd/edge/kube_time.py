"""Times as Kubernetes writes them.

One rule: whole seconds of UTC, RFC 3339, as metav1.Time has them.
"""

from datetime import UTC, datetime


def stamp(seconds: float) -> str:
    """seconds: since 1970."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
