"""Which pod a process belongs to, by its cgroup.

The outermost pod of this node counts: a container that may make cgroups (Docker or kind in a pod)
writes whatever names it likes below its own. The forms:
- cgroupfs driver: `kubepods[/burstable|/besteffort]/pod<uid>/<container>`, below kubelet's
  --cgroup-root (kubelet's cgroup_manager_linux.go).
- systemd driver: `kubepods-burstable-pod<uid with _>.slice/cri-containerd-<container>.scope`, or
  crio-, docker- (github.com/iovisor/kubectl-trace/issues/174).
- kubelet on systemd, containerd on cgroupfs: `….slice:cri-containerd:<container>` as one name
  (github.com/elastic/apm-agent-nodejs/issues/3550).
- seen from a cgroup namespace, as an unprivileged agent on v2 sees: `/../../pod<uid>/…`
  (cgroup_namespaces(7)).
- static pods: the uid is 32 hexadecimal digits, a hash of the file.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_SLICE = re.compile(
    rf"(?:.*-)?kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice(?::.*)?", re.DOTALL
)
_FOLDER = re.compile(rf"pod{_UID}")
_PARENTS = frozenset({"kubepods", "burstable", "besteffort", ".."})
# what the kernel puts behind a cgroup that is gone while a process of it ends
_REMOVED = " (deleted)"


def pod_of_cgroup(text: str, node: str = "") -> str | None:
    """The uid of the pod in the text of /proc/PID/cgroup (v1 or v2); None for a process of the
    host, or where the hierarchies of v1 name different pods. node: of `node_cgroup`."""
    found = {_outermost_pod(cgroup.path.removeprefix(node)) for cgroup in cgroups_in(text)}
    return _only(found - {""})


Value = TypeVar("Value")


def _only(found: Collection[Value]) -> Value | None:
    """None where there are several, or none."""
    if len(found) == 1:
        return next(iter(found))
    return None


def node_cgroup(own: str) -> str:
    """The cgroup that this node lives in, mostly empty. own: the agent's /proc/self/cgroup, whose
    pod is the innermost where a pod holds the node."""
    for cgroup in cgroups_in(own):
        steps = cgroup.path.split("/")
        pods = [position for position in range(len(steps)) if _uid(steps, position)]
        if len(pods) > 1:
            inner = pods[-2] + 1
            while "kubepods" not in steps[inner] and inner != pods[-1]:
                inner += 1
            return "/".join(steps[:inner])
    return ""


@dataclass(frozen=True, slots=True)
class Cgroup:
    hierarchy: str  # the controllers of it in v1, as the kernel names them; empty for v2
    path: str

    def holds(self, other: "Cgroup") -> bool:
        """Whether the other lies below this one, or is it."""
        inside = f"{self.path.rstrip('/')}/"
        return self.hierarchy == other.hierarchy and f"{other.path}/".startswith(inside)


def cgroups_in(text: str) -> list[Cgroup]:
    """The cgroups in the text of /proc/PID/cgroup: each line is `number:controllers:path`, in which
    only a line feed ends a line."""
    lines = (line.split(":", 2)[1:] for line in text.split("\n") if line.count(":") >= 2)
    return [Cgroup(controllers, path.removesuffix(_REMOVED)) for controllers, path in lines]


def _outermost_pod(path: str) -> str:
    """Its uid; empty where the path leads into no pod."""
    steps = path.split("/")
    uids = (_uid(steps, position) for position in range(len(steps)))
    return next(filter(None, uids), "")


def _uid(steps: list[str], position: int) -> str:
    """Of the pod whose cgroup this step is; empty for any other."""
    step = steps[position]
    found = _SLICE.fullmatch(step)
    if found is None and position and steps[position - 1] in _PARENTS:
        found = _FOLDER.fullmatch(step)
    if found is None:
        return ""
    return found["uid"].replace("_", "-")


# Which container without Kubernetes a process is in: that to which its innermost cgroup belongs
# alone; none where the hierarchies of v1 name different containers.


def alone_in(first: str, older: Iterable[str]) -> tuple[Cgroup, ...]:
    """What a container has to itself. first: the text of /proc/PID/cgroup of its first process;
    older: of those that started before that one. The root of a hierarchy is nobody's."""
    others = frozenset(cgroup for text in older for cgroup in cgroups_in(text))
    own = (cgroup for cgroup in cgroups_in(first) if cgroup.path.strip("/."))
    return tuple(cgroup for cgroup in own if not any(cgroup.holds(other) for other in others))


def container_of_cgroup(text: str, homes: Mapping[str, Collection[Cgroup]]) -> str | None:
    """In whose home the process with this text is; a home that two share counts for neither."""
    return _only({_innermost(cgroup, homes) for cgroup in cgroups_in(text)} - {None})


def _innermost(cgroup: Cgroup, homes: Mapping[str, Collection[Cgroup]]) -> str | None:
    owners: dict[int, list[str]] = {0: []}  # by the length of the home's path
    for owner, own in homes.items():
        for home in own:
            if home.holds(cgroup):
                owners.setdefault(len(home.path), []).append(owner)
    return _only(owners[max(owners)])


# The cgroup that mpsd makes for a program of this machine.

_OF_PROGRAM = "mpsd-"


def program_cgroup(
    text: str, hierarchy: str, grant: str, is_roots: Callable[[str], bool]
) -> Cgroup | None:
    """The cgroup to make for the program with this text; None where it is not to be seen there.
    hierarchy: one controller of it; empty for v2.

    It lies below the deepest one of the program's own that belongs to root, with all above it: so
    their limits stay in force, and in v2 only root moves anybody out. It lies beside the cgroup of
    another grant, not in it.
    """
    found = next((one for one in cgroups_in(text) if hierarchy in one.hierarchy.split(",")), None)
    if found is None or ".." in found.path.split("/"):
        return None
    above = ""
    for step in filter(None, found.path.split("/")):
        if step.startswith(_OF_PROGRAM) or not is_roots(f"{above}/{step}"):
            break
        above += f"/{step}"
    return Cgroup(found.hierarchy, f"{above}/{_OF_PROGRAM}{grant}")
