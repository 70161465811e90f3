"""Which names say that what they name is a secret.

One rule: a name says so by a word in it, unless its end says that it only names where the secret is, or counts.
"""

import re

GONE = "[redacted]"
TELLING = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|cookie|signature|authorization|dsn|webhook[_-]?url|"
    r"(?:api|access|account|auth|encryption|license|master|private|shared|signing|ssh)[_-]?key|session[_-]?(?:id|key)|"
    r"key-data|certificate-data|authority-data|"
    r"(?<![a-z])(?:pass|auth|sig)(?![\w.-])|pgpass"  # as whole words, for they begin and end many that are harmless
)
_HARMLESS_END = r"(?:name|names|file|path|dir|directory|ref|type|count|total|reviews?|seconds|projection|expiration)$"
_IS_SECRET = re.compile(TELLING, re.IGNORECASE)
_IS_HARMLESS = re.compile(_HARMLESS_END, re.IGNORECASE)
_PLAIN = frozenset({"", "true", "false", "null", "none", "nil", "{", "[", "|", ">", GONE.casefold()})
_PLAIN |= {"enforce", "warn", "audit"}  # what the policy says of a rule, such as environment-secret


def looks_secret(name: str) -> bool:
    """Whether what has this name is a secret."""
    return bool(_IS_SECRET.search(name)) and not _IS_HARMLESS.search(name)


def is_plain(value: str) -> bool:
    """Whether a value may be read by anybody, whatever its name."""
    return value.strip().casefold() in _PLAIN
