"""What a shell offers at Tab.

bash, zsh and fish run `PROGRAM __complete WORDS…`; kubectl runs `kubectl_complete-mps WORDS…`. The
last word is the one that is begun.
"""

import io
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from typing import Any

from mpsd.platform.command_line import TAB, Command, Option, Program, choices_of, parser_of

Offer = tuple[str, str]  # a word, and a line about it or ""

_SCRIPTS = {
    "bash": """_NAME_offers() {
    local IFS=$'\\n'
    COMPREPLY=($(PROGRAM TAB "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _NAME_offers PROGRAM
""",
    "zsh": """#compdef PROGRAM
_NAME_offers() {
    local -a offers
    offers=("${(@f)$(PROGRAM TAB "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    offers=("${(@)offers//:/\\:}")
    offers=("${(@)offers/$'\t'/:}")
    if [[ -n $offers ]]; then _describe PROGRAM offers; else _files; fi
}
compdef _NAME_offers PROGRAM
""",
    "fish": """function _NAME_offers
    set -l words (commandline -opc) (commandline -ct)
    PROGRAM TAB $words[2..] 2>/dev/null
end
complete --command PROGRAM --arguments "(_NAME_offers)"
""",
}


def script(program: str, shell: str) -> str:
    text = _SCRIPTS[shell]
    name = program.replace("-", "_")
    return text.replace("PROGRAM", program).replace("NAME", name).replace("TAB", TAB)


# -- what may follow


def offered(program: Program, words: Sequence[str]) -> Iterator[str]:
    """The offers, one a line, with what each is behind a tab."""
    *before, begun = words or [""]
    offers: list[Offer] = []
    if program.may_name_verb(before):
        offers += [(verb.name, verb.line) for verb in program.verbs.values()]
    if not before and begun.startswith("-"):
        offers += _options(program.parser())
    name, *rest = program.arranged(before) or [""]
    if name in program.verbs:
        offers += after(program.load(name), rest, begun)
    return lines(offers, begun)


def lines(offers: Sequence[Offer], begun: str) -> Iterator[str]:
    for word, about in dict(offers).items():
        if word.startswith(begun):
            yield f"{word}\t{about}" if about else word


def after(command: Command, before: Sequence[str], begun: str) -> list[Offer]:
    """Nothing where that cannot be found out."""
    options: Sequence[Option] = vars(command)["options"]
    awaiting = [one for one in options if one.has_value and before and before[-1] in one.names]
    with suppress(Exception, SystemExit):  # whoever presses Tab is not to see a traceback
        with redirect_stderr(io.StringIO()):
            parser = parser_of("", command, for_tab=True)
            given = vars(parser.parse_known_intermixed_args(before[:-1] if awaiting else before)[0])
        if awaiting:
            return _values(awaiting[0], given)
        if begun.startswith("-"):
            return _options(parser)
        arguments = [one for one in options if one.is_argument]
        for one in arguments:
            if one.names[0] not in given or one is arguments[-1]:
                return _values(one, given)
    return []


def _values(one: Option, given: Mapping[str, Any]) -> list[Offer]:
    found = one.complete(given) if one.complete else choices_of(one)
    return [(word, "") for word in found]


def _options(parser: ArgumentParser) -> list[Offer]:
    actions = parser._actions  # argparse has no other way to list them
    return [(name, action.help or "") for action in actions for name in action.option_strings]
