"""Which pod a process belongs to, by its cgroup.

The outermost pod of this node counts: a container that may make cgroups of its own (Docker or kind
in a pod) writes whatever names it likes below its pod, and nothing above it. The forms:
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
    host, or where the hierarchies of v1 name different pods. node: the cgroup that this node lives
    in (`node_cgroup`)."""
    found = {
        uid
        for cgroup in cgroups_in(text)
        if (uid := _outermost_pod(cgroup.path.removeprefix(node)))
    }
    return found.pop() if len(found) == 1 else None


def node_cgroup(own: str) -> str:
    """The cgroup that this node lives in, by the agent's own /proc/self/cgroup; mostly empty. Of an
    agent in a pod of a node that is in a pod, its own pod is the innermost."""
    for cgroup in cgroups_in(own):
        steps = cgroup.path.split("/")
        pods = [position for position in range(len(steps)) if _uid(steps, position)]
        if len(pods) > 1:
            outer = pods[-2]
            inner = next(
                n for n in range(outer + 1, len(steps)) if "kubepods" in steps[n] or n == pods[-1]
            )
            return "/".join(steps[:inner])
    return ""


@dataclass(frozen=True, slots=True)
class Cgroup:
    hierarchy: str  # the controllers of it in v1, as the kernel names them; empty for v2
    path: str

    def holds(self, other: "Cgroup") -> bool:
        """Whether the other is this one, or lies below it."""
        return self.hierarchy == other.hierarchy and f"{other.path}/".startswith(
            f"{self.path.rstrip('/')}/"
        )


def cgroups_in(text: str) -> list[Cgroup]:
    """A process's cgroup in every hierarchy, by the text of /proc/PID/cgroup: each line is
    `number:controllers:path`, in which only a line feed ends a line."""
    lines = (line.split(":", 2)[1:] for line in text.split("\n") if line.count(":") >= 2)
    return [Cgroup(controllers, path.removesuffix(_REMOVED)) for controllers, path in lines]


def _outermost_pod(path: str) -> str:
    """Its uid; empty where the path leads into no pod."""
    steps = path.split("/")
    uids = (_uid(steps, position) for position in range(len(steps)))
    return next(filter(None, uids), "")


def _uid(steps: list[str], position: int) -> str:
    """The uid of the pod whose cgroup the step at this position is; empty for any other cgroup."""
    step = steps[position]
    found = _SLICE.fullmatch(step)
    if found is None and position and steps[position - 1] in _PARENTS:
        found = _FOLDER.fullmatch(step)
    return found["uid"].replace("_", "-") if found else ""


# Which container without Kubernetes a process is in: that to which its innermost cgroup belongs
# alone; none where the hierarchies of v1 name different containers.


def alone_in(first: str, older: Iterable[str]) -> tuple[Cgroup, ...]:
    """The cgroups that a container has to itself. first: the text of /proc/PID/cgroup of its first
    process; older: of those that started before that one. The root of a hierarchy is nobody's."""
    others = frozenset(cgroup for text in older for cgroup in cgroups_in(text))
    own = (cgroup for cgroup in cgroups_in(first) if cgroup.path.strip("/."))
    return tuple(cgroup for cgroup in own if not any(cgroup.holds(other) for other in others))


def container_of_cgroup(text: str, homes: Mapping[str, Collection[Cgroup]]) -> str | None:
    """In whose home the process with this text in /proc/PID/cgroup is. homes: by container, what it
    has to itself; one that two share counts for neither."""
    found = {_innermost(cgroup, homes) for cgroup in cgroups_in(text)} - {None}
    return found.pop() if len(found) == 1 else None


def _innermost(cgroup: Cgroup, homes: Mapping[str, Collection[Cgroup]]) -> str | None:
    around = [
        (len(home.path), owner)
        for owner, own in homes.items()
        for home in own
        if home.holds(cgroup)
    ]
    deepest = max((length for length, _owner in around), default=0)
    owners = [owner for length, owner in around if length == deepest]
    return owners[0] if len(owners) == 1 else None


# The cgroup that mpsd makes for a program of this machine.

_OF_PROGRAM = "mpsd-"


def program_cgroup(
    text: str, hierarchy: str, grant: str, is_roots: Callable[[str], bool]
) -> Cgroup | None:
    """The cgroup to make for the program that has this text in /proc/PID/cgroup; None where it is
    not to be seen there. hierarchy: one controller of it; empty for v2.

    It lies below the deepest one of the program's own that belongs to root, with all above it: so
    their limits stay in force, and in v2 only root moves anybody out. It lies beside the cgroup of
    another grant, not in it.
    """
    found = next((one for one in cgroups_in(text) if hierarchy in one.hierarchy.split(",")), None)
    steps = [step for step in found.path.split("/") if step] if found else []
    if found is None or ".." in steps:
        return None
    above = ""
    for step in steps:
        if step.startswith(_OF_PROGRAM) or not is_roots(f"{above}/{step}"):
            break
        above += f"/{step}"
    return Cgroup(found.hierarchy, f"{above}/{_OF_PROGRAM}{grant}")
