"""Before `create` and `run`: a bundle that requests a share gets it, or no container is created
from it. The record is written first, so it names everything that is there."""

import os

from mpsd.containers.runtime import bundle, json_text
from mpsd.containers.runtime.bundle import CONFIG, RECORD, BundleRecord
from mpsd.containers.runtime.client import CREATED, NOTHING_REQUESTED, Granted, ask, refusal
from mpsd.containers.runtime.command_line import CommandLine
from mpsd.containers.runtime.json_text import (
    ContainerRefused,
    inner,
    member,
    rows,
    shown,
    table,
    text,
    texts,
)
from mpsd.containers.runtime.log import RuntimeLog, warn


def prepare(path: str, line: CommandLine, runtime: str, hook: list[str]) -> None:
    """Refused, with the bundle as it was. runtime: the next one. hook: reports the container's
    end."""
    folder = bundle.open_folder(path, "the bundle")
    try:
        config = table(json_text.read(bundle.read(folder, CONFIG, CONFIG), CONFIG), CONFIG)
        entries = texts(inner(config, "process", CONFIG), "env", CONFIG)
        if bundle.requests_share(entries) or bundle.is_there(folder, RECORD):
            _settle(folder, config, line, runtime, hook)
    except FileNotFoundError:
        raise ContainerRefused(
            "the bundle has no config.json; name the bundle's folder with --bundle"
        ) from None
    finally:
        os.close(folder)


# -- whether a bundle's program may be root on the machine itself: runtime-spec, config-linux.md


def may_be_root(config: dict[str, object]) -> bool:
    """True where it cannot be known. Refused where the bundle does not follow the format."""
    user = inner(inner(config, "process", CONFIG), "user", CONFIG)
    uid = _number(user, "uid", f"{CONFIG}: process: user")
    linux = inner(config, "linux", CONFIG)
    if "user" not in [namespace.get("type") for namespace in _namespaces(linux)]:
        return uid == 0
    where = f"{CONFIG}: uidMappings"
    mappings = rows(linux, "uidMappings", CONFIG)
    is_mapped = not mappings
    for mapping in mappings:
        row = table(mapping, where)
        _number(row, "containerID", where)
        here, size = _number(row, "hostID", where), _number(row, "size", where)
        # Where root of this machine is somebody in the container, it can be become there.
        is_mapped = is_mapped or (here == 0 and size > 0)
    return is_mapped


def _namespaces(linux: dict[str, object]) -> list[dict[str, object]]:
    return [table(row, f"{CONFIG}: a namespace") for row in rows(linux, "namespaces", CONFIG)]


def _number(holder: dict[str, object], name: str, where: str) -> int:
    value = member(holder, name, where)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ContainerRefused(
            f"{where}: {name} is {shown(str(value))}; it must be a whole number from 0 on"
        )
    return value


# -- from the request to a bundle with a grant in it, or without one

_HOOK_S = 5
# GPUs may be divided, and eight joined, for a container (mpsd/grants/rules/messages.py)
_ANSWER_S = 80.0
_LONGEST_NAME = 128  # characters of a container's name; an annotation may have any number
# The names that people know a container by: nerdctl's, containerd's for Kubernetes, CRI-O's.
_NAMES = ("nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name")


def _settle(
    folder: int, config: dict[str, object], line: CommandLine, runtime: str, hook: list[str]
) -> None:
    log = RuntimeLog(line)
    kept = bundle.read_record(folder)
    found = BundleRecord()
    if kept:
        found = bundle.undo(config, kept)
    granted = None
    if request := _request(config, line, runtime):
        granted = _granted(request, line.run_directory, log)
    if granted is None:
        if kept:
            bundle.replace(folder, CONFIG, json_text.write(config, CONFIG))
            bundle.remove(folder, RECORD)
        return
    added = bundle.apply(config, granted, {"path": hook[0], "args": hook, "timeout": _HOOK_S})
    record = bundle.merged(found, added)
    record.root = line.root
    record.container = line.container
    record.environment = granted.environment
    bundle.replace(folder, RECORD, bundle.written(record), 0o600)
    bundle.replace(folder, CONFIG, json_text.write(config, CONFIG))
    log.event("granted", grant=granted.grant, environment=granted.environment)
    for message in granted.messages:
        warn(message)


def _granted(request: dict[str, object], run_directory: str, log: RuntimeLog) -> Granted | None:
    """None where nothing is requested after all. Refused."""
    log.event("asked", environment=request["environment"])
    status, body = ask(run_directory, "/v1/containers", request, _ANSWER_S)
    if status == NOTHING_REQUESTED:
        log.event("off", environment=request["environment"])
        return None
    if status != CREATED:
        raise refusal(status, body)
    return Granted(body)


def _request(
    config: dict[str, object], line: CommandLine, runtime: str
) -> dict[str, object] | None:
    """A HostContainerRequest of grants.rules.messages; None: nothing is requested. Refused."""
    process = inner(config, "process", CONFIG)
    entries = texts(process, "env", CONFIG)
    if not bundle.requests_share(entries):
        return None
    script, variables = bundle.dialect(entries)
    annotations = inner(config, "annotations", CONFIG)
    name = next(filter(None, map(annotations.get, _NAMES)), "")
    return {
        "root": line.root,
        "id": line.container,
        "name": str(name)[:_LONGEST_NAME],
        "environment": variables,
        "oom_script": script,
        "capabilities": texts(inner(process, "capabilities", CONFIG), "bounding", CONFIG),
        "host_ipc": _has_host_ipc(inner(config, "linux", CONFIG)),
        "host_root": may_be_root(config),
        "runtime": runtime,
    }


def _has_host_ipc(linux: dict[str, object]) -> bool:
    """Having no IPC namespace, or ours by path."""
    for namespace in _namespaces(linux):
        if member(namespace, "type", CONFIG) == "ipc":
            path = text(namespace, "path", CONFIG)
            try:
                return bool(path) and os.path.samefile(path, "/proc/self/ns/ipc")
            except OSError:
                return False  # the next runtime cannot enter it either, and reports that
    return True
