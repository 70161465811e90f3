"""Takes secrets out of what others are to read: log lines, objects of the API, configuration files.

One rule: a value goes where its form or the name before it says that it is a secret; what neither says stays, so that
what is left can still be read. Whoever knows that a text is a command takes the arguments away, too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mpsd.core.redaction_markup import without_elements
from mpsd.core.redaction_options import password_words, without_passwords
from mpsd.core.redaction_prose import is_key, without_told
from mpsd.core.secret_names import GONE, TELLING, is_plain, looks_secret

_LONGEST_OPTION = 64
_DROPPED = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})

_COMMENT = re.compile(r"\s+#.*$")

_PEM = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10})-----.*?(?:-----END (?P=what)-----|\Z)", re.DOTALL
)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){1,4}")
_BEARER = re.compile(r"(?P<before>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
# What is written before the host goes, also where a password has slashes, which no port has.
_URL = re.compile(
    r"(?P<before>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)"
    r"(?:[^\s/?#\"'<>\\]+|[^\s/?#\"'<>\\:@\[]{1,200}:(?!\d{1,5}/)[^\s\"'<>\\@]{1,200})@"
)
# The whole of such a header: what stands after its scheme has as many forms as there are schemes.
_HEADER = re.compile(
    r"(?P<before>\b(?:authorization|cookie):[ \t]*)(?P<value>(?:[^\s\"'\\]|[ \t]|=\"[^\"\n]*\")+)", re.IGNORECASE
)
_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ANVA)[A-Z0-9]{12,}|LTAI[A-Za-z0-9]{12,}|gh[opsur]_[A-Za-z0-9]{20,}|"
    r"github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|hf_[A-Za-z0-9]{20,}|"
    r"sk-[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,}|nvapi-[A-Za-z0-9_-]{20,}|AKID[A-Za-z0-9]{20,}|AKLT[A-Za-z0-9]{20,}|"
    r"npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{20,}|dckr_pat_[A-Za-z0-9_-]{20,}|hvs\.[A-Za-z0-9_-]{20,})"
)
_QUOTE = r"(?:\\{0,3}[\"'])"
_IS = r"(?:=>|:=|[=:]{1,2}|%3[ad])"
_END = r"\s,;&\"'\\)\]}"  # what ends a value without quotes, unless more of it follows
# Up to a quote of its own kind, wherever others are inside; or without quotes.
_VALUE = (
    rf"(?P<value>[bru]{{0,2}}(?P<quote>{_QUOTE})(?:''|(?!(?<!\\)(?P=quote)).)*(?:(?P=quote)|$)|\[redacted\]|"
    rf"[^{_END}]+(?:[,;&)\]}}]++[^{_END}=:]++(?![=:]))*)"
)
# NAME=value, NAME: value, "NAME": "value" (also inside a JSON text). Other names are passed over, not matched with what
# stands after them: that may have a secret in it, as url=https://x/?token=y has.
# The value is looked at only: behind a name that is harmless after all, as in tokenname=token=x, is one that is not.
_NAMED = re.compile(
    rf"(?<![\w.-])(?=[\w.-]++{_QUOTE}?\]?\s{{0,40}}+[=:%])(?P<name>(?=[\w.-]*(?:{TELLING}))[\w.-]++)"
    rf"{_QUOTE}?\]?(?:\s{{0,4}}|[ \t]{{0,40}}){_IS}(?:[ \t]{{5,40}}|\s{{0,4}})(?={_QUOTE}|[^{_END}])",
    re.IGNORECASE,
)
_ITS_VALUE = re.compile(_VALUE, re.MULTILINE | re.IGNORECASE)
# name: NAME, value: value, as containers have them for their environment, in YAML, JSON and what Go prints.
_PAIR = re.compile(
    rf"(?<![\w.-])(?P<before>name{_QUOTE}?\s{{0,4}}[=:]\s{{0,4}}{_QUOTE}?(?P<name>[\w.-]++){_QUOTE}?(?:,\s{{0,40}}|\s{{1,40}})"
    rf"{_QUOTE}?value{_QUOTE}?\s{{0,4}}[=:]\s{{0,4}}){_VALUE}",
    re.MULTILINE | re.IGNORECASE,
)
# Of YAML: the lines below `NAME: |`, and all of a line, whatever words it has.
_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*(?:- )?)(?P<name>[\w.-]++):[ \t]*[|>][-+0-9]{0,2}[ \t]*\n"
    r"(?P<value>(?:(?P=indent)[ \t]+.*(?:\n|\Z)|[ \t]*\n)+)",
    re.MULTILINE,
)
_LINE = re.compile(r"^(?P<before>[ \t]*(?:- )?(?P<name>[\w.-]++):[ \t]+)(?P<value>[^\s\"'{\[|>].*)$", re.MULTILINE)
_OPTION = re.compile(
    rf"(?P<before>(?<![\w-])--?(?P<name>[A-Za-z][A-Za-z0-9_-]{{0,{_LONGEST_OPTION}}})(?:\s+|{_QUOTE},\s{{0,4}}))"
    rf"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',-][^\s\"',]*)"
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_SHORTEST_RUN = 20  # what is left of one without the UUIDs in it
_LEAST_SHARE = 0.1  # of upper and of lower case letters in what is random; words, paths and UUIDs have less of one


def redacted(text: str) -> str:
    """The text without the secrets in it."""
    for step in _STEPS:
        text = step(text)
    return text


def _without_named(text: str) -> str:
    kept: list[str] = []
    end = 0
    for found in _NAMED.finditer(text):
        if found.start() < end or not looks_secret(found["name"]):
            continue
        value = _ITS_VALUE.match(text, found.end())
        if value and not _is_plain(value):
            kept += [text[end : found.end()], _in_quotes(value)]
            end = value.end()
    return "".join([*kept, text[end:]])


def _pair(found: re.Match[str]) -> str:
    is_open = not looks_secret(found["name"]) or _is_plain(found)
    return found[0] if is_open else f"{found['before']}{_in_quotes(found)}"


def _is_plain(found: re.Match[str]) -> bool:
    """Without its quotes."""
    quote = found["quote"] or ""
    return is_plain(found["value"].removeprefix(quote).removesuffix(quote) if quote else found["value"])


def _in_quotes(found: re.Match[str]) -> str:
    quote = found["quote"] or ""
    return f"{quote}{GONE}{quote}"


def _block(found: re.Match[str]) -> str:
    """One line in place of many."""
    if not looks_secret(found["name"]):
        return found[0]
    end = "\n" if found["value"].endswith("\n") else ""
    return f"{found['indent']}{found['name']}: {GONE}{end}"


def _after(found: re.Match[str]) -> str:
    is_open = is_plain(_COMMENT.sub("", found["value"])) or not looks_secret(found["name"])
    return found[0] if is_open else f"{found['before']}{GONE}"


def _run(found: re.Match[str]) -> str:
    letters = _UUID.sub("", found[0])
    if len(letters) < _SHORTEST_RUN:
        return found[0]
    shares = [sum(map(test, letters)) / len(letters) for test in (str.isupper, str.islower)]
    return GONE if min(shares) >= _LEAST_SHARE else found[0]


def _scheme(found: re.Match[str]) -> str:
    """`basic` is a word, too."""
    is_word = found["before"].casefold().startswith("basic") and found["value"].isalpha() and found["value"].islower()
    return found[0] if is_word else f"{found['before']}{GONE}"


_STEPS: tuple[Callable[[str], str], ...] = (
    partial(_PEM.sub, GONE),
    without_elements,
    partial(_HEADER.sub, rf"\g<before>{GONE}"),
    partial(_BLOCK.sub, _block),
    partial(_LINE.sub, _after),
    partial(_URL.sub, rf"\g<before>{GONE}@"),
    partial(_BEARER.sub, _scheme),
    partial(_JWT.sub, GONE),
    partial(_KNOWN.sub, GONE),
    partial(_PAIR.sub, _pair),
    _without_named,
    without_told,
    without_passwords,  # after these, for an option without its value would take a name for it
    partial(_OPTION.sub, _after),
    partial(_RUN.sub, _run),
)


# -- values and commands ---------------------------------------------------------------------------------------------


def redacted_value(value: Any, *, name: str = "") -> Any:
    """A decoded JSON value without the secrets in it. name: under which it stands."""
    match value:
        case dict():
            return _mapping(value)
        case list() | tuple():
            return _words(value, name)
        case str():
            is_secret = looks_secret(name) and not is_plain(value)
            return GONE if is_secret or is_key(name, value) else redacted(value)
        case bool() | None:
            return value
        case int() | float():
            return GONE if name and looks_secret(name) else value
        case _:
            return redacted(str(value))


def _words(words: Sequence[Any], name: str) -> list[Any]:
    """Of a list, which may be a command."""
    secret = password_words(words)
    return [
        _without_password(inner) if place in secret else redacted_value(inner, name=_option_of(before) or name)
        for place, (before, inner) in enumerate(zip([None, *words], words, strict=False))
    ]


def _without_password(word: object) -> str:
    """The word that is a secret, or `-p` with the secret behind it."""
    return f"{word[:2]}{GONE}" if isinstance(word, str) and word.startswith("-") else GONE


def _option_of(word: object) -> str:
    """The option that the next word of a command is the value of, where that is a secret; else empty."""
    is_option = isinstance(word, str) and word.startswith("-") and "=" not in word
    return word if is_option and isinstance(word, str) and looks_secret(word) else ""


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    """A pair of name and value, as containers have them for their environment, is read as NAME=value."""
    said = value.get("name")
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key in _DROPPED:
            continue
        of_pair = key == "value" and isinstance(said, str)
        found[redacted(str(key))] = redacted_value(inner, name=said if of_pair and isinstance(said, str) else str(key))
    return found


def program_of(command: str) -> str:
    """A command without its arguments, which nobody can tell secrets from."""
    program, _space, arguments = command.strip().partition(" ")
    return f"{redacted(program)} [arguments redacted]" if arguments else redacted(program)


_COMMAND = re.compile(
    r"(?P<before>(?P<key>\"command\"\s{0,4}:\s{0,4}\"|\bcommand=['\"]))(?P<value>(?:[^\"'\\\n]|\\.)*)"
)


def log_redacted(text: str) -> str:
    """Lines of mpsd's own logs, in which `command` is what somebody else has started."""
    return redacted(_COMMAND.sub(lambda found: found["before"] + program_of(found["value"]), text))
