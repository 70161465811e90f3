"""Before `create` and `run`: a bundle whose environment requests a share gets it, or no container is created from it.

A bundle that requests nothing stays byte for byte as it was, and mpsd is not asked. The record is written before the
bundle: whatever is killed in between, it names everything that is there.
"""

import os

from mpsd.containers.runtime import bundle, json_text
from mpsd.containers.runtime.bundle import CONFIG, RECORD, BundleRecord, Record
from mpsd.containers.runtime.client import CREATED, NOTHING_REQUESTED, Granted, ask, refusal
from mpsd.containers.runtime.json_text import ContainerRefused, inner, member, rows, shown, table, text, texts
from mpsd.containers.runtime.log import RuntimeLog, warn


class BundleOwner:
    """The container that a bundle is for, and where mpsd listens.

    hook: the command that reports the container's end to mpsd. runtime: the next one, which creates the container.
    """

    def __init__(
        self, root: str, container: str, run_directory: str, log: RuntimeLog, hook: list[str], runtime: str
    ) -> None:
        self.root = root
        self.container = container
        self.run_directory = run_directory
        self.log = log
        self.hook = hook
        self.runtime = runtime


def prepare(path: str, owner: BundleOwner) -> None:
    """Refused, with the bundle as it was."""
    folder = bundle.open_folder(path, "the bundle")
    try:
        config = _config(folder)
        entries = texts(inner(config, "process", CONFIG), "env", CONFIG)
        if bundle.requests_share(entries) or bundle.is_there(folder, RECORD):
            _settle(folder, config, owner)
    finally:
        os.close(folder)


def _config(folder: int) -> dict[str, object]:
    try:
        data = bundle.read(folder, CONFIG, CONFIG)
    except FileNotFoundError:
        raise ContainerRefused("the bundle has no config.json; name the bundle's folder with --bundle") from None
    return table(json_text.read(data, CONFIG), CONFIG)


# -- whether a bundle's program may be root on the machine itself: runtime-spec, config-linux.md ----------------------

_MAPPING = ("containerID", "hostID", "size")


def may_be_root(config: dict[str, object]) -> bool:
    """True where it cannot be known. Refused where the bundle does not follow the format."""
    user = inner(inner(config, "process", CONFIG), "user", CONFIG)
    uid = _number(user, "uid", f"{CONFIG}: process: user")
    linux = inner(config, "linux", CONFIG)
    kinds = [table(row, f"{CONFIG}: a namespace").get("type") for row in rows(linux, "namespaces", CONFIG)]
    if "user" not in kinds:
        return uid == 0
    mappings = [table(row, f"{CONFIG}: uidMappings") for row in rows(linux, "uidMappings", CONFIG)]
    return not mappings or any(_holds_root(mapping) for mapping in mappings)


def _holds_root(mapping: dict[str, object]) -> bool:
    """Whether root of this machine is somebody in the container, who can be become there."""
    _inside, here, size = (_number(mapping, name, f"{CONFIG}: uidMappings") for name in _MAPPING)
    return here == 0 and size > 0


def _number(holder: dict[str, object], name: str, where: str) -> int:
    value = member(holder, name, where)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ContainerRefused(f"{where}: {name} is {shown(str(value))}; it must be a whole number from 0 on")
    return value


# -- from the request to a bundle with a grant in it, or without one ---------------------------------------------------

_HOOK_S = 5
_LONGEST_NAME = 128  # characters of a container's name; an annotation may have any number
# The names that people know a container by: nerdctl's, containerd's for Kubernetes, CRI-O's.
_NAMES = ("nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name")


def _settle(folder: int, config: dict[str, object], owner: BundleOwner) -> None:
    """Refused, with the bundle as it was."""
    kept = bundle.read_record(folder)
    found = bundle.undo(config, kept.record) if kept else Record()
    request = _request(config, owner)
    granted = _granted(request, owner) if request else None
    if granted is None:
        if kept:
            _replace(folder, config)
            bundle.remove(folder, RECORD)
        return
    added = bundle.apply(config, granted, {"path": owner.hook[0], "args": owner.hook, "timeout": _HOOK_S})
    record = bundle.merged(found, added)
    bundle.write_record(folder, BundleRecord(owner.root, owner.container, granted.environment, record))
    _replace(folder, config)
    owner.log.event("granted", grant=granted.grant, environment=granted.environment)
    for message in granted.messages:
        warn(message)


def _granted(request: dict[str, object], owner: BundleOwner) -> Granted | None:
    """None where nothing is requested after all. Refused."""
    owner.log.event("asked", environment=request["environment"])
    answer = ask(owner.run_directory, "/v1/containers", request)
    if answer.status == NOTHING_REQUESTED:
        owner.log.event("off", environment=request["environment"])
        return None
    if answer.status != CREATED:
        raise refusal(answer)
    return Granted(answer.body)


def _request(config: dict[str, object], owner: BundleOwner) -> dict[str, object] | None:
    """A HostContainerRequest of mpsd/grants/rules/messages.py; None where nothing is requested. Refused."""
    process = inner(config, "process", CONFIG)
    entries = texts(process, "env", CONFIG)
    if not bundle.requests_share(entries):
        return None
    script, variables = bundle.dialect(entries)
    annotations = inner(config, "annotations", CONFIG)
    return {
        "root": owner.root,
        "id": owner.container,
        "name": next((str(annotations[name])[:_LONGEST_NAME] for name in _NAMES if annotations.get(name)), ""),
        "environment": variables,
        "oom_script": script,
        "capabilities": texts(inner(process, "capabilities", CONFIG), "bounding", CONFIG),
        "host_ipc": _has_host_ipc(inner(config, "linux", CONFIG)),
        "host_root": may_be_root(config),
        "runtime": owner.runtime,
    }


def _has_host_ipc(linux: dict[str, object]) -> bool:
    """Whether the container shares this machine's IPC namespace: it has none of its own, or is given ours by path."""
    for row in rows(linux, "namespaces", CONFIG):
        namespace = table(row, f"{CONFIG}: a namespace")
        if member(namespace, "type", CONFIG) == "ipc":
            path = text(namespace, "path", CONFIG)
            return bool(path) and _is_ours(path)
    return True


def _is_ours(path: str) -> bool:
    try:
        there, ours = os.stat(path), os.stat("/proc/self/ns/ipc")
    except OSError:
        return False  # the next runtime cannot enter it either, and says so
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _replace(folder: int, config: dict[str, object]) -> None:
    bundle.replace(folder, CONFIG, json_text.write(config, CONFIG))
