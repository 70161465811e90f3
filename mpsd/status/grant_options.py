"""What `mpsd smi` and `mpsd set` share: the argument that names a container, its completion, and who is meant by it.

Completion asks with a short deadline, and has no way to complain.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

import typer

from mpsd.containers.rules.grant_change import CurrentGrant, known_as, meant, words
from mpsd.containers.users import engine_names
from mpsd.model.node_status import GrantStatus, NodeStatus
from mpsd.model.problem import printable, shown
from mpsd.platform import local_api
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.settings import Settings, settings
from mpsd.status.rules.use import GrantUse

One = TypeVar("One", bound=CurrentGrant)
Shown = TypeVar("Shown", GrantStatus, GrantUse)
_TAB_S = 1.0
_LONGEST = 200


def completed(ctx: typer.Context, incomplete: str) -> list[str]:
    """The containers and programs that hold a grant."""
    try:
        chosen = settings(run_directory=ctx.params.get("run_dir"))
        _code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/node", timeout_s=_TAB_S)
        grants = named(local_api.read(body, NodeStatus).grants, chosen)
        return [word for word in words(grants) if word.startswith(incomplete)]
    except Exception:  # whatever it is, a person who presses Tab is not to see a traceback
        return []


def named(grants: Sequence[Shown], chosen: Settings) -> tuple[Shown, ...]:
    """The grants with the names that the engines give containers, where mpsd knows none."""
    if not any(one.container and not one.container_name for one in grants):
        return tuple(grants)
    names = engine_names(chosen.engines)
    return tuple(
        replace(one, container_name=names[one.container]) if one.container in names and not one.container_name else one
        for one in grants
    )


def the_one(program: str, grants: Sequence[One], word: str) -> One:
    """The grant that is meant; else it ends the program: 1 where there is none, 2 where there are several."""
    found = meant(grants, word)
    if not found:
        there = ", ".join(_listed(grants)) or "none at all"
        give_up(
            f"{program}: no container or program that holds a grant is {shown(word)}; there are: {there}", ExitCode.NO
        )
    if len(found) > 1:
        several = ", ".join(_listed(found))
        give_up(f"{program}: {shown(word)} may be {several}; write more of the id", ExitCode.MISUSE)
    return found[0]


def _listed(grants: Iterable[CurrentGrant]) -> list[str]:
    return [printable(known_as(one), _LONGEST) for one in grants]


def give_up(message: str, code: int) -> NoReturn:
    complaints().print(message)
    sys.exit(code)
