"""What `mpsd install` and `mpsd uninstall` say of what they do.

One rule: one record holds it all, and text says the same as JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpsd.containers import engine_files
from mpsd.containers.engines.change import Change, Engine
from mpsd.containers.runtime_users import ContainerUser
from mpsd.platform.output import Format, answers, complaints, one_line, print_json

_DONE = {"create": "written", "change": "changed", "remove": "removed", "keep": "is as it should be"}
_WOULD = {"create": "would be written", "change": "would be changed", "remove": "would be removed"}


@dataclass(frozen=True, slots=True)
class Report:
    """to_do: commands for afterwards. users: containers that use mpsd. refused: why nothing is done, empty where it
    is.
    """

    verb: str
    engine: Engine
    changes: Sequence[Change]
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
    for change in report.changes:
        if not report.dry_run:
            engine_files.perform(change)
        if output is Format.TEXT:
            _say_change(change, dry_run=report.dry_run)
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


def _say_change(change: Change, *, dry_run: bool) -> None:
    done = (_WOULD | {"keep": _DONE["keep"]} if dry_run else _DONE)[change.action]
    kept = f"; as it was: {change.backup}" if change.backup else ""
    spare = f"; {change.spare} says the same now and is removed too" if change.spare else ""
    _say(f"{change.file} ({change.what}): {done}{kept}{spare}")
    if dry_run and (diff := change.diff()):
        for line in diff.rstrip("\n").split("\n"):
            _say(line)


def _change_record(change: Change) -> dict[str, object]:
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
