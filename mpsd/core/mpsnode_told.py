"""What several readers of an MPSNode's JSON take of it, for whoever reads JSON by types.

One rule: every field may be absent or null, and one that nobody here reads may be anything.
"""

from typing import TypedDict


class ToldMetadata(TypedDict, total=False):
    name: str | None


class ToldDomain(TypedDict, total=False):
    name: str | None
    state: str | None
