"""Before `create` and `run`: a bundle whose environment asks for a share gets it, or is not made into a container.

One rule: a bundle that asks for nothing stays byte for byte as it was, nobody is asked, and what only the others need
is not loaded.
"""

import os
import stat

from mpsd.containers.runtime import bundle, json_text
from mpsd.containers.runtime import bundle as bundle_file
from mpsd.containers.runtime import bundle as environment
from mpsd.containers.runtime.asking import CREATED, NOTHING_ASKED, AnsweredDevice, Granted, ask, refusal
from mpsd.containers.runtime.bundle import CONFIG, RECORD, Record
from mpsd.containers.runtime.json_text import ContainerRefused, inner, member, rows, shown, table, text, texts
from mpsd.containers.runtime.runtime_log import RuntimeLog, tell


class BundleOwner:
    """Whose bundle it is, where mpsd listens, and the command of the hook that tells mpsd of the container's end.

    runtime: the next one, which makes the container.
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


def prepare(bundle: str, asker: BundleOwner) -> None:
    """Refused, with the bundle as it was."""
    folder = bundle_file.open_folder(bundle, "the bundle")
    try:
        config = _config(folder)
        entries = texts(inner(config, "process", CONFIG), "env", CONFIG)
        if environment.asks(entries) or bundle_file.is_there(folder, RECORD):
            settle(folder, config, asker)
    finally:
        os.close(folder)


def _config(folder: int) -> dict[str, object]:
    try:
        data = bundle_file.read(folder, CONFIG, CONFIG)
    except FileNotFoundError:
        raise ContainerRefused("the bundle has no config.json; name the bundle's folder with --bundle") from None
    return table(json_text.read(data, CONFIG), CONFIG)


# Whether a bundle's program may be root on the machine itself, as it is in most containers.
#
# One rule: where nobody can tell which user it is here, it may be root. The format: runtime-spec, config-linux.md.

_MAPPING = ("containerID", "hostID", "size")


def may_be_root(config: dict[str, object]) -> bool:
    """Refused where the bundle does not say it in the format."""
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


# Brings a bundle to what mpsd answers about it: a grant in it, or nothing of one.
#
# One rule: the record is written before the bundle, so whatever is killed in between, it names all that is there.

_HOOK_S = 5
_LONGEST_NAME = 128  # characters of a container's name; an annotation may have any number
# The names that people know a container by: nerdctl's, containerd's for Kubernetes, CRI-O's.
_NAMES = ("nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name")


def settle(folder: int, config: dict[str, object], asker: BundleOwner) -> None:
    """Refused, with the bundle as it was."""
    kept = bundle.read_record(folder)
    found = bundle.undo(config, kept.record) if kept else Record()
    asks = _asks(config, asker)
    granted = _granted(asks, asker) if asks else None
    if granted is None:
        if kept:
            _replace(folder, config)
            bundle.remove(folder, RECORD)
        return
    hook: dict[str, object] = {"path": asker.hook[0], "args": asker.hook, "timeout": _HOOK_S}
    added = bundle.apply(config, granted, [_node(each) for each in granted.devices], hook)
    record = bundle.both(found, added)
    bundle.write(folder, bundle.Kept(asker.root, asker.container, granted.environment, record))
    _replace(folder, config)
    asker.log.event("granted", grant=granted.grant, environment=granted.environment)
    for message in granted.messages:
        tell(message)


def _granted(asks: dict[str, object], asker: BundleOwner) -> Granted | None:
    """None where nothing is asked after all. Refused."""
    asker.log.event("asked", environment=asks["environment"])
    answer = ask(asker.run_directory, "/v1/containers", asks)
    if answer.status == NOTHING_ASKED:
        asker.log.event("off", environment=asks["environment"])
        return None
    if answer.status != CREATED:
        raise refusal(answer)
    return Granted(answer.body)


def _asks(config: dict[str, object], asker: BundleOwner) -> dict[str, object] | None:
    """ContainerAsks of grants.rules.container_messages; None where nothing is asked. Refused."""
    process = inner(config, "process", CONFIG)
    entries = texts(process, "env", CONFIG)
    if not bundle.asks(entries):
        return None
    script, variables = bundle.dialect(entries)
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


def _node(device: AnsweredDevice) -> dict[str, object]:
    """Refused where there is no device."""
    try:
        seen = os.stat(device.source)
    except OSError as error:
        raise ContainerRefused(f"mpsd's device {device.source} is gone: {error.strerror}; see `mpsd status`") from None
    kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(seen.st_mode), "")
    if not kind:
        raise ContainerRefused(f"mpsd's device {device.source} is no device; see `mpsd status`")
    major, minor = os.major(seen.st_rdev), os.minor(seen.st_rdev)
    return bundle.node(device, kind, major, minor, stat.S_IMODE(seen.st_mode))


def _replace(folder: int, config: dict[str, object]) -> None:
    bundle.replace(folder, CONFIG, json_text.write(config, CONFIG))
