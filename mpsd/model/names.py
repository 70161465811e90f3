"""Names: patterns that match them, in which * at the end stands for any ending, and those that mpsd itself goes by."""

import re
from collections.abc import Callable
from functools import lru_cache


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return matching(patterns)(name) is not None


@lru_cache(maxsize=256)
def matching(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """The same question for many names: what is true of a name that matches one of the patterns."""
    each = (re.escape(one.removesuffix("*")) + (".*" if one.endswith("*") else "") for one in patterns)
    return re.compile("|".join(each) or "(?!)", re.DOTALL).fullmatch


def within_reach(prefix: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that some name with this prefix matches."""
    return tuple(
        pattern for pattern in patterns if pattern.removesuffix("*").startswith(prefix) or matches(prefix, (pattern,))
    )


# -- how often a node reports though nothing has changed ---------------------------------------------------------------

HEARTBEAT_S = 300.0  # between two writes of an MPSNode, at most
STALE_S = 2 * HEARTBEAT_S  # an older report is not believed

# -- the names of mpsd and its parts in a cluster, as the chart has them; a test compares the two --------------------

NAMESPACE = "mpsd-system"
CONTROL, AGENT, WEBHOOK, SCHEDULER = "mpsd-control", "mpsd-agent", "mpsd-webhook", "mpsd-scheduler"  # by NAME_LABEL
CLAIM_CLASS, WHOLE_CLASS = "mps.mpsd.io", "whole-gpu.mpsd.io"  # DeviceClasses: of a part of a GPU, and of all of one
CLAIM_DRIVER = "gpu.mpsd.io"  # as shipped; `mpsd agent --dra` may name another
CLAIMS_LABEL = "mpsd.io/claims"  # of a Node: "true" where claims are served, if the policy says so by label
LIMITS = "mpsd-limits"  # the ConfigMap with both limits files
NAME_LABEL = "app.kubernetes.io/name"
LABEL, PRODUCT = "app.kubernetes.io/part-of", "mpsd"
MIRROR = "kubernetes.io/config.mirror"  # on the API's copy of a static pod: the hash that kubelet knows it by
APPLY = "install it again (docs/install.md)"  # the remedy for objects that are missing or old
OURS = {"labelSelector": f"{LABEL}={PRODUCT}"}  # of a list: what is mpsd's
