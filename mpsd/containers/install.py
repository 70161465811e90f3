"""`mpsd install` and `mpsd uninstall`: the runtime mpsd in docker's, containerd's or podman's
files. --root stands for /, so no path written into a file begins with it."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engine_files import EngineFile, FileChange, writable_by_others
from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Engine
from mpsd.containers.engines.launcher import launcher
from mpsd.containers.users import ContainerUser, users
from mpsd.model.problem import InvalidInput, Problem, printable, shown
from mpsd.platform.command_line import OUTPUT, RUN_DIR, OneOf, flag, option, takes
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.run_directory import have_others_reach_what_they_need
from mpsd.platform.settings import SYSTEM_DIRECTORY, settings

# -- options and paths

_CALLS = "from mpsd.runtime.main import main"  # what every launcher of any version does
_ENGINE = option(
    "engine", type=OneOf(Engine), metavar="ENGINE", help="docker, containerd or podman."
)
_TO = option("--to", metavar="PATH", help="The launcher.")
_CONFIG = option(
    "--config",
    metavar="FILE",
    help=(
        "The engine's configuration: /etc/docker/daemon.json, /etc/containerd/config.toml or "
        "/etc/containers/containers.conf.d/mpsd.conf."
    ),
)
_ROOT = option("--root", metavar="DIR", help="A folder that stands for /, such as an image's.")
_DRY_RUN = flag("--dry-run", help="Show every step and difference, and change nothing.")


class _Installation:
    """OSError, InvalidInput."""

    def __init__(self, engine: Engine, launcher: str, config: str | None, root: str) -> None:
        for flag_name, path in (("--to", launcher), ("--config", config)):
            if path is not None and not _is_plain(path):
                remedy = f"write it from / on, such as {LAUNCHER}"
                raise _wrong(flag_name, shown(path), "is not an absolute path", remedy)
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            folder = printable(root, 4096)
            raise _wrong("--root", folder, "is not an existing folder", "make it, or name another")
        self.engine = engine
        self.launcher = launcher
        self.launcher_file = self._find(launcher)
        if self.launcher_file.linked_from:  # another could be put behind it
            raise self._taken(f"is a link to {self.launcher_file.path}", "remove the link")
        before = self.launcher_file.text
        if before is not None and not (before.startswith("#!") and _CALLS in before):
            remedy = "move it away, or write the launcher to another place: --to PATH"
            raise self._taken("is not a launcher of mpsd", remedy)
        self.file = self._find(config or CONFIGURATIONS[engine].file)
        self.subject = str(self.file.linked_from or self.file.path)
        self.configuration = CONFIGURATIONS[engine](self.subject, launcher)

    def engines_beside(self) -> list[Engine]:
        """Those that name the launcher, or cannot be read."""
        return [other for other in Engine if other != self.engine and self._is_named_by(other)]

    def here(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _is_named_by(self, engine: Engine) -> bool:
        configuration = CONFIGURATIONS[engine](engine, self.launcher)
        try:
            text = self._find(configuration.file).text
            return text is not None and configuration.has_runtime(text)
        except (OSError, InvalidInput):
            return True

    def _find(self, path: str) -> EngineFile:
        return engine_files.find(self.here(path), self.root)

    def _taken(self, message: str, remedy: str) -> InvalidInput:
        file = str(self.here(self.launcher))
        return InvalidInput.of(file, "launcher-taken", "the file", "", message, remedy)


def _is_plain(path: str) -> bool:
    steps = path.split("/")
    return not steps[0] and bool(steps[-1]) and ".." not in steps and path.isprintable()


def _wrong(flag_name: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput.of("settings", "setting", flag_name, value, message, remedy)


# -- the report: text has the same contents as JSON

_DONE = {"create": "written", "change": "changed", "remove": "removed", "keep": "unchanged"}


@dataclass(frozen=True, slots=True)
class _Report:
    """to_do: commands for afterwards. users: containers that use mpsd. refused: why, or empty."""

    verb: str
    engine: Engine
    changes: Sequence[FileChange]
    to_do: Sequence[str]
    notes: Sequence[str]
    dry_run: bool
    users: Sequence[ContainerUser] = ()
    refused: str = ""

    @property
    def changes_something(self) -> bool:
        return any(change.action != "keep" for change in self.changes)

    def record(self) -> dict[str, object]:
        changes = []
        for one in self.changes:
            change = {"file": one.file, "what": one.what, "action": one.action}
            changes.append(change | {"backup": one.backup, "spare": one.spare, "diff": one.diff()})
        return {
            "verb": self.verb,
            "engine": self.engine,
            "dry_run": self.dry_run,
            "changed": self.changes_something and not self.dry_run and not self.refused,
            "refused": self.refused,
            "users": [asdict(user) for user in self.users],
            "changes": changes,
            "to_do": list(self.to_do) if self.changes_something else [],
            "notes": list(self.notes),
        }


def _perform(report: _Report, output: Format) -> None:
    """OSError, engine_files.ChangedMeanwhile."""
    have_others_reach_what_they_need()  # users' containers run the launcher
    for one in report.changes:
        if not report.dry_run:
            engine_files.perform(one)
        if output is Format.TEXT:
            _print_change(one, dry_run=report.dry_run)
    if output is Format.JSON:
        print_json(report.record())
    elif report.changes_something:
        for command in report.to_do:
            _print(f"now run: {command}")
        for note in report.notes:
            _print(f"note: {note}")
    else:
        engine = report.engine
        _print(f"nothing to change: {engine} is already as `mpsd {report.verb} {engine}` leaves it")


def _print_change(change: FileChange, *, dry_run: bool) -> None:
    done = _DONE[change.action]
    if dry_run and change.action != "keep":
        done = f"would be {done}"
    if change.backup:
        done += f"; backup: {change.backup}"
    if change.spare:
        done += f"; {change.spare} is now the same and is removed too"
    _print(f"{change.file} ({change.what}): {done}")
    if dry_run and (diff := change.diff()):
        for line in diff.rstrip("\n").split("\n"):
            _print(line)


def _print(sentence: str) -> None:
    answers().print(one_line(sentence.replace("\t", "    ")))


# -- the commands


@takes(
    _ENGINE,
    _TO,
    option(
        "--next",
        dest="next_runtime",
        metavar="PATH",
        help=(
            "The runtime that creates the containers; nvidia-container-runtime if it is installed,"
            " else runc."
        ),
    ),
    option("--log", metavar="FILE", help="Where mpsd-runtime writes what it does."),
    _CONFIG,
    _ROOT,
    _DRY_RUN,
    RUN_DIR,
    OUTPUT,
)
def install(
    *,
    engine: Engine,
    to: str = LAUNCHER,
    next_runtime: str = "",
    log: str = "/var/log/mpsd/runtime.log",
    config: str | None = None,
    root: str = "/",
    dry_run: bool = False,
    run_dir: str | None = None,
    output: Format = Format.TEXT,
) -> None:
    """Register the OCI runtime `mpsd` with docker, containerd or podman. It gives containers their
    share of a GPU.

    It writes the launcher /usr/local/bin/mpsd-runtime, and adds the runtime to the engine's
    configuration. The rest of the configuration is unchanged, and the old file is kept beside it
    (.before-mpsd). It starts and stops nothing: it prints the command that makes the engine read
    its configuration again. A second run changes nothing. `mpsd uninstall ENGINE` reverses it
    (`kubectl mps uninstall` removes mpsd from a cluster). Exits with 0 when the engine's
    configuration has the runtime, 1 when a file cannot be written, 2 when one cannot be used as it
    is.

        mpsd install docker --dry-run
        mpsd install docker && systemctl reload docker
        mpsd install containerd --next /usr/bin/nvidia-container-runtime
        mpsd install podman -o json
    """
    with _explained("install", engine):
        here = _Installation(engine, to, config, root)
        launcher_text = _launcher_text(here, next_runtime, log, run_dir)
        after = here.configuration.with_runtime(here.file.text)
        changes = [
            here.launcher_file.changed("the launcher", launcher_text, 0o755),
            engine_files.with_backup(here.file.changed(f"{engine}'s configuration", after)),
        ]
        notes = here.configuration.notes(here.file.text)
        words = []
        if to != LAUNCHER:
            words += ["--to", to]
        for name, value in (("--config", config), ("--run-dir", run_dir)):
            if value:
                words += [name, value]
        if words:
            notes.append(f"to take it out again: mpsd uninstall {engine} {shlex.join(words)}")
        if link := here.file.linked_from:
            notes.insert(0, f"{link} is a link, and stays one: {here.file.path} is the file")
        to_do = _to_do(here, changes[1])
        _perform(_Report("install", engine, changes, to_do, notes, dry_run), output)


def _launcher_text(here: _Installation, next_runtime: str, log: str, run_dir: str | None) -> str:
    """InvalidInput where others than root could change what it runs."""
    python = sys.executable
    folder = Path(mpsd.__file__).parents[1]
    problems = [
        Problem("setting", option, shown(path), "is not an absolute path", "write it from / on")
        for option, path in (("--next", next_runtime), ("--log", log))
        if path and not path.startswith("/")
    ]
    to = here.here(here.launcher)
    while not to.exists():
        to = to.parent
    problems += [
        *writable_by_others("this python", Path(python)),
        *writable_by_others("its library", Path(os.__file__).parent),
        *writable_by_others("the package mpsd", Path(mpsd.__file__).parent, below=True),
        *writable_by_others("--to", to),
    ]
    if next_runtime and here.root == Path("/"):
        problems += writable_by_others("--next", Path(next_runtime))
    if problems:
        raise InvalidInput("mpsd install", problems)
    chosen = settings(run_directory=run_dir)
    run_directory = SYSTEM_DIRECTORY if chosen.by_default else chosen.run_directory
    try:
        return launcher(python, str(folder), str(run_directory), next_runtime, log)
    except ValueError as error:
        remedy = "install mpsd in a folder with a name of printable ASCII characters; --next too"
        found = ("launcher-unsafe", "the launcher", shown(python), str(error), remedy)
        raise InvalidInput.of("mpsd install", *found) from None


def _to_do(here: _Installation, configuration: FileChange) -> list[str]:
    reload = here.configuration.reload
    return [reload] if reload and configuration.action != "keep" else []


@takes(
    _ENGINE,
    _TO,
    _CONFIG,
    _ROOT,
    flag("--force", help="Remove it although containers use it; print what they lose."),
    _DRY_RUN,
    RUN_DIR,
    OUTPUT,
)
def uninstall(
    *,
    engine: Engine,
    to: str = LAUNCHER,
    config: str | None = None,
    root: str = "/",
    force: bool = False,
    dry_run: bool = False,
    run_dir: str | None = None,
    output: Format = Format.TEXT,
) -> None:
    """Remove the runtime `mpsd` from docker's, containerd's or podman's configuration. Refused
    while containers use it.

    It removes exactly what `mpsd install ENGINE` wrote, and keeps what others have written since.
    If nobody has written anything since, the file is the same as before, byte for byte. The
    launcher is removed when no other engine's configuration names it. `mpsd up` is asked which
    containers use the runtime; if it is not running, the state that the runtimes keep of their
    containers is read. `kubectl mps uninstall` removes mpsd from a cluster. Exits with 0 when the
    runtime is removed, 1 when containers use it or a file cannot be written, 2 when one cannot be
    used as it is.

        mpsd uninstall docker --dry-run
        mpsd uninstall docker && systemctl reload docker
        mpsd uninstall containerd --force
    """
    with _explained("uninstall", engine):
        here = _Installation(engine, to, config, root)
        report = _uninstall_report(here, run_dir, dry_run=dry_run)
        if report.users and report.changes_something:
            stays = report.changes[1].action == "keep"
            cost = here.configuration.cost_of_removal(launcher_stays=stays)
            _warn_of_users(report, cost, force=force, output=output)
        _perform(report, output)


def _uninstall_report(here: _Installation, run_dir: str | None, *, dry_run: bool) -> _Report:
    after = here.file.text
    if after is not None:
        backups = list(engine_files.backups(here.file.path).values())
        after = here.configuration.without_runtime(after, backups)
    change = here.file.changed(f"{here.engine}'s configuration", after)
    configuration = engine_files.with_spare(change)
    launcher_change = here.launcher_file.changed("the launcher", None)
    if others := here.engines_beside():
        need = "needs" if len(others) == 1 else "need"
        what = f"the launcher, which {' and '.join(others)} {need}"
        launcher_change = here.launcher_file.changed(what, here.launcher_file.text)
    chosen = settings(run_directory=run_dir)
    socket = chosen.socket
    if chosen.by_default:
        socket = here.here(str(SYSTEM_DIRECTORY / chosen.socket.name))
    using = users(socket, here.root, here.launcher)
    changes = [configuration, launcher_change]
    to_do = _to_do(here, configuration)
    return _Report("uninstall", here.engine, changes, to_do, [], dry_run, using)


def _warn_of_users(report: _Report, cost: str, *, force: bool, output: Format) -> None:
    """Ends the program unless it is forced."""
    program = f"mpsd uninstall {report.engine}"
    count = len(report.users)
    refused = f"{count} container{' uses' if count == 1 else 's use'} mpsd"
    if output is Format.JSON and not force:
        print_json(replace(report, refused=refused).record())
        sys.exit(ExitCode.NO)
    what = f"refused: {refused}"
    if force:
        what = f"--force, although these containers use mpsd: {cost}"
    complaints().print(f"{program}: {what}")
    for user in report.users:
        complaints().print(one_line(f"  {user}: {user.known_from}"))
    if not force:
        complaints().print(one_line(f"stop and remove them first; or --force: {cost}"))
        sys.exit(ExitCode.NO)


@contextmanager
def _explained(verb: str, engine: Engine) -> Iterator[None]:
    try:
        yield
    except (OSError, engine_files.ChangedMeanwhile) as error:
        why = str(error)
        if isinstance(error, OSError) and error.filename:
            why = f"{error.filename} cannot be used: {error.strerror}"
        if isinstance(error, PermissionError) and os.geteuid():
            why += "; run it as root"
        complaints().print(f"mpsd {verb} {engine}: {why}")
        sys.exit(ExitCode.NO)
