"""`mpsd uninstall`: docker, containerd or podman do not know the runtime mpsd any more."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mpsd.containers import engine_files
from mpsd.containers import users as container_users
from mpsd.containers.engines import change as engine_change
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine, FileChange
from mpsd.containers.install import (
    Config,
    DryRun,
    EngineName,
    Places,
    Report,
    Root,
    To,
    complain,
    perform_and_say,
    say_refusal,
    say_users,
)
from mpsd.model.problem import InvalidInput
from mpsd.platform.console import ExitCode, Format, complaints
from mpsd.platform.options import OutputFormat, RunDirectory
from mpsd.platform.settings import SYSTEM_DIRECTORY, settings

Force = Annotated[bool, typer.Option("--force", help="Although containers use it: says what that costs them.")]


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
    places = Places(engine, to, config, root)
    try:
        report = _report(engine, places, run_dir, dry_run=dry_run)
        if report.users and report.changes_something:
            report = _with_users(report, force=force, output=output)
        perform_and_say(report, output)
    except (OSError, engine_files.ChangedMeanwhile) as error:
        complain("uninstall", engine, error)
        raise typer.Exit(ExitCode.NO) from None


def _report(engine: Engine, places: Places, run_dir: str | None, *, dry_run: bool) -> Report:
    found = places.find_config()
    subject = str(found.linked_from or found.path)
    kept = list(engine_files.backups(found.path).values())
    after = found.text
    if found.text is not None:
        after = engine_change.without_runtime(engine, found.text, subject, places.launcher, kept)
    change = engine_files.with_spare(FileChange(str(found.path), f"{engine}'s configuration", found.text, after))
    launcher = places.find_launcher()
    others = [other for other in Engine if other != engine and _names(other, places)]
    changes = [change, engine_change.launcher_removed(str(launcher.path), launcher.text, others)]
    to_do = engine_change.to_do(engine) if change.action != "keep" else []
    users = container_users.users(_socket(places, run_dir), places.root, places.launcher)
    return Report("uninstall", engine, changes, to_do, [], dry_run, users)


def _with_users(report: Report, *, force: bool, output: Format) -> Report:
    """Ends the program where they may keep it."""
    cost = engine_change.cost_of_going(report.engine, launcher_stays=report.changes[-1].action == "keep")
    if force:
        complaints().print(f"mpsd uninstall {report.engine}: --force, although these containers use mpsd: {cost}")
        say_users(report.users)
        return report
    count = len(report.users)
    refused = f"{count} container{' uses' if count == 1 else 's use'} mpsd"
    say_refusal(replace(report, refused=refused), f"stop and remove them first; or --force: {cost}", output)
    raise typer.Exit(ExitCode.NO)


def _socket(places: Places, run_dir: str | None) -> Path:
    chosen = settings(run_directory=run_dir)
    return places.here(str(SYSTEM_DIRECTORY / chosen.socket.name)) if chosen.by_default else chosen.socket


def _names(engine: Engine, places: Places) -> bool:
    """Whether another engine's configuration names the launcher, or cannot be read, and so may."""
    try:
        found = engine_files.find(places.here(CONFIGURATION[engine]), places.root)
    except (OSError, InvalidInput):
        return True
    return found.text is not None and engine_change.names_launcher(engine, found.text, str(found.path), places.launcher)
