"""`mpsd install`: makes docker, containerd or podman know the runtime mpsd."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engine_files import writable_by_others
from mpsd.containers.engines import change
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine, FileChange
from mpsd.containers.engines.launcher import launcher
from mpsd.containers.users import ContainerUser
from mpsd.model.problem import InvalidInput, Problem, printable, shown
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.options import OutputFormat, RunDirectory
from mpsd.platform.settings import SYSTEM_DIRECTORY, settings

# What `mpsd install` and `mpsd uninstall` share: their options, and the paths that come of them.
#
# One rule: --root stands for /, so what is written into a file never begins with it.

_LONGEST = 4096
EngineName = Annotated[Engine, typer.Argument(metavar="ENGINE", help="docker, containerd or podman.")]
To = Annotated[str, typer.Option("--to", metavar="PATH", help="The launcher.")]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The engine's configuration: /etc/docker/daemon.json, /etc/containerd/config.toml or"
        " /etc/containers/containers.conf.d/mpsd.conf.",
        show_default=False,
    ),
]
Root = Annotated[str, typer.Option("--root", metavar="DIR", help="A folder that stands for /, such as an image's.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show every step and difference, and change nothing.")]


class Places:
    """The files of one engine below a root. launcher: as it is written into files."""

    def __init__(self, engine: Engine, to: str, config: str | None, root: str) -> None:
        """InvalidInput where a path cannot be used."""
        _check("--to", to)
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            message, remedy = "is no folder that is there", "make it, or name another"
            problem = Problem("setting", "--root", printable(root, _LONGEST), message, remedy)
            raise InvalidInput("settings", [problem])
        self.launcher = to
        self._config = config or CONFIGURATION[engine]
        if config:
            _check("--config", config)

    def find_launcher(self) -> engine_files.EngineFile:
        """InvalidInput where it is a link: another could be put behind it."""
        found = engine_files.find(self.here(self.launcher), self.root)
        if found.linked_from:
            message = f"is a link to {found.path}"
            problem = Problem("launcher-taken", "the file", "", message, "remove the link")
            raise InvalidInput(self.launcher, [problem])
        return found

    def find_config(self) -> engine_files.EngineFile:
        return engine_files.find(self.here(self._config), self.root)

    def here(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _check(option: str, path: str) -> None:
    if not path.startswith("/") or path.endswith("/") or ".." in path.split("/") or not path.isprintable():
        message = "is no path from / on"
        problem = Problem("setting", option, shown(path), message, f"write it whole, such as {LAUNCHER}")
        raise InvalidInput("settings", [problem])


# What `mpsd install` and `mpsd uninstall` say of what they do.
#
# One rule: one record holds it all, and text says the same as JSON.

_DONE = {"create": "written", "change": "changed", "remove": "removed", "keep": "is as it should be"}
_WOULD = {"create": "would be written", "change": "would be changed", "remove": "would be removed"}


@dataclass(frozen=True, slots=True)
class Report:
    """to_do: commands for afterwards. users: containers that use mpsd. refused: why nothing is done, empty where it
    is.
    """

    verb: str
    engine: Engine
    changes: Sequence[FileChange]
    to_do: Sequence[str]
    notes: Sequence[str]
    dry_run: bool
    users: Sequence[ContainerUser] = field(default=())
    refused: str = ""

    @property
    def changes_something(self) -> bool:
        return any(change.action != "keep" for change in self.changes)

    def record(self) -> dict[str, object]:
        return {
            "verb": self.verb,
            "engine": self.engine,
            "dry_run": self.dry_run,
            "changed": self.changes_something and not self.dry_run and not self.refused,
            "refused": self.refused,
            "users": [{"id": user.id, "name": user.name, "known_from": user.known_from} for user in self.users],
            "changes": [_change_record(change) for change in self.changes],
            "to_do": list(self.to_do) if self.changes_something else [],
            "notes": list(self.notes),
        }


def perform_and_say(report: Report, output: Format) -> None:
    """In this order: a change that fails is not said to be done. OSError, engine_files.ChangedMeanwhile."""
    for one in report.changes:
        if not report.dry_run:
            engine_files.perform(one)
        if output is Format.TEXT:
            _say_change(one, dry_run=report.dry_run)
    if output is Format.JSON:
        print_json(report.record())
        return
    if not report.changes_something:
        _say(f"nothing to change: {report.engine} is as `mpsd {report.verb} {report.engine}` leaves it")
        return
    for command in report.to_do:
        _say(f"now run: {command}")
    for note in report.notes:
        _say(f"note: {note}")


def say_refusal(report: Report, remedy: str, output: Format) -> None:
    if output is Format.JSON:
        print_json(report.record())
        return
    program = f"mpsd {report.verb} {report.engine}"
    complaints().print(f"{program}: refused: {report.refused}")
    say_users(report.users)
    complaints().print(one_line(remedy))


def say_users(users: Sequence[ContainerUser]) -> None:
    for user in users:
        complaints().print(one_line(f"  {user}: {user.known_from}"))


def _say_change(change: FileChange, *, dry_run: bool) -> None:
    done = (_WOULD | {"keep": _DONE["keep"]} if dry_run else _DONE)[change.action]
    kept = f"; as it was: {change.backup}" if change.backup else ""
    spare = f"; {change.spare} says the same now and is removed too" if change.spare else ""
    _say(f"{change.file} ({change.what}): {done}{kept}{spare}")
    if dry_run and (diff := change.diff()):
        for line in diff.rstrip("\n").split("\n"):
            _say(line)


def _change_record(change: FileChange) -> dict[str, object]:
    return {
        "file": change.file,
        "what": change.what,
        "action": change.action,
        "backup": change.backup,
        "spare": change.spare,
        "diff": change.diff(),
    }


def _say(sentence: str) -> None:
    answers().print(one_line(sentence.replace("\t", "    ")))


_LOG = "/var/log/mpsd/runtime.log"

Next = Annotated[
    str,
    typer.Option(
        "--next",
        metavar="PATH",
        help="The runtime behind it; else nvidia-container-runtime where it is there, else runc.",
        show_default=False,
    ),
]
Log = Annotated[str, typer.Option("--log", metavar="FILE", help="Where mpsd-runtime writes what it does.")]


def install(
    engine: EngineName,
    to: To = LAUNCHER,
    next_runtime: Next = "",
    log: Log = _LOG,
    config: Config = None,
    root: Root = "/",
    dry_run: DryRun = False,
    run_dir: RunDirectory = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Make docker, containerd or podman know the OCI runtime `mpsd`, which gives containers their share of a GPU.

    Writes the launcher /usr/local/bin/mpsd-runtime and the engine's configuration, in which everything else stays as it
    is; beside it is left what it was (.before-mpsd). It starts and stops nothing, and says what to run. Done twice it
    changes nothing. The way back is `mpsd uninstall ENGINE` (`kubectl mps uninstall` is another: it takes mpsd off a
    cluster). Exits with 0 when the engine's configuration has the runtime, 1 when a file cannot be written, 2 when one
    cannot be used as it is.

        mpsd install docker --dry-run
        mpsd install docker && systemctl reload docker
        mpsd install containerd --next /usr/bin/nvidia-container-runtime
        mpsd install podman -o json
    """
    places = Places(engine, to, config, root)
    try:
        launcher_now = places.find_launcher()
        found = places.find_config()
        text = _launcher_text(places, next_runtime, log, run_dir)
        subject = str(found.linked_from or found.path)
        after = change.with_runtime(engine, found.text, subject, places.launcher)
        changes = [
            change.launcher_written(str(launcher_now.path), launcher_now.text, text),
            engine_files.with_backup(FileChange(str(found.path), f"{engine}'s configuration", found.text, after)),
        ]
        notes = change.notes(engine, found.text, subject, places.launcher)
        if elsewhere := _options({"--to": to if to != LAUNCHER else None, "--config": config, "--run-dir": run_dir}):
            notes.append(f"to take it out again: mpsd uninstall {engine} {elsewhere}")
        if found.linked_from:
            notes.insert(0, f"{found.linked_from} is a link, and stays one: {found.path} is the file")
        is_heard = changes[-1].action != "keep"
        to_do = change.to_do(engine) if is_heard else []
        perform_and_say(Report("install", engine, changes, to_do, notes, dry_run), output)
    except (OSError, engine_files.ChangedMeanwhile) as error:
        complain("install", engine, error)
        raise typer.Exit(ExitCode.NO) from None


def _launcher_text(places: Places, next_runtime: str, log: str, run_dir: str | None) -> str:
    """InvalidInput where others than root could change what it runs."""
    python, folder = sys.executable, Path(mpsd.__file__).parents[1]
    unusable = [
        Problem("setting", option, shown(path), "is no path from / on", "write it whole")
        for option, path in (("--next", next_runtime), ("--log", log))
        if path and not path.startswith("/")
    ]
    problems = [
        *unusable,
        *writable_by_others("this python", Path(python)),
        *writable_by_others("its library", Path(os.__file__).parent),
        *writable_by_others("the package mpsd", Path(mpsd.__file__).parent, below=True),
        *writable_by_others("--to", _there(places.here(places.launcher))),
    ]
    if next_runtime and places.root == Path("/"):
        problems += writable_by_others("--next", Path(next_runtime))
    if problems:
        raise InvalidInput("mpsd install", problems)
    chosen = settings(run_directory=run_dir)
    run_directory = SYSTEM_DIRECTORY if chosen.by_default else chosen.run_directory
    try:
        return launcher(python, str(folder), str(run_directory), next_runtime, log)
    except ValueError as error:
        remedy = "install mpsd in a folder with a name of printable ASCII characters; --next too"
        problem = Problem("launcher-unsafe", "the launcher", shown(python), str(error), remedy)
        raise InvalidInput("mpsd install", [problem]) from None


def _options(given: Mapping[str, str | None]) -> str:
    return shlex.join(word for name, value in given.items() if value for word in (name, value))


def _there(path: Path) -> Path:
    """What is there already of the way to it."""
    return path if path.exists() else _there(path.parent)


def complain(verb: str, engine: Engine, error: Exception) -> None:
    remedy = "; be root for this" if isinstance(error, PermissionError) and os.geteuid() else ""
    why = str(error)
    if isinstance(error, OSError) and error.filename:
        why = f"{error.filename} cannot be used: {error.strerror}"
    complaints().print(f"mpsd {verb} {engine}: {why}{remedy}")
