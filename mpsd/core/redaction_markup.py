"""Takes secrets out of XML, as it stands in a file, in JSON (\\u003c) or in HTML (&lt;).

One rule: an element or attribute goes by its own name, and by what an attribute `name`, `key` or `id` beside it says.
"""

import re

from mpsd.core.secret_names import GONE, is_plain, looks_secret

_FARTHEST = 4096  # from the begin of an element to its end
_MOST_ENDS = 64  # of others within it
_LESS, _MORE = r"(?:<|&lt;|\\u003c)", r"(?:>|&gt;|\\u003e)"
_QUOTE = r"\\{0,3}[\"']|&quot;|&#39;"
_BEGIN = re.compile(
    rf"{_LESS}(?P<tag>[A-Za-z_][\w:.-]{{0,63}}+)(?P<rest>(?:\s(?:(?!&[lg]t;|\\u003[ce])[^<>]){{0,1024}}+)?/?){_MORE}",
    re.IGNORECASE,
)
_END = re.compile(rf"{_LESS}\\{{0,2}}/(?P<tag>[\w:.-]{{1,64}}+)", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    rf"(?P<name>[\w:.-]{{1,64}}+)(?P<is>\s{{0,4}}=\s{{0,4}}(?P<quote>{_QUOTE}))(?P<value>.{{0,1000}}?)(?P=quote)",
    re.DOTALL,
)
_WORD = re.compile(r"\[redacted\]|[^\s<>&\\\"']+")  # of an element whose end is not here
_NAMING, _VALUED = frozenset({"name", "key", "id"}), frozenset({"value", "val", "content", "default"})


def without_elements(text: str) -> str:
    """The text without what its elements and attributes tell."""
    kept: list[str] = []
    end = 0
    for found in _BEGIN.finditer(text):
        if found.start() < end:
            continue  # inside of what went
        named = _is_named_secret(found["rest"])
        kept += [text[end : found.start("rest")], _attributes(found["rest"], tells=named)]
        end = found.end("rest")
        if (named or looks_secret(_local(found["tag"]))) and not found["rest"].endswith("/"):
            until = _until(text, found)
            if not is_plain(text[found.end() : until]):
                kept += [text[end : found.end()], GONE]
                end = until
    return "".join([*kept, text[end:]])


def _until(text: str, found: re.Match[str]) -> int:
    """Where the content of an element ends; that of its first word where its end is not here."""
    ends = _END.finditer(text, found.end(), found.end() + _FARTHEST)
    for _number, end in zip(range(_MOST_ENDS), ends, strict=False):
        if end["tag"].casefold() == found["tag"].casefold():
            return end.start()
    word = _WORD.match(text, found.end())
    return word.end() if word else found.end()


def _is_named_secret(rest: str) -> bool:
    return any(one["name"].casefold() in _NAMING and looks_secret(one["value"]) for one in _ATTRIBUTE.finditer(rest))


def _attributes(rest: str, *, tells: bool) -> str:
    def gone(found: re.Match[str]) -> str:
        name = _local(found["name"])
        secret = looks_secret(name) or (tells and name.casefold() in _VALUED)
        if not secret or is_plain(found["value"]):
            return found[0]
        return f"{found['name']}{found['is']}{GONE}{found['quote']}"

    return _ATTRIBUTE.sub(gone, rest)


def _local(name: str) -> str:
    """Without the prefix of its namespace."""
    return name.rpartition(":")[2]
