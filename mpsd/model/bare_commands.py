"""A node's status for those who may see who uses what, and not what programs were started with.

One rule: arguments may hold a tenant's secret, and nobody can tell which do, so all of them go.
"""

import re
from dataclasses import replace
from typing import Any

from mpsd.model.node_status import ClientStatus, GrantStatus, NodeStatus, ViolationStatus, WaitingStatus

_PROGRAM = re.compile(r"[\w.:/+@~-]{1,200}")


def program_of(command: str) -> str:
    """A command without its arguments, which nobody can tell secrets from."""
    program, _space, arguments = command.strip().partition(" ")
    said = program if not program or (_PROGRAM.fullmatch(program) and "://" not in program) else "[redacted]"
    return f"{said} [arguments redacted]" if arguments else said


def without_arguments(status: NodeStatus) -> NodeStatus:
    """The same with every command cut to its program."""
    violations = status.violations
    if violations:
        violations = replace(violations, last=tuple(map(_violation, violations.last)))
    return replace(
        status,
        clients=None if status.clients is None else tuple(map(_bare, status.clients)),
        grants=tuple(map(_bare, status.grants)),
        waiting=tuple(map(_bare, status.waiting)),
        violations=violations,
    )


def _violation(one: ViolationStatus) -> ViolationStatus:
    bare = program_of(one.command)
    message = one.message.replace(one.command, bare) if one.command else one.message
    return replace(one, command=bare, message=message)


def _bare(one: Any) -> Any:
    assert isinstance(one, ClientStatus | GrantStatus | WaitingStatus)
    return replace(one, command=program_of(one.command))
