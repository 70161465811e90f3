"""The rules for access to the host: its root user, its processes, its IPC namespace and its files.
Volumes whose contents the pod does not state (a local PersistentVolume, a CSI driver's) are out of
reach here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from posixpath import normpath
from typing import TypeVar

from mpsd.admission.rules.rule import EVERY, NOT_ASKING, Found, Rule, RuleInput, rule
from mpsd.model.fields import at
from mpsd.model.names import capability
from mpsd.model.pod import HostVolume, Pod
from mpsd.model.policy import HostIPC, RuleId
from mpsd.model.problem import shown

_OWN = ("/run/mpsd",)
_SECURITY = "securityContext"
_CHANGES_USER = "SETUID"
_FORBIDDEN_TOGETHER = (
    "MPS clients need it, and Kubernetes forbids it together with hostUsers: false",
    (
        "remove hostUsers and set hostIPC: true, or, from driver 580 on, set no hostIPC, and"
        ' host_ipc: "off" in the policy'
    ),
)
_RESTRICT = (
    "set runAsUser or runAsNonRoot: true, allowPrivilegeEscalation: false and capabilities.drop:"
    " [ALL] in every container"
)


@rule(
    RuleId.HOST_IPC_MISSING,
    "with drivers older than 580, MPS clients need the host's IPC namespace",
    "set spec.hostIPC: true",
)
def _missing_host_ipc(case: RuleInput) -> Iterator[Found]:
    if case.policy.admission.host_ipc is HostIPC.OFF or _adds_host_ipc(case):
        return
    if not case.pod.spec.host_users:
        yield Found(_in_spec(case.pod, "hostIPC"), "", *_FORBIDDEN_TOGETHER)
    elif not case.pod.spec.host_ipc:
        yield Found(_in_spec(case.pod, "hostIPC"), "", "MPS clients need it")


@rule(
    RuleId.HOST_IPC_ADDED,
    "whoever creates a pod should know that it was changed",
    "set spec.hostIPC: true",
)
def added_host_ipc(case: RuleInput) -> Iterator[Found]:
    if not case.pod.spec.host_ipc and _adds_host_ipc(case):
        yield host_ipc_is_added(case.pod)


def host_ipc_is_added(pod: Pod) -> Found:
    message = "hostIPC: true is added when the pod is created"
    return Found(_in_spec(pod, "hostIPC"), "", message, "set spec.hostIPC: true yourself")


@rule(
    RuleId.HOST_IPC_UNNEEDED,
    "where host_ipc is off, the drivers do not need it, and it shares memory with every other pod"
    " that sets it",
    "remove it",
)
def _unneeded_host_ipc(case: RuleInput) -> Iterator[Found]:
    if case.pod.spec.host_ipc and case.policy.admission.host_ipc is HostIPC.OFF:
        yield Found(_in_spec(case.pod, "hostIPC"), "true")


def _adds_host_ipc(case: RuleInput) -> bool:
    """Whether it is still to be added: a template's pods are created later."""
    is_late = case.context.is_changed and not case.pod.path
    return (
        case.policy.admission.host_ipc is HostIPC.INJECT
        and case.pod.spec.host_users
        and not is_late
    )


@rule(RuleId.PRIVILEGED, "a privileged container can use every GPU without limits", "remove it")
def _privileged(case: RuleInput) -> Iterator[Found]:
    remedy = ""
    if not case.asking:
        remedy = f"remove it, or request {case.policy.resources.memory} if it needs a GPU"
    for container in case.pod.containers:
        if container.security.privileged:
            yield Found(at(container.path, _SECURITY, "privileged"), "true", remedy=remedy)


_privileged_unasked = Rule(
    RuleId.UNASKED_PRIVILEGED,
    "a privileged container can use every GPU of its node, and mpsd does not account for it",
    "remove it, or run such pods in an exempt namespace",
    _privileged.look,
    NOT_ASKING,
)


@rule(RuleId.CAPABILITIES, "a container with this capability can bypass its limits", "remove it")
def _capabilities(case: RuleInput) -> Iterator[Found]:
    blocked = frozenset(case.policy.admission.blocked_capabilities)
    for container in case.pod.containers:
        for name in container.capabilities:
            if capability(name) in blocked:
                yield Found(at(container.path, _SECURITY, "capabilities", "add"), shown(name))


@rule(
    RuleId.HOST_PID,
    "shows the pod its neighbours' processes, and root in it can signal them",
    "remove it; MPS does not need it",
)
def _host_pid(case: RuleInput) -> Iterator[Found]:
    if case.pod.spec.host_pid:
        yield Found(_in_spec(case.pod, "hostPID"), "true")


@rule(
    RuleId.HOST_ROOT,
    "the container may run as root on the host, which can end its neighbours' programs on a GPU",
    f"{_RESTRICT}; or, where host_ipc is off, hostUsers: false on the pod",
)
def _host_root(case: RuleInput) -> Iterator[Found]:
    """Any container: one that has no GPU can be handed the socket by one that has."""
    if not case.pod.spec.host_users:
        return
    otherwise = ""
    if case.policy.admission.host_ipc is HostIPC.OFF:  # else hostUsers: false is forbidden
        shared = {"hostIPC": case.pod.spec.host_ipc, "hostPID": case.pod.spec.host_pid}
        otherwise = ", or hostUsers: false on the pod"
        if without := " and ".join(key for key, has in shared.items() if has):
            otherwise += f" without {without}"
    if case.pod.spec.shares_processes:
        message = "each container of the pod can open the MPS socket of the others through /proc"
        yield Found(
            _in_spec(case.pod, "shareProcessNamespace"), "true", message, f"remove it{otherwise}"
        )
    for container in case.pod.containers:
        security = at(container.path, _SECURITY)
        uid, non_root = case.pod.run_as(container)
        if uid == 0:
            yield Found(at(security, "runAsUser"), "0", remedy=_RESTRICT + otherwise)
            continue
        if uid is None and not non_root:
            yield Found(security, "", remedy=_RESTRICT + otherwise)
            continue
        if container.security.may_escalate:
            message = "a setuid program in the image can make the container root on the host"
            remedy = f"set allowPrivilegeEscalation: false{otherwise}"
            yield Found(at(security, "allowPrivilegeEscalation"), "", message, remedy)
        added = map(capability, container.capabilities)
        if not container.drops_all or _CHANGES_USER in added:
            message = "with the capability SETUID a container can become root on the host"
            remedy = f"set capabilities.drop: [ALL], and do not add SETUID{otherwise}"
            yield Found(at(security, "capabilities"), "", message, remedy)


@rule(
    RuleId.HOST_PATH,
    "device nodes, runtime sockets and device plugins' folders give access to GPUs without limits",
    "mount a narrower path, or use another kind of volume",
)
def _host_paths(case: RuleInput) -> Iterator[Found]:
    blocked = case.policy.admission.blocked_host_paths
    allowed = case.policy.admission.allowed_host_paths
    for volume in case.pod.host_volumes:
        path = volume.host_path
        places = reached(path, blocked)
        if not places and allowed is None:
            continue
        if _is_ours(volume):
            continue
        if places:
            where = places[0]
            if len(places) > 1:
                where += " and other paths"
            message = f"gives access to {where} on the host, and so to GPUs that mpsd does not"
            yield Found(volume.path, shown(path), f"{message} account for")
        elif "/../" in f"/{path}/" or not inside(path, allowed or ()):
            remedy = "use another kind of volume"
            if allowed:
                remedy = f"mount {' or '.join(allowed)}, or {remedy}"
            message = "only the paths under allowed_host_paths of the policy may be mounted"
            yield Found(volume.path, shown(path), message, remedy)


_host_paths_unasked = Rule(
    RuleId.UNASKED_HOST_PATH,
    "device nodes and runtime sockets give access to GPUs that mpsd does not account for",
    "mount a narrower path, or run such pods in an exempt namespace",
    _host_paths.look,
    NOT_ASKING,
)


@rule(
    RuleId.MPSD_FILES,
    "whoever can write mpsd's files can command its daemons",
    "remove the volume; the node mounts what a container needs",
    EVERY,
)
def _mpsd_files(case: RuleInput) -> Iterator[Found]:
    near = [one for one in case.pod.host_volumes if reached(one.host_path, _OWN)]
    for volume in near:
        if _is_ours(volume):
            yield Found(
                volume.path, shown(volume.host_path), "contains the sockets of mpsd's daemons"
            )
    above = {one.name: one.host_path for one in near}
    for container in case.pod.containers if above else ():
        for entry, mount in container.mounts:
            if mount.name not in above:
                continue
            path = above[mount.name]
            message = f"leads from {shown(path)} to the sockets of mpsd's daemons"
            if mount.sub_path_expr:
                yield Found(at(entry, "subPathExpr"), shown(mount.sub_path_expr), message)
            elif mount.sub_path and inside(f"{path}/{mount.sub_path}", _OWN):
                yield Found(at(entry, "subPath"), shown(mount.sub_path), message)


@rule(
    RuleId.MOUNT_PATH,
    "a volume there hides what the node mounts, or requests a GPU from NVIDIA's runtime",
    "mount it elsewhere",
    EVERY,
)
def _mount_paths(case: RuleInput) -> Iterator[Found]:
    for container in case.pod.containers:
        for entry, mount in container.mounts:
            key = "mountPath" if mount.mount_path else "devicePath"
            place = mount.mount_path or mount.device_path
            if hidden := inside(place, case.policy.admission.blocked_mount_paths):
                message = f"a volume at {hidden} replaces what the node mounts there"
                yield Found(at(entry, key), shown(place), message)


HOST_RULES: tuple[Rule, ...] = (
    *(_missing_host_ipc, added_host_ipc, _unneeded_host_ipc),
    *(_privileged, _privileged_unasked, _capabilities, _host_pid, _host_root),
    *(_host_paths, _host_paths_unasked, _mpsd_files, _mount_paths),
)


def _is_ours(volume: HostVolume) -> bool:
    return ".." not in volume.host_path and bool(inside(volume.host_path, _OWN))


def _in_spec(pod: Pod, key: str) -> str:
    return at(pod.path, "spec", key)


# Whether a path leads to another, as far as its text shows; where it does not, the path may lead
# anywhere. A link that somebody made on the host is not seen.

_Steps = tuple[str, ...]
Led = TypeVar("Led")
# characters of a path whose answer is kept: Kubernetes takes paths of a MiB, and thousands of them
_LONGEST_KEPT = 256
_LINKED = "var/run/"  # on every distribution a link to /run


def _kept(look: Callable[[str, tuple[str, ...]], Led]) -> Callable[[str, tuple[str, ...]], Led]:
    kept = lru_cache(maxsize=4096)(look)
    return lambda path, patterns: (look if len(path) > _LONGEST_KEPT else kept)(path, patterns)


@_kept
def reached(host_path: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that a path of the host contains, is, or lies below. `..` behind a link leads to
    where nobody can read it off, so such a path leads to all of them."""
    if "/../" in f"/{host_path}/":
        return patterns
    wanted = _patterns(patterns)
    steps = _steps(host_path, wanted.most_steps)
    if not steps:
        return patterns
    return tuple(pattern for pattern, way in wanted.near(steps) if all(map(_is_step, steps, way)))


@_kept
def inside(path: str, patterns: tuple[str, ...]) -> str:
    """The first pattern that is this path or contains it, or empty."""
    wanted = _patterns(patterns)
    steps = _steps(path, wanted.most_steps)
    for pattern, way in wanted.near(steps):
        if len(way) <= len(steps) and all(map(_is_step, steps, way)):
            return pattern
    return ""


def _is_step(step: str, wanted: str) -> bool:
    return step.startswith(wanted[:-1]) if wanted.endswith("*") else step == wanted


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Patterns and their steps, found by the first step: a pod may have thousands of paths."""

    by_first: Mapping[str, Sequence[tuple[str, _Steps]]]
    others: Sequence[tuple[str, _Steps]]  # whose first step is none by itself
    most_steps: int  # of the longest

    def near(self, steps: _Steps) -> Sequence[tuple[str, _Steps]]:
        """All that begin as this path does, and maybe others."""
        return self.by_first.get(steps[0], self.others) if steps else self.others


@lru_cache(maxsize=64)
def _patterns(patterns: tuple[str, ...]) -> _Patterns:
    ways = [(pattern, _steps(pattern, len(pattern))) for pattern in patterns]
    is_other = {pattern: not way or way[0].endswith("*") for pattern, way in ways}
    firsts = {way[0] for pattern, way in ways if not is_other[pattern]}
    by_first = {}
    for first in firsts:
        by_first[first] = [one for one in ways if is_other[one[0]] or one[1][0] == first]
    others = [one for one in ways if is_other[one[0]]]
    return _Patterns(by_first, others, max((len(way) for _pattern, way in ways), default=0))


def _steps(path: str, most: int) -> _Steps:
    """The first ones. A step is one for any number of slashes, none for `.`, one back for each
    `..`."""
    plain = path.lstrip("/")
    closed = f"/{plain}/"
    if "//" in closed or "/./" in closed or "/../" in closed:
        plain = normpath(f"/{plain}").lstrip("/")
    if f"{plain}/".startswith(_LINKED):
        plain = plain.removeprefix("var/")
    return tuple(filter(None, plain.split("/", most)[:most]))
