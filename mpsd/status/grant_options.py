"""What `mpsd smi`, `set` and `stop` share: the argument that names a grant's holder, its
completion, and who is meant."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from msgspec.structs import replace

from mpsd.containers.users import engine_names
from mpsd.grants.rules.messages import Refusal
from mpsd.model.node_report import GrantReport, NodeReport
from mpsd.model.problem import printable, shown
from mpsd.platform import local_api
from mpsd.platform.console import ExitCode, complaints, one_line
from mpsd.platform.settings import Settings, settings

_SHORT = 12  # characters of a container's id, as engines show it
_TAB_S = 1.0
_LONGEST = 200


def holders(given: Mapping[str, Any]) -> Iterable[str]:
    chosen = settings(run_directory=given.get("run_dir"))
    return words(named(_grants(chosen), chosen))


def programs(given: Mapping[str, Any]) -> Iterable[str]:
    grants = _grants(settings(run_directory=given.get("run_dir")))
    already = given.get("grants") or ()
    return [one.id for one in grants if not (one.container or one.pod or one.id in already)]


def _grants(chosen: Settings) -> Sequence[GrantReport]:
    _code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/node", timeout_s=_TAB_S)
    return local_api.read(body, NodeReport).grants or ()


def named(grants: Sequence[GrantReport], chosen: Settings) -> tuple[GrantReport, ...]:
    """The grants with the names that the engines give containers, where mpsd knows none."""
    found = []
    names = None  # before the engines are asked
    for one in grants:
        if one.container and not one.container_name:
            if names is None:
                names = engine_names(chosen.engines)
            found.append(replace(one, container_name=names.get(one.container, "")))
        else:
            found.append(one)
    return tuple(found)


def the_one(program: str, grants: Sequence[GrantReport], word: str) -> GrantReport:
    """Else it ends the program: 1 where there is none, 2 where there are several."""
    found = meant(grants, word)
    if len(found) != 1:
        code = ExitCode.MISUSE if found else ExitCode.NO
        give_up(f"{program}: {why_not_one(grants, found, word)}", code)
    return found[0]


def why_not_one(grants: Sequence[GrantReport], found: Sequence[GrantReport], word: str) -> str:
    names = ", ".join([printable(known_as(one), _LONGEST) for one in found or grants])
    if found:
        return f"{shown(word)} may be {names}; write more of the id"
    why = f"no container or program that holds a grant is {shown(word)}"
    if len(word) == _SHORT and not word.strip("0123456789abcdef"):
        why = f"{word} holds no grant: it has ended, if there was one"
    return f"{why}; there are: {names or 'none at all'}"


def give_up(message: str, code: int) -> NoReturn:
    complaints().print(message)
    sys.exit(code)


def give_up_refused(subject: str, body: bytes) -> NoReturn:
    """Ends the program with the reasons in a refusal. NotRunning."""
    refusal = local_api.read(body, Refusal)
    reasons = one_line("; ".join(refusal.reasons))
    give_up(f"{subject}: {reasons}", ExitCode.of_refusal(for_ever=refusal.for_ever))


def meant(grants: Iterable[GrantReport], word: str) -> tuple[GrantReport, ...]:
    """Those that the word may mean: a container's id or its beginning, its name, a pod, or a
    grant's id.

    A word in full comes before the beginning of one, and an id, also as engines show it, before a
    name, which whoever creates a container chooses. Several that match equally are all returned.
    """
    by_id, by_name, by_start = [], [], []
    for one in grants:
        ids = _ids(one)
        if word in [*ids, short_id(one)]:
            by_id.append(one)
        if word in _names(one):
            by_name.append(one)
        if word and (one.container.startswith(word) or one.id.startswith(word)):
            by_start.append(one)
    return tuple(by_id or by_name or by_start)


def _ids(one: GrantReport) -> list[str]:
    return [*filter(None, [one.container, one.id])]


def _names(one: GrantReport) -> list[str]:
    if one.pod:
        return [one.name, one.pod]
    return [*filter(None, [one.container_name])]


def words(grants: Iterable[GrantReport]) -> tuple[str, ...]:
    found = []
    for one in grants:
        found += [short_id(one), *_names(one)]
    return tuple(dict.fromkeys(found))


def short_id(one: GrantReport) -> str:
    """The container's id as engines show it; the grant's where no container holds it."""
    return (one.container or one.id)[:_SHORT]


def known_as(one: GrantReport) -> str:
    if one.pod:
        return one.pod
    name = one.container_name if one.container else one.command
    return f"{short_id(one)} ({name})" if name else short_id(one)
