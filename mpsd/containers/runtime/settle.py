"""Brings a bundle to what mpsd answers about it: a grant in it, or nothing of one.

One rule: the record is written before the bundle, so whatever is killed in between, it names all that is there.
"""

import os
import stat

from mpsd.containers.runtime import bundle_edit, bundle_file, bundle_record, environment, json_text
from mpsd.containers.runtime.asking import ask
from mpsd.containers.runtime.bundle_edit import Record
from mpsd.containers.runtime.bundle_file import CONFIG, RECORD
from mpsd.containers.runtime.create import Asker
from mpsd.containers.runtime.fields import inner, member, rows, table, text, texts
from mpsd.containers.runtime.granted import CREATED, NOTHING_ASKED, Device, Granted, refusal
from mpsd.containers.runtime.host_user import may_be_root
from mpsd.containers.runtime.refused import Refused
from mpsd.containers.runtime.runtime_log import tell

_HOOK_S = 5
_LONGEST_NAME = 128  # characters of a container's name; an annotation may have any number
# The names that people know a container by: nerdctl's, containerd's for Kubernetes, CRI-O's.
_NAMES = ("nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name")


def settle(folder: int, config: dict[str, object], asker: Asker) -> None:
    """Refused, with the bundle as it was."""
    kept = bundle_record.read(folder)
    found = bundle_edit.undo(config, kept.record) if kept else Record()
    asks = _asks(config, asker)
    granted = _granted(asks, asker) if asks else None
    if granted is None:
        if kept:
            _replace(folder, config)
            bundle_file.remove(folder, RECORD)
        return
    hook: dict[str, object] = {"path": asker.hook[0], "args": asker.hook, "timeout": _HOOK_S}
    added = bundle_edit.apply(config, granted, [_node(each) for each in granted.devices], hook)
    record = bundle_edit.both(found, added)
    bundle_record.write(folder, bundle_record.Kept(asker.root, asker.container, granted.environment, record))
    _replace(folder, config)
    asker.log.event("granted", grant=granted.grant, environment=granted.environment)
    for message in granted.messages:
        tell(message)


def _granted(asks: dict[str, object], asker: Asker) -> Granted | None:
    """None where nothing is asked after all. Refused."""
    asker.log.event("asked", environment=asks["environment"])
    answer = ask(asker.run_directory, "/v1/containers", asks)
    if answer.status == NOTHING_ASKED:
        asker.log.event("off", environment=asks["environment"])
        return None
    if answer.status != CREATED:
        raise refusal(answer)
    return Granted(answer.body)


def _asks(config: dict[str, object], asker: Asker) -> dict[str, object] | None:
    """ContainerAsks of grants.rules.container_messages; None where nothing is asked. Refused."""
    process = inner(config, "process", CONFIG)
    entries = texts(process, "env", CONFIG)
    if not environment.asks(entries):
        return None
    script, variables = environment.dialect(entries)
    annotations = inner(config, "annotations", CONFIG)
    return {
        "root": asker.root,
        "id": asker.container,
        "name": next((str(annotations[name])[:_LONGEST_NAME] for name in _NAMES if annotations.get(name)), ""),
        "environment": variables,
        "oom_script": script,
        "capabilities": texts(inner(process, "capabilities", CONFIG), "bounding", CONFIG),
        "host_ipc": _has_host_ipc(inner(config, "linux", CONFIG)),
        "host_root": may_be_root(config),
        "runtime": asker.runtime,
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


def _node(device: Device) -> dict[str, object]:
    """Refused where there is no device."""
    try:
        seen = os.stat(device.source)
    except OSError as error:
        raise Refused(f"mpsd's device {device.source} is gone: {error.strerror}; see `mpsd status`") from None
    kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(seen.st_mode), "")
    if not kind:
        raise Refused(f"mpsd's device {device.source} is no device; see `mpsd status`")
    major, minor = os.major(seen.st_rdev), os.minor(seen.st_rdev)
    return bundle_edit.node(device, kind, major, minor, stat.S_IMODE(seen.st_mode))


def _replace(folder: int, config: dict[str, object]) -> None:
    bundle_file.replace(folder, CONFIG, json_text.write(config, CONFIG))
