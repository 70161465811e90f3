"""Names: patterns that match them, in which * at the end stands for any ending, and those that mpsd itself goes by."""

import re
from collections.abc import Callable
from functools import lru_cache


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the name matches one of the patterns."""
    return _together(patterns).fullmatch(name) is not None


def matching(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """The same question for many names: what is true of a name that matches one of the patterns."""
    return _together(patterns).fullmatch


def within_reach(prefix: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that some name with this prefix matches."""
    return tuple(
        pattern for pattern in patterns if pattern.removesuffix("*").startswith(prefix) or matches(prefix, (pattern,))
    )


@lru_cache(maxsize=256)
def _together(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_expression, patterns)) or "(?!)", re.DOTALL)


def _expression(pattern: str) -> str:
    return re.escape(pattern.removesuffix("*")) + (".*" if pattern.endswith("*") else "")


# -- how often a node reports though nothing has changed ---------------------------------------------------------------

HEARTBEAT_S = 300.0  # between two writes of an MPSNode, at most
STALE_S = 2 * HEARTBEAT_S  # an older report is not believed

# -- the names of mpsd and its parts in a cluster, as manifests/ has them; a test compares the two ---------------------

NAMESPACE = "mpsd-system"
CONTROL, AGENT, WEBHOOK, SCHEDULER = "mpsd-control", "mpsd-agent", "mpsd-webhook", "mpsd-scheduler"  # by NAME_LABEL
LIMITS = "mpsd-limits"  # the ConfigMap with both limits files
NAME_LABEL = "app.kubernetes.io/name"
LABEL, PRODUCT = "app.kubernetes.io/part-of", "mpsd"
OURS = {"labelSelector": f"{LABEL}={PRODUCT}"}  # of a list: what is mpsd's
