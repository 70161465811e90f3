"""The rules for what a pod may have of the host: its root, its processes, its files.

One rule: a rule speaks of the pod alone. Volumes whose contents the pod does not say (a local PersistentVolume, a CSI
driver's) are out of reach here.
"""

from collections.abc import Iterator
from functools import lru_cache

from mpsd.admission.rules.context import RuleInput
from mpsd.model.fields import at
from mpsd.model.pod import Container, HostVolume, Pod
from mpsd.model.policy import HostIPC, RuleId
from mpsd.model.problem import Problem, shown

# Whether a path leads to another, as far as its text can say.
#
# One rule: where the text cannot say, the path leads anywhere. A link that somebody made on the host is not seen.

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


_OWN = ("/run/mpsd",)
_SECURITY = "securityContext"


def missing_host_ipc(case: RuleInput) -> Iterator[Problem]:
    if not case.pod.host_ipc and case.policy.admission.host_ipc is not HostIPC.OFF and not _adds_host_ipc(case):
        message = "a pod that asks for a GPU needs hostIPC: true, without which its programs do not reach MPS"
        remedy = "add hostIPC: true beside containers"
        yield Problem(RuleId.HOST_IPC_MISSING, at(case.pod.path, "spec", "hostIPC"), "", message, remedy)


def added_host_ipc(case: RuleInput) -> Iterator[Problem]:
    if not case.pod.host_ipc and _adds_host_ipc(case):
        yield host_ipc_is_added(case.pod)


def host_ipc_is_added(pod: Pod) -> Problem:
    """What is said to whoever has to live with the change."""
    message = "hostIPC: true is added when the pod is created"
    remedy = "add hostIPC: true beside containers to have no surprise"
    return Problem(RuleId.HOST_IPC_ADDED, at(pod.path, "spec", "hostIPC"), "", message, remedy)


def unneeded_host_ipc(case: RuleInput) -> Iterator[Problem]:
    if case.pod.host_ipc and case.policy.admission.host_ipc is HostIPC.OFF:
        message = "shares memory with every pod on the node that has it too, and MPS does not need it here"
        yield Problem(RuleId.HOST_IPC_UNNEEDED, at(case.pod.path, "spec", "hostIPC"), "true", message, "remove it")


def _adds_host_ipc(case: RuleInput) -> bool:
    """Whether it is still to be added: pods are changed, and the pods of a template are created later."""
    is_late = case.circumstances.is_changed and not case.pod.path
    return case.policy.admission.host_ipc is HostIPC.INJECT and not is_late


def privileged(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        if container.privileged:
            message = "a privileged container sees every GPU, and no limit holds it"
            yield Problem(RuleId.PRIVILEGED, _privileged_where(container), "true", message, "remove it")


def privileged_unasked(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        if container.privileged:
            message = "a privileged container sees every GPU of its node, which nobody counts"
            remedy = f"remove it, or ask for {case.policy.resources.memory} if it wants a GPU"
            yield Problem(RuleId.UNASKED_PRIVILEGED, _privileged_where(container), "true", message, remedy)


def capabilities(case: RuleInput) -> Iterator[Problem]:
    blocked = frozenset(case.policy.admission.blocked_capabilities)
    for container in case.pod.containers:
        for name in container.capabilities:
            if name.upper().removeprefix("CAP_") in blocked:
                where = at(container.path, _SECURITY, "capabilities", "add")
                message = "with this capability a container can step over its limits"
                yield Problem(RuleId.CAPABILITIES, where, shown(name), message, "remove it")


def host_pid(case: RuleInput) -> Iterator[Problem]:
    if case.pod.host_pid:
        message = "shows the pod its neighbours' processes, and lets root signal them"
        remedy = "remove it; MPS works without"
        yield Problem(RuleId.HOST_PID, at(case.pod.path, "spec", "hostPID"), "true", message, remedy)


def host_root(case: RuleInput) -> Iterator[Problem]:
    """Only containers with a GPU are given the way to MPS, on which root can end its neighbours."""
    for container in case.asking if case.pod.host_users else ():
        uid, non_root = container.run_as.uid, container.run_as.non_root
        if uid == 0 or (uid is None and not non_root):
            where, value = at(container.path, _SECURITY), ""
            if uid == 0:
                where, value = at(where, "runAsUser"), "0"
            message = "may be root on the host, who can end its neighbours' programs on a GPU"
            remedy = "set runAsUser, or runAsNonRoot: true, or hostUsers: false on the pod"
            yield Problem(RuleId.HOST_ROOT, where, value, message, remedy)


def host_paths(case: RuleInput) -> Iterator[Problem]:
    yield from _reaching(case, RuleId.HOST_PATH, "mount a narrower path, or another kind of volume")


def host_paths_unasked(case: RuleInput) -> Iterator[Problem]:
    yield from _reaching(case, RuleId.UNASKED_HOST_PATH, "mount a narrower path")


def mpsd_files(case: RuleInput) -> Iterator[Problem]:
    for volume in case.pod.host_volumes:
        if _is_ours(volume):
            message = "is where mpsd keeps the ways to its daemons, which the node hands to each pod itself"
            yield Problem(RuleId.MPSD_FILES, volume.path, shown(volume.host_path), message, "remove the volume")


def mount_paths(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        for mount in container.mounts:
            hidden = inside(mount.inside, case.policy.admission.blocked_mount_paths)
            if hidden:
                message = f"a volume at {hidden} stands in for what the node puts there"
                yield Problem(RuleId.MOUNT_PATH, mount.path, shown(mount.inside), message, "mount it elsewhere")


def _reaching(case: RuleInput, rule: RuleId, remedy: str) -> Iterator[Problem]:
    for volume in case.pod.host_volumes:
        places = reached(volume.host_path, case.policy.admission.blocked_host_paths)
        if places and not _is_ours(volume):
            more = f" and {len(places) - 1} more places" if len(places) > 1 else ""
            message = f"leads to {places[0]}{more} on the host: ways to a GPU that nobody counts"
            yield Problem(rule, volume.path, shown(volume.host_path), message, remedy)


def _is_ours(volume: HostVolume) -> bool:
    return ".." not in volume.host_path and bool(inside(volume.host_path, _OWN))


def _privileged_where(container: Container) -> str:
    return at(container.path, _SECURITY, "privileged")
