"""Which container without Kubernetes a process is in, by its cgroup.

One rule: a cgroup counts for a container only where it is that container's alone; of several that a process is in, the
innermost counts, and where the hierarchies of v1 name different containers, none is believed.
"""

from collections.abc import Collection, Iterable, Mapping

from mpsd.platform.rules.cgroups import Cgroup, cgroups_in


def alone_in(first: str, older: Iterable[str]) -> tuple[Cgroup, ...]:
    """The cgroups that a container has to itself.

    first: the text of /proc/PID/cgroup of its first process; older: of those that started before that one, and so are
    none of its own. The root of a hierarchy is nobody's, and neither is a cgroup that others were put into too.
    """
    others = frozenset(cgroup for text in older for cgroup in cgroups_in(text))
    own = (cgroup for cgroup in cgroups_in(first) if cgroup.path.strip("/."))
    return tuple(cgroup for cgroup in own if not any(cgroup.holds(other) for other in others))


def container_of_cgroup(text: str, homes: Mapping[str, Collection[Cgroup]]) -> str | None:
    """Whose home the process is in that has this text in /proc/PID/cgroup. homes: by container, what it has to itself.

    Two containers that came to share a cgroup after all are told apart by nobody, so it counts for neither.
    """
    found = {_innermost(cgroup, homes) for cgroup in cgroups_in(text)} - {None}
    return found.pop() if len(found) == 1 else None


def _innermost(cgroup: Cgroup, homes: Mapping[str, Collection[Cgroup]]) -> str | None:
    around = [(len(home.path), owner) for owner, own in homes.items() for home in own if home.holds(cgroup)]
    deepest = max((length for length, _owner in around), default=0)
    owners = [owner for length, owner in around if length == deepest]
    return owners[0] if len(owners) == 1 else None
