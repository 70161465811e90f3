"""Which grant a person means who writes a container's id or its beginning, its name, a pod, or a grant's id.

One rule: what is written in full goes before what only begins so, and an id, also as engines show it, before a name,
which whoever makes a container chooses; two that are equally meant are told, and never chosen from.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Held(Protocol):
    """A grant as `GrantStatus` and `GrantUse` tell it."""

    @property
    def id(self) -> str: ...

    @property
    def container(self) -> str | None: ...

    @property
    def container_name(self) -> str | None: ...

    @property
    def namespace(self) -> str | None: ...

    @property
    def pod(self) -> str | None: ...

    @property
    def command(self) -> str: ...


One = TypeVar("One", bound=Held)
_SHORT = 12  # characters of a container's id, as engines show it


def meant(grants: Iterable[One], word: str) -> tuple[One, ...]:
    """Those that the word may mean; none where there is no such grant."""
    among = tuple(grants)
    for said_in_full in (_whole_ids, _names):
        if found := tuple(one for one in among if word in said_in_full(one)):
            return found
    return tuple(one for one in among if word and any(each.startswith(word) for each in _ids(one)))


def _ids(one: Held) -> Sequence[str]:
    return [one.id] if one.container is None else [one.container, one.id]


def _whole_ids(one: Held) -> Sequence[str]:
    return [*_ids(one), short_id(one)]


def _names(one: Held) -> Sequence[str]:
    if one.pod:
        return [one.pod, f"{one.namespace}/{one.pod}"]
    return [one.container_name] if one.container_name else []


def words(grants: Iterable[Held]) -> tuple[str, ...]:
    """What each of them may be called, for completion: ids as engines show them, and names."""
    return tuple(dict.fromkeys(word for one in grants for word in (short_id(one), *_names(one))))


def short_id(one: Held) -> str:
    """The container's id as engines show it; the grant's where no container holds it."""
    return (one.container or one.id)[:_SHORT]


def known_as(one: Held) -> str:
    """The grant's holder, as people know it: `3f2a… (train)`."""
    if one.pod:
        return f"{one.namespace}/{one.pod}"
    name = (one.container_name or "") if one.container else one.command
    return f"{short_id(one)} ({name})" if name else short_id(one)
