"""What the agent answers a program that asks for a grant.

One rule: names here are an interface between versions; fields are added, never renamed.
"""

from dataclasses import dataclass

from mpsd.core.grants import Grant


@dataclass(frozen=True, slots=True)
class GrantAnswer:
    """environment: what the program is to be started with. path_first: a folder to put first on its PATH, or empty."""

    grant: Grant
    environment: dict[str, str]
    path_first: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """reasons: each a sentence. for_ever: asking again, or waiting, will not help."""

    reasons: tuple[str, ...]
    for_ever: bool
