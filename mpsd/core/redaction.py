"""Takes secrets out of what others are to read: log lines, objects of the API, configuration files.

One rule: a value goes where its form or the name before it says that it is a secret; what neither says stays, so that
what is left can still be read. Whoever knows that a text is a command takes the arguments away, too.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

GONE = "[redacted]"
_LONGEST_OPTION = 64
_DROPPED = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})

# A name says so by a word in it, unless its end says that it only names where the secret is, or counts.
_TELLING = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|signing[_-]?key|credential|"
    r"cookie|session[_-]?(?:id|key)|authorization|key-data|certificate-data|authority-data|auth[_-]?key|dsn|webhook[_-]?url"
)
_HARMLESS_END = r"(?:name|names|file|path|dir|directory|ref|type|count|total|reviews?|seconds|projection|expiration)$"
_IS_SECRET = re.compile(_TELLING, re.IGNORECASE)
_IS_HARMLESS = re.compile(_HARMLESS_END, re.IGNORECASE)
_PLAIN = frozenset({"", "true", "false", "null", "none", "nil", "{", "[", "|", ">", GONE.casefold()})

_PEM = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10})-----.*?(?:-----END (?P=what)-----|\Z)", re.DOTALL
)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){1,4}")
_BEARER = re.compile(r"(?P<before>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_URL = re.compile(r"(?P<before>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/?#\"'<>\\]+@")
_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ANVA)[A-Z0-9]{12,}|LTAI[A-Za-z0-9]{12,}|gh[opsur]_[A-Za-z0-9]{20,}|"
    r"github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|hf_[A-Za-z0-9]{20,}|"
    r"sk-[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,}|nvapi-[A-Za-z0-9_-]{20,})"
)
_QUOTE = r"(?:\\{0,3}[\"'])"
# NAME=value, NAME: value, "NAME": "value" (also inside a JSON text), --name value, {name: NAME, value: value}.
_NAMED = re.compile(
    rf"(?<![\w.-])(?P<name>[\w.-]++)(?P<middle>{_QUOTE}?\s{{0,4}}[=:]\s{{0,4}})"
    rf"(?P<value>(?P<quote>{_QUOTE})(?:(?!(?P=quote)).)*(?:(?P=quote)|$)|\[redacted\]|[^\s,;&\"'\\)\]}}]+)",
    re.MULTILINE,
)
_OPTION = re.compile(
    rf"(?P<before>(?<!\S)--?(?P<name>[A-Za-z][A-Za-z0-9_-]{{0,{_LONGEST_OPTION}}})\s+)(?P<value>[^\s\"',-][^\s\"',]*)"
)
_RUN = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_LEAST_SHARE = 0.1  # of upper and of lower case letters in what is random; words, paths and UUIDs have less of one


def looks_secret(name: str) -> bool:
    """Whether what has this name is a secret."""
    return bool(_IS_SECRET.search(name)) and not _IS_HARMLESS.search(name)


def redacted(text: str) -> str:
    """The text without the secrets in it."""
    for pattern, replace in _STEPS:
        text = pattern.sub(replace, text)
    return text


def _named(found: re.Match[str]) -> str:
    quote = found["quote"] or ""
    value = found["value"].removeprefix(quote).removesuffix(quote) if quote else found["value"]
    if not looks_secret(found["name"]) or value.strip().casefold() in _PLAIN:
        return found[0]
    return f"{found['name']}{found['middle']}{quote}{GONE}{quote}"


def _option(found: re.Match[str]) -> str:
    return f"{found['before']}{GONE}" if looks_secret(found["name"]) else found[0]


def _run(found: re.Match[str]) -> str:
    letters = found[0]
    shares = [sum(map(test, letters)) / len(letters) for test in (str.isupper, str.islower)]
    return GONE if min(shares) >= _LEAST_SHARE else letters


def _scheme(found: re.Match[str]) -> str:
    """`basic` is a word, too."""
    is_word = found["before"].casefold().startswith("basic") and found["value"].isalpha() and found["value"].islower()
    return found[0] if is_word else f"{found['before']}{GONE}"


_Replace = str | Callable[[re.Match[str]], str]
_STEPS: tuple[tuple[re.Pattern[str], _Replace], ...] = (
    (_PEM, GONE),
    (_URL, rf"\g<before>{GONE}@"),
    (_BEARER, _scheme),
    (_JWT, GONE),
    (_KNOWN, GONE),
    (_NAMED, _named),
    (_OPTION, _option),
    (_RUN, _run),
)


# -- values and commands ---------------------------------------------------------------------------------------------


def redacted_value(value: Any, *, name: str = "") -> Any:
    """A decoded JSON value without the secrets in it. name: under which it stands."""
    match value:
        case dict():
            return _mapping(value)
        case list() | tuple():
            before = [None, *value]
            return [
                redacted_value(inner, name=_option_of(one) or name) for one, inner in zip(before, value, strict=False)
            ]
        case str():
            is_plain = value.casefold() in _PLAIN
            return GONE if name and looks_secret(name) and not is_plain else redacted(value)
        case bool() | None:
            return value
        case int() | float():
            return GONE if name and looks_secret(name) else value
        case _:
            return redacted(str(value))


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
