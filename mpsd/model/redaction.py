"""A report for those who may see who uses what, and not what programs were started with."""

from typing import Any, TypeVar

from msgspec.structs import replace

from mpsd.model.node_report import (
    ClientReport,
    GrantReport,
    NodeReport,
    ViolationReport,
    WaitingReport,
)
from mpsd.model.problem import program_of

Started = TypeVar("Started", ClientReport, GrantReport, WaitingReport, ViolationReport)


def without_arguments(report: NodeReport) -> NodeReport:
    """Commands cut to their programs."""
    changed: dict[str, Any] = {"waiting": _bare(report.waiting)}
    if seen := report.violations:
        changed["violations"] = replace(seen, last=tuple(map(_bare_violation, seen.last)))
    if report.clients is not None:
        changed["clients"] = _bare(report.clients)
    if report.grants is not None:
        changed["grants"] = tuple(map(_bare_grant, report.grants))
    return replace(report, **changed)


def _bare(entries: tuple[Started, ...]) -> tuple[Started, ...]:
    return tuple([replace(one, command=program_of(one.command)) for one in entries])


def _bare_grant(grant: GrantReport) -> GrantReport:
    own = grant.violations
    if own and own.last:
        own = replace(own, last=_bare_violation(own.last))
    return replace(grant, command=program_of(grant.command), violations=own)


def _bare_violation(one: ViolationReport) -> ViolationReport:
    program = program_of(one.command)
    return replace(one, command=program, message=one.message.replace(one.command, program))
