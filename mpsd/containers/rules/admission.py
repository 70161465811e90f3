"""The rules for a container without Kubernetes that asks for a GPU: `limits/policy.yaml` has the modes of admission.

One rule: a rule here has the name of the rule for pods, and is taken as hard; what it looks at is the bundle.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpsd.containers.dialects.names import OOM_SCRIPT
from mpsd.grants.rules.messages import BundleDevice, BundleMount, ContainerAnswer, HostContainerRequest
from mpsd.kubelet.rules.allocation import Allocation, NodeConditions, memory_answer
from mpsd.model.grants import Grant
from mpsd.model.policy import HostIPC, Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, shown

_IPC_UNNEEDED = 580  # the driver from which on clients need not share the host's IPC namespace
_ID = re.compile(r"[A-Za-z0-9_+.-]{1,255}")  # what runc makes a folder of, so that it never leads out of its root

# What engines give every container unasked; it has these in the bounding set, and the device cgroup holds it.
# Source: https://github.com/moby/moby/blob/master/daemon/pkg/oci/caps/defaults.go
_GIVEN_TO_ALL = frozenset(
    {
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    }
)


@dataclass(frozen=True, slots=True)
class Findings:
    """problems: those for which it is refused. messages: what its user is told."""

    problems: tuple[Problem, ...]
    messages: tuple[str, ...]


def container_findings(asks: HostContainerRequest, policy: Policy, driver: str) -> Findings:
    """What the policy says to a container that asks. driver: its version, such as 580.159.04."""
    modes = policy.admission.rules
    ruled = [*_capabilities(asks, policy), *_root(asks), *_ipc(asks, policy, driver)]
    return Findings(
        problems=(*_malformed(asks), *(one for rule, one in ruled if modes[rule] is RuleMode.ENFORCE)),
        messages=tuple(str(one) for rule, one in ruled if modes[rule] is RuleMode.WARN),
    )


def _malformed(asks: HostContainerRequest) -> Iterator[Problem]:
    if not asks.root.startswith("/"):
        yield Problem("container-root", "--root", shown(asks.root), "is no absolute path", "write the whole path")
    if not _ID.fullmatch(asks.id) or not asks.id.strip("."):
        remedy = "write at most 255 letters, digits, _, +, - and ."
        yield Problem("container-id", "the container's id", shown(asks.id), "is none that a runtime takes", remedy)
    if asks.oom_script and not asks.oom_script.startswith("/"):
        remedy = "write the whole path of a program in the container, without arguments"
        yield Problem("oom-script-path", OOM_SCRIPT, shown(asks.oom_script), "is no absolute path", remedy)


def _capabilities(asks: HostContainerRequest, policy: Policy) -> Iterator[tuple[RuleId, Problem]]:
    names = [name.upper().removeprefix("CAP_") for name in asks.capabilities]
    found = _in_order(names, frozenset(policy.admission.blocked_capabilities) - _GIVEN_TO_ALL)
    if found:
        message = "with these a container can step over its limits"
        remedy = "create it without --privileged and without --cap-add of these"
        problem = Problem(RuleId.CAPABILITIES, "its set of capabilities", shown(", ".join(found)), message, remedy)
        yield RuleId.CAPABILITIES, problem


def _in_order(names: Sequence[str], blocked: frozenset[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name in blocked))


def _root(asks: HostContainerRequest) -> Iterator[tuple[RuleId, Problem]]:
    if asks.host_root:
        message = "may be root on this machine, who can end its neighbours' programs on a GPU"
        remedy = "create it with --user of another, or in a user namespace"
        yield RuleId.HOST_ROOT, Problem(RuleId.HOST_ROOT, "its user", "0", message, remedy)


def _ipc(asks: HostContainerRequest, policy: Policy, driver: str) -> Iterator[tuple[RuleId, Problem]]:
    """Nobody adds the host's IPC namespace to a bundle, so `inject` is taken as `require` is."""
    if asks.host_ipc or policy.admission.host_ipc is HostIPC.OFF or not _is_before(driver, _IPC_UNNEEDED):
        return
    message = f"with driver {driver} a program without the host's reaches no MPS"
    problem = Problem(RuleId.HOST_IPC_MISSING, "its IPC namespace", "", message, "create it with --ipc=host")
    yield RuleId.HOST_IPC_MISSING, problem


def _is_before(driver: str, release: int) -> bool:
    """A driver that says no number is taken for an old one."""
    major = driver.partition(".")[0]
    return not (major.isascii() and major.isdecimal()) or int(major) < release


# What goes into the bundle of a container that was granted its part of GPUs.
#
# One rule: it is what kubelet is told for a pod's, so that both are held by the same things.


def container_answer(
    grant: Grant, around: NodeConditions, messages: tuple[str, ...] = (), *, with_gate: bool
) -> ContainerAnswer:
    """with_gate: whether gates can be made here; without one, a container that is started while its domain does not
    serve comes up without a GPU.
    """
    given = memory_answer(Allocation(grant.domain, grant.gpus, grant.memory_mib, grant.thread_percent), around)
    devices = given.devices if with_gate else ()
    return ContainerAnswer(
        grant=grant.id,
        environment=dict(given.environment),
        mounts=tuple(BundleMount(mount.host, mount.inside, mount.read_only) for mount in given.mounts),
        devices=tuple(BundleDevice(device.host, device.inside, device.permissions) for device in devices),
        messages=messages,
    )
