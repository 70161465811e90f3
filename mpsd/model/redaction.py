"""A report for those who may see who uses what, and not what programs were started with."""

from typing import TypeVar

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
    violations = report.violations
    if violations:
        violations = replace(
            violations, last=tuple([_bare_violation(one) for one in violations.last])
        )
    return replace(
        report,
        clients=None if report.clients is None else _bare(report.clients),
        grants=None
        if report.grants is None
        else tuple([_bare_grant(one) for one in report.grants]),
        waiting=_bare(report.waiting),
        violations=violations,
    )


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
