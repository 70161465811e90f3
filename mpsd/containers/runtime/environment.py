"""A process's environment as OCI writes it: a list of `NAME=VALUE`.

One rule: of a variable that is set twice, libc reads the first and others the last; so one that decides is set once.
"""

from mpsd.containers.dialects.dialect_names import ASKING, OOM_SCRIPT, VARIABLES
from mpsd.containers.runtime.refused import Refused, shown


def name_of(entry: str) -> str:
    return entry.partition("=")[0]


def asks(entries: list[str]) -> bool:
    """Whether one of the variables is set that may ask for a share."""
    return any(name_of(entry) in ASKING for entry in entries)


def dialect(entries: list[str]) -> tuple[str, dict[str, str]]:
    """The script to call when memory is out, and everything that says what is asked. Refused, with all problems."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or name not in (*VARIABLES, OOM_SCRIPT):
            continue
        if found.setdefault(name, value) != value:
            problems.append(f"the variable {name} is set to {shown(found[name])} and to {shown(value)}; set it once")
        if not _is_text(value):
            problems.append(f"the variable {name} is {shown(value)}, which is no text; write UTF-8")
    if problems:
        raise Refused(*problems)
    return found.pop(OOM_SCRIPT, ""), found


def replaced(entries: list[str], variables: dict[str, str]) -> list[str]:
    """The entries, all that had one of these names taken out, and the variables behind them."""
    kept = [entry for entry in entries if name_of(entry) not in variables]
    return [*kept, *(f"{name}={value}" for name, value in variables.items())]


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
