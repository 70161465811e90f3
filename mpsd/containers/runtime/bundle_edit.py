"""What a grant changes in a bundle's config.json, and how it is taken out again.

One rule: everything that is added is in the record, and only what is in the record is taken out: so a bundle that is
used again, whatever was killed in between, has each of them once. The format: runtime-spec, config.md, config-linux.md.
"""

from mpsd.containers.runtime import environment
from mpsd.containers.runtime.bundle_file import CONFIG
from mpsd.containers.runtime.fields import inner, member, rows, table, text, texts, word
from mpsd.containers.runtime.granted import Device, Granted, Mount
from mpsd.containers.runtime.refused import Refused, shown

_OWN_PLACE = ("run", "mpsd")  # in a container, where grants are mounted
_PLACES = (  # in config.json, of the lists that are added to
    ("mounts",),
    ("linux", "devices"),
    ("linux", "resources", "devices"),
    ("hooks", "poststop"),
)


class Record:
    """What was added. lists: in the order of the lists' places. variables: from name to the values it was given.

    before: the entries of these names that were there.
    """

    def __init__(self) -> None:
        self.lists: list[list[object]] = [[] for _ in _PLACES]
        self.variables: dict[str, list[str]] = {}
        self.before: dict[str, list[str]] = {}

    def written(self) -> dict[str, object]:
        return {"lists": self.lists, "variables": self.variables, "before": self.before}


def record_of(value: object, where: str) -> Record:
    """A record as it was written. Refused."""
    holder = table(value, where)
    record = Record()
    for added, read in zip(record.lists, rows(holder, "lists", where), strict=False):
        added += read if isinstance(read, list) else []
    record.variables = _entries(inner(holder, "variables", where), where)
    record.before = _entries(inner(holder, "before", where), where)
    return record


def _entries(lists: dict[str, object], where: str) -> dict[str, list[str]]:
    return {name: [word(each, where) for each in rows({name: found}, name, where)] for name, found in lists.items()}


def undo(config: dict[str, object], record: Record) -> Record:
    """Takes out what is still there as it was added, and returns that. Refused."""
    found = Record()
    for place, recorded, taken in zip(_PLACES, record.lists, found.lists, strict=True):
        there = _list_at(config, place)
        taken += [row for row in there if row in recorded]
        there[:] = [row for row in there if row not in recorded]
    process = inner(config, "process", CONFIG)
    entries = texts(process, "env", CONFIG)
    for name, values in record.variables.items():
        now = [entry for entry in entries if environment.name_of(entry) == name]
        if len(now) == 1 and now[0].partition("=")[2] in values:  # else a person changed it since
            before = record.before.get(name, [])
            found.variables[name], found.before[name] = values, before
            entries = [entry for entry in entries if environment.name_of(entry) != name] + before
    if found.variables:
        process["env"] = entries
    return found


def apply(
    config: dict[str, object],
    granted: Granted,
    nodes: list[dict[str, object]],
    hook: dict[str, object],
) -> Record:
    """Adds all of a grant. nodes: what `node` made of its devices, in their order. Refused, with nothing added."""
    problems = conflicts(config, granted.mounts)
    if problems:
        raise Refused(*problems)
    record = Record()
    lists = [_list_at(config, place) for place in _PLACES]
    added: list[list[object]] = [[mount(each) for each in granted.mounts], [], [], [hook]]
    for each, made in zip(granted.devices, nodes, strict=True):
        if not _is_there(lists[1], made):
            added[1].append(made)
        added[2].append(rule(made, each.access))
    for there, new, recorded in zip(lists, added, record.lists, strict=True):
        recorded += [row for row in new if row not in there]
        there += recorded
    process = table(member(config, "process", CONFIG), f"{CONFIG}: process")
    entries = texts(process, "env", CONFIG)
    for name, value in granted.environment.items():
        record.variables[name] = [value]
        record.before[name] = [entry for entry in entries if environment.name_of(entry) == name]
    process["env"] = environment.replaced(entries, granted.environment)
    return record


def both(found: Record, added: Record) -> Record:
    """One record for a file that is still as it was found, or already as it is to be."""
    record = Record()
    for together, old, new in zip(record.lists, found.lists, added.lists, strict=True):
        together += [*new, *(row for row in old if row not in new)]
    record.variables = {**found.variables, **added.variables}
    for name, values in found.variables.items():
        record.variables[name] = sorted({*values, *record.variables[name]})
    record.before = {**found.before, **added.before}
    return record


def mount(each: Mount) -> dict[str, object]:
    """Last of all mounts, so that it lies on top of whatever the bundle mounts above it."""
    options = ["bind", "rprivate", "nosuid", "nodev", "ro" if each.read_only else "rw"]
    return {"destination": each.inside, "type": "bind", "source": each.source, "options": options}


def node(each: Device, kind: str, major: int, minor: int, mode: int) -> dict[str, object]:
    return {"path": each.inside, "type": kind, "major": major, "minor": minor, "fileMode": mode, "uid": 0, "gid": 0}


def rule(made: dict[str, object], access: str) -> dict[str, object]:
    """For the device cgroup."""
    return {"allow": True, **{name: made[name] for name in ("type", "major", "minor")}, "access": access}


def conflicts(config: dict[str, object], mounts: list[Mount]) -> list[str]:
    """The bundle's own mounts that stand where the grant's do, or hold the place that grants are mounted in."""
    problems = []
    for row in rows(config, "mounts", CONFIG):
        inside = text(table(row, f"{CONFIG}: a mount"), "destination", f"{CONFIG}: a mount")
        steps = _steps(inside)
        for each in mounts:
            wanted = _steps(each.inside)
            above = wanted[: len(steps)] == steps and steps[: len(_OWN_PLACE)] == _OWN_PLACE
            if above or steps[: len(wanted)] == wanted:
                problems.append(f"the mount {shown(inside)} hides {each.inside}, where mpsd mounts; leave it out")
                break
    return problems


def _is_there(devices: list[object], made: dict[str, object]) -> bool:
    """Whether the bundle has this node already. Refused where another one stands at its path."""
    for row in devices:
        read = table(row, f"{CONFIG}: a device")
        if _steps(text(read, "path", f"{CONFIG}: a device")) == _steps(str(made["path"])):
            if all(read.get(name) == made[name] for name in ("type", "major", "minor")):
                return True
            raise Refused(f"the device {made['path']} is another one than mpsd's; leave it out")
    return False


def _list_at(config: dict[str, object], place: tuple[str, ...]) -> list[object]:
    """The list itself, put there where there is none. Refused."""
    holder = config
    for name in place[:-1]:
        holder[name] = holder = inner(holder, name, CONFIG)
    holder[place[-1]] = found = rows(holder, place[-1], CONFIG)
    return found


def _steps(path: str) -> tuple[str, ...]:
    """As the kernel goes them from the container's root, /var/run being a link to /run."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in {"", "."}:
            steps.append(step)
    return tuple(steps[1:] if steps[:2] == ["var", "run"] else steps)
