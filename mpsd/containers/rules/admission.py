"""The admission rules for a container's bundle, named as those for pods, and what goes into it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mpsd.containers.dialects.names import OOM_SCRIPT
from mpsd.grants.rules.messages import ContainerAnswer, HostContainerRequest
from mpsd.kubelet.rules.allocation import Allocation, NodeConditions, memory_answer
from mpsd.model.client_limits import NVIDIA_DRIVER_CAPABILITIES
from mpsd.model.grants import Grant
from mpsd.model.names import capability
from mpsd.model.policy import HostIPC, Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, shown

_NOT_ABSOLUTE = "is not an absolute path"
_IPC_UNNEEDED = 580  # the driver from which on clients need not share the host's IPC namespace

# What engines give every container unasked; it has these in the bounding set, and the device cgroup
# holds it. Source: https://github.com/moby/moby/blob/master/daemon/pkg/oci/caps/defaults.go
_GIVEN_TO_ALL = frozenset(
    {
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
        *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    }
)


@dataclass(frozen=True, slots=True)
class Findings:
    """messages: warnings for its user."""

    problems: tuple[Problem, ...]
    messages: tuple[str, ...]


def container_findings(request: HostContainerRequest, policy: Policy, driver: str) -> Findings:
    """driver: its version, such as 580.159.04."""
    modes = policy.admission.rules
    ruled = tuple(_ruled(request, policy, driver))
    enforced = [one for one in ruled if modes[RuleId(one.rule)] is RuleMode.ENFORCE]
    messages = [str(one) for one in ruled if modes[RuleId(one.rule)] is RuleMode.WARN]
    return Findings((*_malformed(request), *enforced), tuple(messages))


def _malformed(request: HostContainerRequest) -> Iterator[Problem]:
    if not request.root.startswith("/"):
        root = shown(request.root)
        yield Problem("container-root", "--root", root, _NOT_ABSOLUTE, "write it from / on")
    # What runc makes a folder of, so that it never leads out of its root.
    if not re.fullmatch(r"[A-Za-z0-9_+.-]{1,255}", request.id) or not request.id.strip("."):
        remedy = "write at most 255 letters, digits, _, +, - and ."
        message = "is not a valid container id"
        yield Problem("container-id", "the container's id", shown(request.id), message, remedy)
    if request.oom_script and not request.oom_script.startswith("/"):
        remedy = "write the absolute path of a program in the container, without arguments"
        script = shown(request.oom_script)
        yield Problem("oom-script-path", OOM_SCRIPT, script, _NOT_ABSOLUTE, remedy)


def _ruled(request: HostContainerRequest, policy: Policy, driver: str) -> Iterator[Problem]:
    names = [*map(capability, request.capabilities)]
    blocked = frozenset(policy.admission.blocked_capabilities) - _GIVEN_TO_ALL
    if found := tuple(dict.fromkeys(name for name in names if name in blocked)):
        message = "with these a container can bypass its limits"
        remedy = "create it without --privileged and without --cap-add of these"
        where = "its set of capabilities"
        yield Problem(RuleId.CAPABILITIES, where, shown(", ".join(found)), message, remedy)
    if request.host_root:
        message = "may be root on this machine, and so can end other programs on a GPU"
        remedy = "create it with --user, or in a user namespace"
        yield Problem(RuleId.HOST_ROOT, "its user", "0", message, remedy)
    # Nobody adds the host's IPC namespace to a bundle, so `inject` is taken as `require` is.
    major = driver.partition(".")[0]
    # also without a number
    is_old = not (major.isascii() and major.isdecimal()) or int(major) < _IPC_UNNEEDED
    if is_old and not request.host_ipc and policy.admission.host_ipc is not HostIPC.OFF:
        message = f"MPS clients need the host's IPC namespace with driver {driver}"
        remedy = "create it with --ipc=host"
        yield Problem(RuleId.HOST_IPC_MISSING, "its IPC namespace", "", message, remedy)


def container_answer(
    grant: Grant, around: NodeConditions, messages: tuple[str, ...] = (), *, with_gate: bool
) -> ContainerAnswer:
    """What kubelet is given for a pod. with_gate: without one, a container that starts while its
    domain does not serve has no GPU."""
    size = (grant.domain, grant.gpus, grant.memory_mib, grant.thread_percent)
    given = memory_answer(Allocation(*size), around)
    environment = dict(given.environment)
    environment.pop(NVIDIA_DRIVER_CAPABILITIES, None)  # the driver's libraries are its engine's
    devices = given.devices if with_gate else ()
    return ContainerAnswer(grant.id, environment, given.mounts, devices, messages)
