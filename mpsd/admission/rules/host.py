"""The rules for access to the host: its root user, its processes, its IPC namespace and its files.

A rule looks at the pod alone. Volumes whose contents the pod does not state (a local PersistentVolume, a CSI driver's)
are out of reach here.
"""

from collections.abc import Iterator
from functools import lru_cache

from mpsd.admission.rules.rule import Rule, RuleInput, RuleScope, rule
from mpsd.model.fields import at
from mpsd.model.pod import HostVolume, Pod
from mpsd.model.policy import HostIPC, RuleId
from mpsd.model.problem import Problem, shown

_OWN = ("/run/mpsd",)
_SECURITY = "securityContext"


@rule(
    RuleId.HOST_IPC_MISSING,
    RuleScope.ASKING,
    "with drivers older than 580, MPS clients need the host's IPC namespace",
    "set hostIPC: true",
)
def _missing_host_ipc(case: RuleInput) -> Iterator[Problem]:
    if not case.pod.host_ipc and case.policy.admission.host_ipc is not HostIPC.OFF and not _adds_host_ipc(case):
        message = "MPS clients need it"
        yield Problem(RuleId.HOST_IPC_MISSING, _in_spec(case.pod, "hostIPC"), "", message, "set spec.hostIPC: true")


@rule(
    RuleId.HOST_IPC_ADDED,
    RuleScope.ASKING,
    "whoever creates a pod should know that it was changed",
    "set hostIPC: true",
)
def _added_host_ipc(case: RuleInput) -> Iterator[Problem]:
    if not case.pod.host_ipc and _adds_host_ipc(case):
        yield host_ipc_is_added(case.pod)


def host_ipc_is_added(pod: Pod) -> Problem:
    """The warning to whoever creates a pod that is changed."""
    message, remedy = "hostIPC: true is added when the pod is created", "set spec.hostIPC: true yourself"
    return Problem(RuleId.HOST_IPC_ADDED, _in_spec(pod, "hostIPC"), "", message, remedy)


@rule(
    RuleId.HOST_IPC_UNNEEDED,
    RuleScope.ASKING,
    "where host_ipc is off, the drivers do not need it, and it shares memory with every other pod that sets it",
    "remove hostIPC",
)
def _unneeded_host_ipc(case: RuleInput) -> Iterator[Problem]:
    if case.pod.host_ipc and case.policy.admission.host_ipc is HostIPC.OFF:
        message = "shares memory with every pod of the node that sets it, and MPS does not need it here"
        yield Problem(RuleId.HOST_IPC_UNNEEDED, _in_spec(case.pod, "hostIPC"), "true", message, "remove it")


def _adds_host_ipc(case: RuleInput) -> bool:
    """Whether it is still to be added: pods are changed, and the pods of a template are created later."""
    is_late = case.context.is_changed and not case.pod.path
    return case.policy.admission.host_ipc is HostIPC.INJECT and not is_late


@rule(RuleId.PRIVILEGED, RuleScope.ASKING, "a privileged container can use every GPU without limits", "remove it")
def _privileged(case: RuleInput) -> Iterator[Problem]:
    message = "a privileged container can use every GPU without limits"
    yield from _where_privileged(case, RuleId.PRIVILEGED, message, "remove it")


@rule(
    RuleId.UNASKED_PRIVILEGED,
    RuleScope.NOT_ASKING,
    "a privileged container can use every GPU of its node, and mpsd does not account for it",
    "remove it, or run such pods in an exempt namespace",
)
def _privileged_unasked(case: RuleInput) -> Iterator[Problem]:
    message = "a privileged container can use every GPU of its node, which mpsd does not account for"
    remedy = f"remove it, or request {case.policy.resources.memory} if it needs a GPU"
    yield from _where_privileged(case, RuleId.UNASKED_PRIVILEGED, message, remedy)


def _where_privileged(case: RuleInput, rule_id: RuleId, message: str, remedy: str) -> Iterator[Problem]:
    for container in case.pod.containers:
        if container.privileged:
            yield Problem(rule_id, at(container.path, _SECURITY, "privileged"), "true", message, remedy)


@rule(RuleId.CAPABILITIES, RuleScope.ASKING, "some capabilities are equivalent to privileged", "remove them")
def _capabilities(case: RuleInput) -> Iterator[Problem]:
    blocked = frozenset(case.policy.admission.blocked_capabilities)
    for container in case.pod.containers:
        for name in container.capabilities:
            if name.upper().removeprefix("CAP_") in blocked:
                where = at(container.path, _SECURITY, "capabilities", "add")
                message = "a container with this capability can bypass its limits"
                yield Problem(RuleId.CAPABILITIES, where, shown(name), message, "remove it")


@rule(
    RuleId.HOST_PID,
    RuleScope.ASKING,
    "a pod that sees its neighbours' processes can read and signal them",
    "remove hostPID; MPS does not need it",
)
def _host_pid(case: RuleInput) -> Iterator[Problem]:
    if case.pod.host_pid:
        message = "shows the pod its neighbours' processes, and root in it can signal them"
        remedy = "remove it; MPS does not need it"
        yield Problem(RuleId.HOST_PID, _in_spec(case.pod, "hostPID"), "true", message, remedy)


@rule(
    RuleId.HOST_ROOT,
    RuleScope.ASKING,
    "root on the host can end its neighbours' programs through MPS's own socket",
    "set runAsUser, runAsNonRoot: true, or hostUsers: false",
)
def _host_root(case: RuleInput) -> Iterator[Problem]:
    """Only containers with a GPU get access to MPS, through which root can end its neighbours."""
    for container in case.asking if case.pod.host_users else ():
        uid, non_root = container.run_as.uid, container.run_as.non_root
        if uid == 0 or (uid is None and not non_root):
            where, value = at(container.path, _SECURITY), ""
            if uid == 0:
                where, value = at(where, "runAsUser"), "0"
            message = "the container may run as root on the host, which can end its neighbours' programs on a GPU"
            remedy = "set runAsUser, or runAsNonRoot: true, or hostUsers: false on the pod"
            yield Problem(RuleId.HOST_ROOT, where, value, message, remedy)


@rule(
    RuleId.HOST_PATH,
    RuleScope.ASKING,
    "device nodes, runtime sockets and device plugins' folders give access to GPUs without limits",
    "mount a narrower path, or use another kind of volume",
)
def _host_paths(case: RuleInput) -> Iterator[Problem]:
    yield from _reaching(case, RuleId.HOST_PATH, "mount a narrower path, or use another kind of volume")


@rule(
    RuleId.UNASKED_HOST_PATH,
    RuleScope.NOT_ASKING,
    "device nodes and runtime sockets give access to GPUs that mpsd does not account for",
    "mount a narrower path, or run such pods in an exempt namespace",
)
def _host_paths_unasked(case: RuleInput) -> Iterator[Problem]:
    yield from _reaching(case, RuleId.UNASKED_HOST_PATH, "mount a narrower path")


def _reaching(case: RuleInput, rule_id: RuleId, remedy: str) -> Iterator[Problem]:
    for volume in case.pod.host_volumes:
        places = reached(volume.host_path, case.policy.admission.blocked_host_paths)
        if places and not _is_ours(volume):
            more = " and other paths" if len(places) > 1 else ""
            message = f"gives access to {places[0]}{more} on the host, and so to GPUs that mpsd does not account for"
            yield Problem(rule_id, volume.path, shown(volume.host_path), message, remedy)


@rule(
    RuleId.MPSD_FILES,
    RuleScope.EVERY,
    "whoever can write mpsd's files can command its daemons",
    "remove the volume; the node mounts what a container needs",
)
def _mpsd_files(case: RuleInput) -> Iterator[Problem]:
    for volume in case.pod.host_volumes:
        if _is_ours(volume):
            message = "contains the sockets of mpsd's daemons, and the node mounts what a container needs of them"
            yield Problem(RuleId.MPSD_FILES, volume.path, shown(volume.host_path), message, "remove the volume")


@rule(
    RuleId.MOUNT_PATH,
    RuleScope.EVERY,
    "a volume there hides what the node mounts, or requests a GPU from NVIDIA's runtime",
    "mount it elsewhere",
)
def _mount_paths(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        for mount in container.mounts:
            hidden = inside(mount.inside, case.policy.admission.blocked_mount_paths)
            if hidden:
                message = f"a volume at {hidden} replaces what the node mounts there"
                yield Problem(RuleId.MOUNT_PATH, mount.path, shown(mount.inside), message, "mount it elsewhere")


HOST_RULES: tuple[Rule, ...] = (
    *(_missing_host_ipc, _added_host_ipc, _unneeded_host_ipc),
    *(_privileged, _privileged_unasked, _capabilities, _host_pid, _host_root),
    *(_host_paths, _host_paths_unasked, _mpsd_files, _mount_paths),
)


def _is_ours(volume: HostVolume) -> bool:
    return ".." not in volume.host_path and bool(inside(volume.host_path, _OWN))


def _in_spec(pod: Pod, key: str) -> str:
    return at(pod.path, "spec", key)


# Whether a path leads to another, as far as its text shows; where it does not, the path may lead anywhere. A link that
# somebody made on the host is not seen.

_Steps = tuple[str, ...]
_LONGEST_KEPT = 256  # characters of a path whose answer is kept: Kubernetes takes paths of a MiB, and thousands of them
_LINKED = ("var", "run")  # on every distribution a link to /run


def reached(host_path: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that a path of the host leads to: it contains them, is one of them, or lies below one.

    `..` behind a link leads to where nobody can read it off, so such a path leads to all of them.
    """
    return (_reached if len(host_path) <= _LONGEST_KEPT else _reached.__wrapped__)(host_path, patterns)


def inside(path: str, patterns: tuple[str, ...]) -> str:
    """The first pattern that is this path or contains it; empty where none does."""
    return (_inside if len(path) <= _LONGEST_KEPT else _inside.__wrapped__)(path, patterns)


@lru_cache(maxsize=4096)
def _reached(host_path: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    if ".." in host_path.split("/"):
        return patterns
    steps = _steps(host_path)
    return tuple(pattern for pattern, wanted in _wanted(patterns) if all(map(_is_step, steps, wanted)))


@lru_cache(maxsize=4096)
def _inside(path: str, patterns: tuple[str, ...]) -> str:
    steps = _steps(path)
    candidates = ((pattern, wanted) for pattern, wanted in _wanted(patterns) if len(wanted) <= len(steps))
    return next((pattern for pattern, wanted in candidates if all(map(_is_step, steps, wanted))), "")


def _is_step(step: str, wanted: str) -> bool:
    return step.startswith(wanted[:-1]) if wanted.endswith("*") else step == wanted


@lru_cache(maxsize=64)
def _wanted(patterns: tuple[str, ...]) -> tuple[tuple[str, _Steps], ...]:
    return tuple((pattern, _steps(pattern)) for pattern in patterns)


def _steps(path: str) -> _Steps:
    """The steps of a path: one for any number of slashes, none for `.`, one back for each `..`."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in {"", "."}:
            steps.append(step)
    return tuple(steps[1:] if tuple(steps[:2]) == _LINKED else steps)
