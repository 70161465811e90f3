"""Takes secrets out of sentences: `password hunter2`, `the token for bob is x9Kd`, `key -> 9f86d081884c7d65`.

One rule: after a word that tells, only what no word of a language looks like goes: with a digit or a sign in it, or
capitals inside. So `password authentication failed` stays, and so does a password of small letters alone.
"""

import re

from mpsd.core.secret_names import GONE

_LONGEST = 512  # of what stands in quotes
# `key` and the like name much else, so that only a long run of letters and digits goes after them.
_WEAKLY = r"(?:[a-z]{1,20}[ _-])?(?:key|salt|seed|nonce|hmac|psk|otp|session|sid|jsessionid|ticket)"
_WEAK = re.compile(_WEAKLY, re.IGNORECASE)
_NAME = re.compile(
    r"(?<![\w.-])(?:"
    r"(?P<telling>(?-i:(?:[A-Z0-9]{1,32}_){0,4})"  # of a variable: `DB_PASSWORD is x7`, `ENV WANDB_API_KEY 0f1e`
    r"(?:pass(?:words?|wd|phrase|code)|pwd|tokens?|identified[ \t]{1,4}by|"
    r"(?:api|access|auth|encryption|license|master|private|secret|shared|signing|ssh|session)[ _-]?key))|"
    r"(?P<object>secrets?|credentials?)|"
    rf"(?P<weak>{_WEAKLY})"
    r")(?![\w.-])"
    r"(?=(?P<link>[\"']?"  # looked at only, for the next name may be in it
    r"(?:[ \t]{1,4}(?:for|of)(?:[ \t]{1,4}user)?[ \t]{1,4}[\w.@-]{1,64})?"
    r"(?:[ \t]{0,4}(?:->|=>|[:=|,])[ \t]{0,4}|"
    r"[ \t]{1,4}(?:(?:is|was|are|as|to|set[ \t]to|changed[ \t]to)[ \t]{1,4})?)))",
    re.IGNORECASE,
)
_VALUE = re.compile(
    rf"(?P<open>\\{{0,3}}[\"'`])(?P<quoted>[^\"'`\\\n]{{1,{_LONGEST}}})(?=\\{{0,3}}[\"'`])|(?P<bare>(?!\[redacted\])[^\s\"'`<>\\]+)"
)
_AFTERWARDS = ".,;:!?)]}"  # punctuation of the sentence
_SHORTEST, _SHORTEST_RUN = 3, 12
_HEX, _BASE64 = re.compile(r"(?:0x)?[0-9A-Fa-f]+"), re.compile(r"[A-Za-z0-9+/_]+={0,2}")
_SIGNS = frozenset("!@#$%^&*+=~|?")
_PATH = re.compile(r"\.{0,2}(?:/[\w.@-]+){2,}")
_OBJECT = re.compile(r"(?=.*[-./])(?:.*[-./])?[a-z]{3,}(?:[-./].*)?")  # of names in Kubernetes, a part that is a word


def without_told(text: str) -> str:
    """The text without what sentences in it tell."""
    kept: list[str] = []
    end = 0
    for found in _NAME.finditer(text):
        value = _VALUE.match(text, found.end("link")) if found.start() >= end else None
        if value is None:
            continue
        word = value["quoted"] or value["bare"].rstrip(_AFTERWARDS)
        if word and _tells(found, word):
            start = value.start("quoted") if value["quoted"] else value.start()
            kept += [text[end:start], GONE]
            end = start + len(word)
    return "".join([*kept, text[end:]])


def _tells(found: re.Match[str], word: str) -> bool:
    if found["weak"]:
        return _is_run(word)
    if found["object"] and word == word.lower() and _OBJECT.fullmatch(word):
        return False  # what Kubernetes calls a Secret is named in its every message
    return len(word) >= _SHORTEST and not _PATH.fullmatch(word) and _looks_made_up(word)


def _looks_made_up(word: str) -> bool:
    has_capitals_inside = word[1:] != word[1:].lower() and word != word.upper()
    return has_capitals_inside or any(letter.isdigit() or letter in _SIGNS for letter in word)


def _is_run(word: str) -> bool:
    """Of hexadecimal digits, or of base64."""
    if len(word) < _SHORTEST_RUN or not any(map(str.isdigit, word)):
        return False
    if _HEX.fullmatch(word):
        return any(map(str.isalpha, word))
    return bool(_BASE64.fullmatch(word)) and any(map(str.isupper, word)) and any(map(str.islower, word))


def is_key(name: str, value: str) -> bool:
    """Whether a value is a secret by its form together with a name that alone says too little, such as `key`."""
    return bool(_WEAK.fullmatch(name)) and _is_run(value)
