"""The files of docker, containerd and podman, with the runtime mpsd and without it. What others
wrote stays, or it is InvalidInput."""

import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, ClassVar

from mpsd.model.problem import InvalidInput, Problem, shown

LAUNCHER = "/usr/local/bin/mpsd-runtime"
RUNTIME = "mpsd"
_Document = dict[str, Any]
_Keys = tuple[str, ...]


class Engine(StrEnum):
    DOCKER = "docker"
    CONTAINERD = "containerd"
    PODMAN = "podman"


class Configuration(ABC):
    """An engine's file. subject: as people name it. Methods raise InvalidInput. place: the keys of
    its runtimes. inside: those of the launcher in one. new_file: the text for a missing file.
    reload: the command after a change; cost: what that means."""

    engine: ClassVar[Engine]
    file: ClassVar[str]
    cost: ClassVar[str]
    reload: ClassVar[str] = ""
    inside: ClassVar[_Keys] = ()
    place: ClassVar[_Keys] = ()
    new_file: ClassVar[str] = ""
    a_table: ClassVar[str] = "a table"
    starts: ClassVar[str] = ""
    repair: ClassVar[str]

    def __init__(self, subject: str, launcher: str) -> None:
        self.subject = subject
        self.launcher = launcher

    def _keys(self, _document: _Document) -> _Keys:
        return self.place

    @abstractmethod
    def _added(self, text: str, document: _Document, runtimes: _Document) -> str: ...

    @abstractmethod
    def _removed(
        self, text: str, document: _Document, others: _Document, backups: Sequence[str]
    ) -> str | None: ...

    def with_runtime(self, text: str | None) -> str:
        """The same text where it has it. text None: there is no file."""
        before = self.new_file if text is None else text
        document = self._document(before)
        runtimes = self._runtimes(document)
        if RUNTIME not in runtimes:
            return self._added(before, document, runtimes)
        self._check(document, runtimes[RUNTIME])
        return before

    def without_runtime(self, text: str, backups: Sequence[str]) -> str | None:
        """A backup's bytes where that has the same contents; None: remove the file, as there was
        none."""
        document = self._document(text)
        runtimes = self._runtimes(document)
        if RUNTIME not in runtimes:
            return text
        self._check(document, runtimes[RUNTIME])
        others = {name: entry for name, entry in runtimes.items() if name != RUNTIME}
        return self._removed(text, document, others, backups)

    def has_runtime(self, text: str) -> bool:
        """As any runtime."""
        entries = self._runtimes(self._document(text)).values()
        return any(self.launcher in self._paths(entry) for entry in entries)

    def notes(self, _text: str | None) -> list[str]:
        """What to know afterwards. text: before."""
        share = "-e ALIYUN_COM_GPU_MEM_CONTAINER=6 … gives a container its share"
        return [self.cost, f"{self.engine} run --runtime={RUNTIME} {share}"]

    def cost_of_removal(self, *, launcher_stays: bool) -> str:
        """To the containers that use it."""
        never = f"they cannot be started again ({self.starts or self.engine} start fails)"
        if launcher_stays:
            return (
                "they keep running with their limits and release their share at their end, because"
                f" the launcher stays for other engines; but those that {self.engine} created have"
                f" lost their runtime: {never}"
            )
        return (
            "they keep running with their limits, but their engine calls the launcher to enter,"
            " stop and remove them, which fails until a link to runc is put in its place; the hook"
            " that releases their share at their end is removed too, so mpsd up releases it only"
            f" when it notices that they have ended; and {never}"
        )

    def _document(self, text: str) -> _Document:
        try:
            return tomllib.loads(text)
        # ValueError: also numbers of thousands of digits
        except (ValueError, RecursionError) as error:
            raise self._refused("the file", "", f"is not TOML: {error}", self.repair) from None

    def _runtimes(self, document: _Document) -> _Document:
        keys = self._keys(document)
        table: Any = document
        for at, key in enumerate(keys, 1):
            table = table.get(key, {})
            if not isinstance(table, dict):
                where = ".".join(keys[:at])
                remedy = f"write {self.a_table}, or leave it out"
                raise self._refused(where, shown(table), f"is not {self.a_table}", remedy)
        return dict(table)

    def _paths(self, entry: Any) -> list[Any]:
        for key in self.inside:
            entry = _table(entry).get(key)
        return entry if isinstance(entry, list) else [entry]

    def _check(self, document: _Document, entry: object) -> None:
        paths = self._paths(entry)
        if paths != [self.launcher]:
            path: object = paths
            remedy = "take it out of the file"
            if len(paths) == 1:
                path = paths[0]
            if isinstance(path, str):
                remedy += f", or name it: --to {path}"
            where = ".".join((*self._keys(document), RUNTIME, *self.inside))
            raise self._refused(where, shown(path), f"is not the launcher {self.launcher}", remedy)

    def _refused(self, where: str, value: str, message: str, remedy: str) -> InvalidInput:
        return InvalidInput(self.subject, [Problem("engine-config", where, value, message, remedy)])


# -- docker: JSON, written anew in its order and indentation


class _Docker(Configuration):
    engine = Engine.DOCKER
    file = "/etc/docker/daemon.json"
    reload = "systemctl reload docker"  # it reads its runtimes at SIGHUP
    cost = (
        "docker reads its runtimes again when it is reloaded; running containers are not affected"
    )
    inside = ("path",)
    place = ("runtimes",)
    a_table = "an object"
    repair = "repair it first (`dockerd --validate` reports errors)"

    def _added(self, text: str, document: _Document, runtimes: _Document) -> str:
        entry = {RUNTIME: {"path": self.launcher}}
        return self._written(document | {"runtimes": runtimes | entry}, text)

    def _removed(
        self, text: str, document: _Document, others: _Document, backups: Sequence[str]
    ) -> str | None:
        kept = document | {"runtimes": others}
        bare = dict(kept)
        if not others:
            del bare["runtimes"]
        for backup in backups:
            with suppress(InvalidInput):
                if json.dumps(self._document(backup)) in map(json.dumps, (bare, kept)):
                    return backup
        return self._written(bare, text) if bare or backups else None

    def _document(self, text: str) -> _Document:
        if not text.strip():
            return {}
        where = "the file"
        try:
            document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise self._refused(where, "", f"is not JSON: {error.msg}", self.repair) from None
        except ValueError as error:
            raise self._refused(where, "", str(error), self.repair) from None
        except RecursionError:
            raise self._refused(where, "", "is nested too deep", self.repair) from None
        if not isinstance(document, dict):
            remedy = "write { } around its contents"
            raise self._refused(where, shown(document), "is not an object", remedy)
        return document

    def _written(self, document: _Document, like: str) -> str:
        """With the indentation and end of `like`, or as docker's own documents."""
        inner = like.strip()
        indent: str | None = "  "
        if found := re.match(r"\s*\{[^\S\n]*\r?\n([ \t]+)\S", like):
            indent = found[1]
        elif "\n" not in inner and inner not in {"", "{}"}:
            indent = None
        try:
            text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
            # half of a pair, which only an escape can write
            if any("\ud800" <= char <= "\udfff" for char in text):
                text = json.dumps(document, indent=indent)
        except ValueError:
            message = "has a number beyond all bounds"
            raise self._refused("the file", "", message, self.repair) from None
        return text + (like[len(like.rstrip()) :] if inner else "\n")


def _once(pairs: list[tuple[str, Any]]) -> _Document:
    document: _Document = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"has the key {shown(key)} twice in one object")
        document[key] = value
    return document


def _no_number(name: str) -> float:
    raise ValueError(f"has {name}, which is not a number in JSON")


# -- podman: a drop-in file of mpsd's own, written and removed as a whole


_OWN = f"engine.runtimes.{RUNTIME}"


class _Podman(Configuration):
    engine = Engine.PODMAN
    file = "/etc/containers/containers.conf.d/mpsd.conf"
    place = ("engine", "runtimes")
    cost = "podman reads its configuration whenever it is run: nothing needs a restart"
    repair = "remove it: it is mpsd's own"

    def _added(self, _text: str, document: _Document, _runtimes: _Document) -> str:
        if document:
            raise self._refused(_OWN, "", "is missing in mpsd's own file", "remove the file")
        head = "# Written by `mpsd install podman`; `mpsd uninstall podman` removes it."
        launcher = json.dumps(self.launcher, ensure_ascii=False)
        return f"{head}\n[engine.runtimes]\n{RUNTIME} = [{launcher}]\n"

    def _removed(
        self, _text: str, document: _Document, others: _Document, _backups: Sequence[str]
    ) -> None:
        if others or document.keys() != {"engine"} or document["engine"].keys() != {"runtimes"}:
            remedy = "move the other entries to a file of their own, or take the runtime out by"
            what = "is not the only entry in mpsd's own file"
            raise self._refused(_OWN, "", what, f"{remedy} hand")


# -- containerd: TOML
# Lines are added at its end and taken out again; the result is read back.

_DEFAULT = "runc"
_TYPE = "io.containerd.runc.v2"
_PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_HEAD = (
    "\n# Written by `mpsd install containerd`; `mpsd uninstall containerd` takes it out again.\n"
)
_END = "# End of what `mpsd install containerd` wrote.\n"


class _Containerd(Configuration):
    engine = Engine.CONTAINERD
    starts = "ctr task"
    file = "/etc/containerd/config.toml"
    reload = "systemctl restart containerd"
    cost = "containerd reads its configuration when it starts; running containers are not affected"
    inside = ("options", "BinaryName")
    new_file = "version = 2\n"  # what every containerd from 1.3 to 2 reads
    repair = "repair it first (`containerd config dump` reports errors)"

    def _keys(self, document: _Document) -> _Keys:
        version = document.get("version", 1)
        if type(version) is not int or version not in _PLUGINS:
            remedy = "use version 1, 2 or 3, or add the runtime by hand"
            raise self._refused("version", shown(version), "is not supported", remedy)
        return ("plugins", _PLUGINS[version], "containerd", "runtimes")

    def _added(self, text: str, document: _Document, runtimes: _Document) -> str:
        """Cgroups are made as for runc, which is named where no runtime is: the table replaces
        it."""
        keys = self._keys(document)
        options: _Document = {"BinaryName": self.launcher}
        if _table(_table(runtimes.get(_DEFAULT)).get("options")).get("SystemdCgroup") is True:
            options["SystemdCgroup"] = True
        table = f"{_header_of(keys)}.{RUNTIME}"
        block = f'[{table}]\n  runtime_type = "{_TYPE}"\n\n  [{table}.options]\n'
        for key, value in options.items():
            block += f"    {key} = {json.dumps(value, ensure_ascii=False)}\n"
        if not runtimes:
            block = _own_default(keys) + block
            runtimes = {_DEFAULT: {"runtime_type": _TYPE}}
        after = "".join((_ended(text), _HEAD, block, _END))
        entry = {RUNTIME: {"runtime_type": _TYPE, "options": options}}
        wanted = _replaced(document, keys, runtimes | entry)
        try:
            if _canonical(tomllib.loads(after)) == _canonical(wanted):
                return after
            message = "means something else with the runtime at its end"
        except tomllib.TOMLDecodeError as error:
            message = f"takes no further table at its end: {error}"
        remedy = f"write the parts of {'.'.join(keys)} as [tables], not as values in one line"
        raise self._refused(".".join(keys), "", message, remedy)

    def _removed(
        self, text: str, document: _Document, others: _Document, backups: Sequence[str]
    ) -> str | None:
        keys = self._keys(document)
        before, _head, rest = text.partition(_HEAD)
        block, _end, behind = rest.partition(_END)
        default = _own_default(keys)
        if not block.startswith(default):
            default = ""
        elif others == {_DEFAULT: {"runtime_type": _TYPE}}:
            default = ""  # else whoever came since may need it
            others = {}
        left = "".join((before, default, behind))
        wanted = _pruned(_replaced(document, keys, others), keys)
        is_gone = False
        with suppress(tomllib.TOMLDecodeError):
            is_gone = _canonical(_pruned(tomllib.loads(left), keys)) == _canonical(wanted)
        if not is_gone:
            where = ".".join((*keys, RUNTIME))
            remedy = "take it out of the file by hand"
            raise self._refused(where, "", "is not as `mpsd install containerd` wrote it", remedy)
        if not backups and left == self.new_file:
            return None
        # its last line had no end
        return next((backup for backup in backups if _ended(backup) == left), left)

    def notes(self, text: str | None) -> list[str]:
        document = {"version": 2} if text is None else self._document(text)
        found = [self.cost]
        if imports := document.get("imports"):
            found.append(
                f"imports is {shown(imports)}: a section of plugins in one of those files replaces"
                f" the one in {self.subject}; `containerd config dump` shows whether the runtime"
                f" {RUNTIME} is known"
            )
        if document.get("version", 1) == 1:
            found.append(f"{self.subject} is of version 1, which containerd 2 no longer reads")
        found.append(
            f"`ctr run --runc-binary {self.launcher}` and nerdctl's `--runtime {self.launcher}` do"
            " not need containerd's configuration"
        )
        return found


def _header_of(keys: _Keys) -> str:
    return ".".join(key if key.isidentifier() else json.dumps(key) for key in keys)


def _own_default(keys: _Keys) -> str:
    why = "# containerd's own runtime, which it forgets where another one is named"
    return f'{why}\n[{_header_of(keys)}.{_DEFAULT}]\n  runtime_type = "{_TYPE}"\n\n'


def _pruned(document: _Document, keys: _Keys) -> _Document:
    """Without the empty tables on the way of these keys."""
    if not keys or keys[0] not in document:
        return document
    pruned = dict(document)
    pruned[keys[0]] = _pruned(_table(document[keys[0]]), keys[1:])
    if not pruned[keys[0]]:
        del pruned[keys[0]]
    return pruned


def _replaced(document: _Document, keys: _Keys, value: _Document) -> _Document:
    if not keys:
        return value
    return {**document, keys[0]: _replaced(_table(document.get(keys[0])), keys[1:], value)}


def _table(value: object) -> _Document:
    return value if isinstance(value, dict) else {}


def _canonical(document: _Document) -> str:
    """The same for the same contents in another order; 1 is not true, and nan is nan."""
    return json.dumps(document, sort_keys=True, default=repr)


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


CONFIGURATIONS: Mapping[Engine, type[Configuration]] = {
    one.engine: one for one in (_Docker, _Containerd, _Podman)
}
