"""Names: patterns that match them, in which * at the end stands for any ending, and those that mpsd
itself goes by."""

import re
from collections.abc import Callable
from functools import lru_cache


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return matching(patterns)(name) is not None


@lru_cache(maxsize=256)
def matching(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """What is true of a name that matches one of the patterns."""
    each = (
        re.escape(one.removesuffix("*")) + (".*" if one.endswith("*") else "") for one in patterns
    )
    return re.compile("|".join(each) or "(?!)", re.DOTALL).fullmatch


def within_reach(prefix: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that some name with this prefix matches."""
    return tuple(
        pattern
        for pattern in patterns
        if pattern.removesuffix("*").startswith(prefix) or matches(prefix, (pattern,))
    )


# -- capabilities, as capabilities(7) lists them, without CAP_; ALL is an engine's word for each

CAPABILITIES = (
    *("ALL", "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF"),
    *("CHECKPOINT_RESTORE", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID"),
    *("IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE"),
    *("MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT"),
    *("SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE"),
    *("SYS_TIME", "SYS_TTY_CONFIG", "WAKE_ALARM"),
)


def capability(name: str) -> str:
    """As in CAPABILITIES: engines take a name with and without CAP_, in any case."""
    return name.upper().removeprefix("CAP_")


# -- how often a node reports though nothing has changed

HEARTBEAT_S = 300.0  # between two writes of an MPSNode, at most
STALE_S = 2 * HEARTBEAT_S  # an older report is not believed

CONDITION = "MPSReady"  # of an MPSNode, and of the Node

# -- the names of mpsd and its parts in a cluster, as the chart has them

NAMESPACE = "mpsd-system"
# by NAME_LABEL
CONTROL = "mpsd-control"
AGENT = "mpsd-agent"
WEBHOOK = "mpsd-webhook"
SCHEDULER = "mpsd-scheduler"
# DeviceClasses, of a part of a GPU and of all of one
CLAIM_CLASS = "mps.mpsd.io"
WHOLE_CLASS = "whole-gpu.mpsd.io"
CLAIM_DRIVER = "gpu.mpsd.io"  # as shipped; `mpsd agent --dra` may name another
# of a Node: "true" where claims are served, if the policy says so by label
CLAIMS_LABEL = "mpsd.io/claims"
LIMITS = "mpsd-limits"  # the ConfigMap with both limits files
NAME_LABEL = "app.kubernetes.io/name"
LABEL = "app.kubernetes.io/part-of"
PRODUCT = "mpsd"
# on the API's copy of a static pod: the hash that kubelet knows it by
MIRROR = "kubernetes.io/config.mirror"
APPLY = "install it again (docs/install.md)"  # the remedy for objects that are missing or old
OURS = {"labelSelector": f"{LABEL}={PRODUCT}"}  # of a list: what is mpsd's
