"""What `mpsd set` and `mpsd up` say to each other: `POST /v1/grants/{id}`.

One rule: names here are an interface between versions; fields are added, never renamed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrantChangeAsks:
    """As containers.rules.grant_change.Change has it. gpu: a UUID; None for every GPU of the grant. dry_run: nothing is changed."""

    memory_mib: int | None = None
    percent: int | None = None
    weight: int | None = None
    gpu: str | None = None
    forced: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CardLimits:
    """What the books hold of one GPU for a grant. weight: None where it was not asked for in cGPU's words."""

    gpu: str
    label: str
    memory_mib: int
    reserved_percent: int
    weight: int | None


@dataclass(frozen=True, slots=True)
class GrantLimits:
    """thread_percent: what MPS holds each process of it to, 100 for no limit."""

    thread_percent: int
    cards: tuple[CardLimits, ...]


@dataclass(frozen=True, slots=True)
class GrantChanged:
    """messages: what follows, each a sentence or two. dry_run: it was not done."""

    grant: str
    before: GrantLimits
    after: GrantLimits
    messages: tuple[str, ...]
    dry_run: bool
