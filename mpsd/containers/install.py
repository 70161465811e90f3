"""`mpsd install` and `mpsd uninstall`: add the runtime mpsd to docker, containerd or podman, and take it out again.

--root stands for /, so a path that is written into a file never begins with it. What is shown is what is done.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engine_files import writable_by_others
from mpsd.containers.engines import change
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine, FileChange
from mpsd.containers.engines.launcher import launcher
from mpsd.containers.users import ContainerUser, users
from mpsd.model.problem import InvalidInput, Problem, printable, shown
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.options import OutputFormat, RunDirectory
from mpsd.platform.settings import SYSTEM_DIRECTORY, settings

# -- options and paths -----------------------------------------------------------------------------------------------

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
Force = Annotated[bool, typer.Option("--force", help="Although containers use it: says what that costs them.")]


class _Places:
    """The files of one engine below a root. launcher: as it is written into files."""

    def __init__(self, engine: Engine, to: str, config: str | None, root: str) -> None:
        """InvalidInput where a path cannot be used."""
        _check("--to", to)
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            message, remedy = "is no existing folder", "make it, or name another"
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
        message = "is not an absolute path"
        problem = Problem("setting", option, shown(path), message, f"write it from / on, such as {LAUNCHER}")
        raise InvalidInput("settings", [problem])


# -- the report: text has the same contents as JSON --------------------------------------------------------------------

_DONE = {"create": "written", "change": "changed", "remove": "removed", "keep": "unchanged"}
_WOULD = {"create": "would be written", "change": "would be changed", "remove": "would be removed"}


@dataclass(frozen=True, slots=True)
class _Report:
    """What is done. to_do: commands for afterwards. users: containers that use mpsd. refused: why nothing is done,
    empty where something is."""

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
            "users": [asdict(user) for user in self.users],
            "changes": [
                {
                    "file": one.file,
                    "what": one.what,
                    "action": one.action,
                    "backup": one.backup,
                    "spare": one.spare,
                    "diff": one.diff(),
                }
                for one in self.changes
            ],
            "to_do": list(self.to_do) if self.changes_something else [],
            "notes": list(self.notes),
        }


def _perform(report: _Report, output: Format) -> None:
    """Makes the changes and reports each after it is made. OSError, engine_files.ChangedMeanwhile."""
    for one in report.changes:
        if not report.dry_run:
            engine_files.perform(one)
        if output is Format.TEXT:
            _print_change(one, dry_run=report.dry_run)
    if output is Format.JSON:
        print_json(report.record())
        return
    if not report.changes_something:
        _print(f"nothing to change: {report.engine} is already as `mpsd {report.verb} {report.engine}` leaves it")
        return
    for command in report.to_do:
        _print(f"now run: {command}")
    for note in report.notes:
        _print(f"note: {note}")


def _print_users(users: Sequence[ContainerUser]) -> None:
    for user in users:
        complaints().print(one_line(f"  {user}: {user.known_from}"))


def _print_change(change: FileChange, *, dry_run: bool) -> None:
    done = (_WOULD | {"keep": _DONE["keep"]} if dry_run else _DONE)[change.action]
    kept = f"; backup: {change.backup}" if change.backup else ""
    spare = f"; {change.spare} is now the same and is removed too" if change.spare else ""
    _print(f"{change.file} ({change.what}): {done}{kept}{spare}")
    if dry_run and (diff := change.diff()):
        for line in diff.rstrip("\n").split("\n"):
            _print(line)


def _print(sentence: str) -> None:
    answers().print(one_line(sentence.replace("\t", "    ")))


# -- the commands ------------------------------------------------------------------------------------------------------


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
    places = _Places(engine, to, config, root)
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
        to_do = change.to_do(engine) if changes[-1].action != "keep" else []
        _perform(_Report("install", engine, changes, to_do, notes, dry_run), output)
    except (OSError, engine_files.ChangedMeanwhile) as error:
        raise _failed("install", engine, error) from None


def _launcher_text(places: _Places, next_runtime: str, log: str, run_dir: str | None) -> str:
    """InvalidInput where others than root could change what it runs."""
    python, folder = sys.executable, Path(mpsd.__file__).parents[1]
    unusable = [
        Problem("setting", option, shown(path), "is not an absolute path", "write it from / on")
        for option, path in (("--next", next_runtime), ("--log", log))
        if path and not path.startswith("/")
    ]
    problems = [
        *unusable,
        *writable_by_others("this python", Path(python)),
        *writable_by_others("its library", Path(os.__file__).parent),
        *writable_by_others("the package mpsd", Path(mpsd.__file__).parent, below=True),
        *writable_by_others("--to", _existing(places.here(places.launcher))),
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


def _existing(path: Path) -> Path:
    """The longest part of the path that exists."""
    return path if path.exists() else _existing(path.parent)


def uninstall(
    engine: EngineName,
    to: To = LAUNCHER,
    config: Config = None,
    root: Root = "/",
    force: Force = False,
    dry_run: DryRun = False,
    run_dir: RunDirectory = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Take the runtime `mpsd` out of docker's, containerd's or podman's configuration. Refused while containers use it.

    Exactly what `mpsd install ENGINE` wrote is taken out again, and what others have written since stays; a file that
    says nothing else than before is the same again, byte for byte. The launcher goes when no other engine's
    configuration names it. Who uses it is asked of `mpsd up`, or, where that does not run, looked up in what the
    runtimes keep of their containers. To take mpsd off a cluster is another verb: `kubectl mps uninstall`. Exits with 0
    when the runtime is gone, 1 when containers use it or a file cannot be written, 2 when one cannot be used as it is.

        mpsd uninstall docker --dry-run
        mpsd uninstall docker && systemctl reload docker
        mpsd uninstall containerd --force
    """
    places = _Places(engine, to, config, root)
    try:
        report = _uninstall_report(engine, places, run_dir, dry_run=dry_run)
        if report.users and report.changes_something:
            _although_used(report, force=force, output=output)
        _perform(report, output)
    except (OSError, engine_files.ChangedMeanwhile) as error:
        raise _failed("uninstall", engine, error) from None


def _uninstall_report(engine: Engine, places: _Places, run_dir: str | None, *, dry_run: bool) -> _Report:
    found = places.find_config()
    subject = str(found.linked_from or found.path)
    kept = list(engine_files.backups(found.path).values())
    after = found.text
    if found.text is not None:
        after = change.without_runtime(engine, found.text, subject, places.launcher, kept)
    configuration = engine_files.with_spare(FileChange(str(found.path), f"{engine}'s configuration", found.text, after))
    launcher = places.find_launcher()
    others = [other for other in Engine if other != engine and _names(other, places)]
    changes = [configuration, change.launcher_removed(str(launcher.path), launcher.text, others)]
    to_do = change.to_do(engine) if configuration.action != "keep" else []
    using = users(_socket(places, run_dir), places.root, places.launcher)
    return _Report("uninstall", engine, changes, to_do, [], dry_run, using)


def _although_used(report: _Report, *, force: bool, output: Format) -> None:
    """Ends the program unless it is forced."""
    cost = change.cost_of_going(report.engine, launcher_stays=report.changes[-1].action == "keep")
    program = f"mpsd uninstall {report.engine}"
    if force:
        complaints().print(f"{program}: --force, although these containers use mpsd: {cost}")
        _print_users(report.users)
        return
    count = len(report.users)
    refused = f"{count} container{' uses' if count == 1 else 's use'} mpsd"
    if output is Format.JSON:
        print_json(replace(report, refused=refused).record())
    else:
        complaints().print(f"{program}: refused: {refused}")
        _print_users(report.users)
        complaints().print(one_line(f"stop and remove them first; or --force: {cost}"))
    raise typer.Exit(ExitCode.NO)


def _socket(places: _Places, run_dir: str | None) -> Path:
    chosen = settings(run_directory=run_dir)
    return places.here(str(SYSTEM_DIRECTORY / chosen.socket.name)) if chosen.by_default else chosen.socket


def _names(engine: Engine, places: _Places) -> bool:
    """Whether another engine's configuration names the launcher, or cannot be read, and so may."""
    try:
        found = engine_files.find(places.here(CONFIGURATION[engine]), places.root)
    except (OSError, InvalidInput):
        return True
    return found.text is not None and change.names_launcher(engine, found.text, str(found.path), places.launcher)


def _failed(verb: str, engine: Engine, error: Exception) -> typer.Exit:
    """Reports why a file could not be used; the exit to raise."""
    remedy = "; run it as root" if isinstance(error, PermissionError) and os.geteuid() else ""
    why = str(error)
    if isinstance(error, OSError) and error.filename:
        why = f"{error.filename} cannot be used: {error.strerror}"
    complaints().print(f"mpsd {verb} {engine}: {why}{remedy}")
    return typer.Exit(ExitCode.NO)
