"""What a support bundle is made of, and its index.

One rule: a part that could not be had is in the index with the reason, as one that was cut is with what is left of it;
nothing is left out in silence.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mpsd.operations.bundle.rules.bundle_contents import log_kept

MOST_BYTES = 2 * 1024**2  # of a part
MOST_IN_ALL = 64 * 1024**2
INDEX = "INDEX.txt"
_CREDENTIALS = re.compile(r"://[^\s/]*@")


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the bundle, with only what may be in it. about: what it is, as the end of a sentence. missing: why it
    could not be had; empty where it could.
    """

    file: str
    about: str
    text: str = ""
    missing: str = ""


def text_part(file: str, about: str, text: str) -> Part:
    return Part(file, about, text)


def log_part(file: str, about: str, text: str) -> Part:
    """Of a log of mpsd's own."""
    return Part(file, about, log_kept(text))


def json_part(file: str, about: str, value: Any) -> Part:
    return Part(file, about, json.dumps(value, indent=1) + "\n")


def missing_part(file: str, about: str, why: str) -> Part:
    return Part(file, about, missing=" ".join(_CREDENTIALS.sub("://", why).split()) or "nobody says why")


@dataclass(frozen=True, slots=True)
class Cut:
    """A part as it is written. left_out: bytes of its beginning that are not; the end of a log says more."""

    data: bytes
    left_out: int


def cut(text: str, most_bytes: int = MOST_BYTES) -> Cut:
    """Where it is too long, its end from a new line on, after a line that says so. The whole is never longer."""
    data = text.encode(errors="replace")
    if len(data) <= most_bytes:
        return Cut(data, 0)
    said = b"[%d bytes before this are left out]\n"
    room = max(0, most_bytes - len(said % len(data)))
    end = data[len(data) - room :]
    end = end[end.find(b"\n") + 1 :] if b"\n" in end[:-1] else end
    left_out = len(data) - len(end)
    return Cut((said % left_out + end)[:most_bytes] if room else b"", left_out)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index says of a part."""

    part: Part
    size: int
    left_out: int = 0


def index(of: str, version: str, made_at: str, entries: Iterable[Entry]) -> str:
    """of: what the bundle is of, such as `node gpu-a1`. made_at: for people."""
    entries = list(entries)
    here = [entry for entry in entries if not entry.part.missing]
    missing = [entry for entry in entries if entry.part.missing]
    lines = [f"Support bundle of {of}, made by mpsd {version} at {made_at}", ""]
    lines += ["Only what is known to be harmless was taken; [left out] is in the place of other values.", ""]
    lines += [f"{entry.part.file}: {entry.part.about}{_cut_words(entry)}" for entry in here]
    lines += [
        "",
        f"Not here: {len(missing)}",
        *(f"{entry.part.file}: {entry.part.about}: {entry.part.missing}" for entry in missing),
    ]
    return "\n".join(lines) + "\n"


def _cut_words(entry: Entry) -> str:
    return f" (its last {entry.size} bytes; {entry.left_out} before them are left out)" if entry.left_out else ""
