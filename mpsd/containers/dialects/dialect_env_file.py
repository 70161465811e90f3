"""What docker makes of `--env-file` and of `-e KEY=VALUE`: the environment of a container.

One rule: a value is taken as it stands, quotes and blanks and all, because docker does so.
"""

from collections.abc import Collection, Iterable

from mpsd.model.problem import InvalidInput, Problem, shown

_REMEDY = "write KEY=VALUE"


def environment_in(lines: Iterable[str], subject: str, needed: Collection[str]) -> dict[str, str]:
    """The variables in the lines of a file; InvalidInput names `subject`.

    A name without a value is the shell's, which is not known here: wrong for those that are `needed`.
    """
    found, problems = {}, []
    for number, written in enumerate(lines, 1):
        line = written.lstrip().removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key or any(char.isspace() for char in key):
            message = "has no name before its =" if not key else "has a blank in its name"
            problems.append(Problem("line-malformed", f"line {number}", shown(line), message, _REMEDY))
        elif equals:
            found[key] = value
        elif key in needed:
            message = "has no value here: docker takes it from the shell"
            problems.append(Problem("value-unknown", f"line {number}", shown(key), message, _REMEDY))
    if problems:
        raise InvalidInput(subject, problems)
    return found
