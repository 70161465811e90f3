"""`mpsd install`: makes docker, containerd or podman know the runtime mpsd."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engine_options import Config, DryRun, EngineName, Places, Root, To
from mpsd.containers.engine_report import Report, perform_and_say
from mpsd.containers.engines import change
from mpsd.containers.engines.change import LAUNCHER, Change, Engine
from mpsd.containers.engines.launcher import launcher
from mpsd.containers.root_only import writable_by_others
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.platform.options import RunDirectory
from mpsd.platform.output import ExitCode, Format, OutputFormat, complaints
from mpsd.platform.settings import SYSTEM_DIRECTORY, settings

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
            engine_files.with_backup(Change(str(found.path), f"{engine}'s configuration", found.text, after)),
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
