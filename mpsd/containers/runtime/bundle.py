"""What a grant changes in a bundle's config.json, and how it is taken out again: only what is in a
record beside it, as annotations may be a tenant's. The format: runtime-spec, config.md,
config-linux.md."""

import os
import stat

from mpsd.containers.dialects.names import OOM_SCRIPT, REQUESTING, VARIABLES
from mpsd.containers.runtime import json_text
from mpsd.containers.runtime.client import Granted
from mpsd.containers.runtime.json_text import (
    ContainerRefused,
    inner,
    member,
    rows,
    shown,
    table,
    text,
    texts,
    word,
)

CONFIG = "config.json"
RECORD = "mpsd-runtime.json"  # what mpsd did to the bundle

# -- files
# Names are looked up in an open folder, never through a link; a file is replaced as a whole.

_LONGEST = 16 * 1024**2  # bytes: hundreds of times what any engine writes
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: str, what: str) -> int:
    """Refused."""
    try:
        return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        why = f"{what} {path or '.'} cannot be opened: {error.strerror}"
        raise ContainerRefused(f"{why}; name a folder that is there") from None


def read(folder: int, name: str, what: str) -> bytes:
    """All of a regular file. FileNotFoundError, Refused."""
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = f"{what} cannot be opened: {error.strerror}"
        raise ContainerRefused(f"{why}; it must be a plain file, and no link") from None
    try:
        seen = os.fstat(file)
        most = f"at most {_LONGEST} bytes are read"
        if not stat.S_ISREG(seen.st_mode):
            raise ContainerRefused(f"{what} is not a plain file; put one in its place")
        if seen.st_size > _LONGEST:
            raise ContainerRefused(f"{what} has {seen.st_size} bytes; {most}")
        data = bytearray()
        while piece := os.read(file, _LONGEST + 1 - len(data)):
            data += piece
            if len(data) > _LONGEST:
                raise ContainerRefused(f"{what} grows while it is read; {most}")
        return bytes(data)
    finally:
        os.close(file)


def replace(folder: int, name: str, text: str, mode: int | None = None) -> None:
    """Puts a new file in the place of `name`, with its mode and owner, or with `mode`. OSError."""
    uid, gid = os.geteuid(), os.getegid()
    if mode is None:
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
        uid, gid, mode = before.st_uid, before.st_gid, stat.S_IMODE(before.st_mode)
    beside = f".{name}.mpsd"
    remove(folder, beside)  # of one that was killed here
    file = os.open(beside, _NEW, 0o600, dir_fd=folder)
    try:
        try:
            data = memoryview(text.encode("ascii"))
            while data:
                data = data[os.write(file, data) :]
            if (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(file, uid, gid)
            os.fchmod(file, mode)
        finally:
            os.close(file)
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, beside)
        raise


def remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def is_there(folder: int, name: str) -> bool:
    """A link that leads nowhere is, too."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


# -- the environment of a process: a list of NAME=VALUE


def name_of(entry: str) -> str:
    return entry.partition("=")[0]


def requests_share(entries: list[str]) -> bool:
    return any(name_of(entry) in REQUESTING for entry in entries)


def dialect(entries: list[str]) -> tuple[str, dict[str, str]]:
    """The script to call before an end, and all variables that say what is requested. Refused with
    all problems: of a variable set twice, libc reads the first, others the last."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or name not in (*VARIABLES, OOM_SCRIPT):
            continue
        what = f"the variable {name} is"
        if found.setdefault(name, value) != value:
            problems.append(
                f"{what} set to {shown(found[name])} and to {shown(value)}; set it once"
            )
        if any("\ud800" <= char <= "\udfff" for char in value):  # bytes that are not UTF-8
            problems.append(f"{what} {shown(value)}, which is not text; write UTF-8")
    if problems:
        raise ContainerRefused(*problems)
    return found.pop(OOM_SCRIPT, ""), found


def replaced(entries: list[str], variables: dict[str, str]) -> list[str]:
    kept = [entry for entry in entries if name_of(entry) not in variables]
    return [*kept, *(f"{name}={value}" for name, value in variables.items())]


# -- what was added

_OWN_PLACE = ("run", "mpsd")  # in a container, where grants are mounted
_DEVICE = ("type", "major", "minor")
_PLACES = (  # in config.json, of the lists that are added to
    ("mounts",),
    ("linux", "devices"),
    ("linux", "resources", "devices"),
    ("hooks", "poststop"),
)


class BundleRecord:
    """What mpsd did to a bundle. root, container: whose it is. environment: of its processes.
    lists: what was added, as _PLACES. variables: the values each was given. before: earlier
    entries."""

    def __init__(self) -> None:
        self.root = self.container = ""
        self.environment: dict[str, str] = {}
        self.lists: list[list[object]] = [[] for _ in _PLACES]
        self.variables: dict[str, list[str]] = {}
        self.before: dict[str, list[str]] = {}


def read_record(folder: int) -> BundleRecord | None:
    """None: mpsd did nothing to the bundle. Refused."""
    try:
        return record_in(read(folder, RECORD, RECORD))
    except FileNotFoundError:
        return None


def record_in(data: bytes) -> BundleRecord:
    """Refused."""
    value = table(json_text.read(data, RECORD), RECORD)
    record = BundleRecord()
    record.root, record.container = text(value, "root", RECORD), text(value, "id", RECORD)
    for name, entry in inner(value, "environment", RECORD).items():
        record.environment[name] = word(entry, f"{RECORD}: environment")
    where = f"{RECORD}: added"
    holder = table(value.get("added"), where)
    for added, row in zip(record.lists, rows(holder, "lists", where), strict=False):
        if isinstance(row, list):
            added += row
    for name, found in (("variables", record.variables), ("before", record.before)):
        lists = inner(holder, name, where)
        for each in lists:
            found[each] = texts(lists, each, where)
    return record


def written(record: BundleRecord) -> str:
    """Refused."""
    added = {"lists": record.lists, "variables": record.variables, "before": record.before}
    owner = {"root": record.root, "id": record.container, "environment": record.environment}
    return json_text.write({**owner, "added": added}, RECORD) + "\n"


def undo(config: dict[str, object], record: BundleRecord) -> BundleRecord:
    """Takes out what is still there as it was added, and returns that. Refused."""
    found = BundleRecord()
    for place, recorded, taken in zip(_PLACES, record.lists, found.lists, strict=True):
        there = _list_at(config, place)
        taken += [row for row in there if row in recorded]
        there[:] = [row for row in there if row not in recorded]
    process = inner(config, "process", CONFIG)
    entries = texts(process, "env", CONFIG)
    for name, values in record.variables.items():
        now = [entry for entry in entries if name_of(entry) == name]
        if len(now) == 1 and now[0].partition("=")[2] in values:  # else a person changed it since
            before = record.before.get(name, [])
            found.variables[name], found.before[name] = values, before
            entries = [entry for entry in entries if name_of(entry) != name] + before
    if found.variables:
        process["env"] = entries
    return found


def apply(config: dict[str, object], granted: Granted, hook: dict[str, object]) -> BundleRecord:
    """Adds all of a grant. Refused, with nothing added."""
    nodes = [_node(source, inside) for source, inside, _access in granted.devices]
    problems = _conflicts(config, [inside for _source, inside, _read_only in granted.mounts])
    if problems:
        raise ContainerRefused(*problems)
    record = BundleRecord()
    lists = [_list_at(config, place) for place in _PLACES]
    added: list[list[object]] = [[], [], [], [hook]]
    # Last of all mounts, so that they lie on top of whatever the bundle mounts above them.
    for source, inside, read_only in granted.mounts:
        options = ["bind", "rprivate", "nosuid", "nodev", "ro" if read_only else "rw"]
        mount = {"destination": inside, "type": "bind", "source": source, "options": options}
        added[0].append(mount)
    for (_source, _inside, access), node in zip(granted.devices, nodes, strict=True):
        if not _has_node(lists[1], node):
            added[1].append(node)
        device = {name: node[name] for name in _DEVICE}
        added[2].append({"allow": True, **device, "access": access})
    for there, new, recorded in zip(lists, added, record.lists, strict=True):
        recorded += [row for row in new if row not in there]
        there += recorded
    process = table(member(config, "process", CONFIG), f"{CONFIG}: process")
    entries = texts(process, "env", CONFIG)
    for name, value in granted.environment.items():
        record.variables[name] = [value]
        record.before[name] = [entry for entry in entries if name_of(entry) == name]
    process["env"] = replaced(entries, granted.environment)
    return record


def merged(found: BundleRecord, added: BundleRecord) -> BundleRecord:
    """For a file that is as it was found, or already as it is to be."""
    record = BundleRecord()
    for together, old, new in zip(record.lists, found.lists, added.lists, strict=True):
        together += [*new, *(row for row in old if row not in new)]
    record.variables = {**found.variables, **added.variables}
    for name, values in found.variables.items():
        record.variables[name] = sorted({*values, *record.variables[name]})
    record.before = {**found.before, **added.before}
    return record


def _node(source: str, inside: str) -> dict[str, object]:
    """As the bundle describes it. Refused."""
    what = f"mpsd's device {source} is"
    try:
        seen = os.stat(source)
    except OSError as error:
        why = f"{what} missing: {error.strerror}; see `mpsd status`"
        raise ContainerRefused(why) from None
    kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(seen.st_mode), "")
    if not kind:
        raise ContainerRefused(f"{what} not a device; see `mpsd status`")
    return {
        "path": inside,
        "type": kind,
        "major": os.major(seen.st_rdev),
        "minor": os.minor(seen.st_rdev),
        "fileMode": stat.S_IMODE(seen.st_mode),
        "uid": 0,
        "gid": 0,
    }


def _conflicts(config: dict[str, object], places: list[str]) -> list[str]:
    """Mounts at the grant's places, or over their folder."""
    problems = []
    for row in rows(config, "mounts", CONFIG):
        inside = text(table(row, f"{CONFIG}: a mount"), "destination", f"{CONFIG}: a mount")
        steps = _steps(inside)
        for place in places:
            wanted = _steps(place)
            above = wanted[: len(steps)] == steps and steps[: len(_OWN_PLACE)] == _OWN_PLACE
            if above or steps[: len(wanted)] == wanted:
                problems.append(
                    f"the mount {shown(inside)} hides {place}, where mpsd mounts; leave it out"
                )
                break
    return problems


def _has_node(devices: list[object], node: dict[str, object]) -> bool:
    """Refused where another one is at its path."""
    for row in devices:
        device = table(row, f"{CONFIG}: a device")
        if _steps(text(device, "path", f"{CONFIG}: a device")) == _steps(str(node["path"])):
            if all(device.get(name) == node[name] for name in _DEVICE):
                return True
            raise ContainerRefused(f"the device {node['path']} is not mpsd's; leave it out")
    return False


def _list_at(config: dict[str, object], place: tuple[str, ...]) -> list[object]:
    """Made where there is none. Refused."""
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
    if steps[:2] == ["var", "run"]:
        del steps[0]
    return tuple(steps)
