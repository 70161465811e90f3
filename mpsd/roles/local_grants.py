"""The grants of one machine: on disk, so that they outlive the agent, and tied to the life of their holders.

One rule: a grant is written down before anybody is told of it, and is of this boot or of none.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from mpsd.core.grants import Grant
from mpsd.core.identity import PodName, ProcessIdentity
from mpsd.core.node_view import HeldGrant
from mpsd.edge import processes, records
from mpsd.edge.event_loop import DeathWatch
from mpsd.edge.logs import Logger


@dataclass(frozen=True, slots=True)
class ProgramGrant(Grant):
    """A grant to a program of this machine, the only kind that is kept on disk: a pod's is for kubelet to keep."""

    holder: ProcessIdentity


def living(folder: Path) -> list[ProgramGrant]:
    """The grants on disk whose holders live: programs that may come to their GPU yet."""
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(records.UnreadableRecord):  # `load` says so
            grant = records.read(path, ProgramGrant)
            if grant and processes.is_alive(grant.holder):
                found.append(grant)
    return found


class LocalGrants:
    """The books of `mpsd up`. on_end: called when a holder's process ends."""

    def __init__(self, folder: Path, on_end: Callable[[], None], log: Logger) -> None:
        self._folder = folder
        self._on_end = on_end
        self._log = log
        self._grants: dict[str, ProgramGrant] = {}
        self._watches: dict[str, DeathWatch] = {}

    def load(self) -> None:
        """Finds what an earlier agent granted; another boot's grants are over."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):  # as they were given
            try:
                grant = records.read(path, ProgramGrant)
            except records.UnreadableRecord as error:
                self._log.warning("grant ignored", reason=str(error))
                continue
            if grant is None or grant.holder.boot_id != processes.boot_id():
                records.remove(path)
            else:
                self._keep(grant)
        if self._grants:
            self._log.info("grants found again", grants=len(self._grants))

    async def refresh(self) -> None:
        """Nobody else gives grants here."""

    @property
    def unknown(self) -> tuple[str, ...]:
        return ()

    @property
    def pod_processes(self) -> None:
        return None

    def pods(self) -> Mapping[str, str]:
        return {}

    @property
    def ungranted(self) -> Mapping[str, PodName]:
        """Nobody is in a pod here."""
        return {}

    def add(self, grant: Grant) -> None:
        if not isinstance(grant.holder, ProcessIdentity):
            raise TypeError(f"{grant.holder} is no program of this machine")
        records.write(self._file(grant), grant)
        self._keep(ProgramGrant(**{field.name: getattr(grant, field.name) for field in fields(grant)}))

    def _keep(self, grant: ProgramGrant) -> None:
        self._grants[grant.id] = grant
        self._watches[grant.id] = DeathWatch(grant.holder, self._on_end)

    def end(self, grant: Grant) -> None:
        records.remove(self._file(grant))
        self._grants.pop(grant.id, None)
        self._forget(grant.id)

    def _forget(self, grant_id: str) -> None:
        watch = self._watches.pop(grant_id, None)
        if watch:
            watch.close()

    def held(self) -> Iterable[HeldGrant]:
        return (HeldGrant(grant, self._watches[grant.id].alive) for grant in self._grants.values())

    def holders(self) -> dict[int, str]:
        """From the pid of each living holder to its grant."""
        return {grant.holder.pid: grant.id for grant in self._grants.values() if self._watches[grant.id].alive}

    def close(self) -> None:
        """Stops watching; the grants stay on disk for the next agent."""
        for grant_id in tuple(self._watches):
            self._forget(grant_id)

    def _file(self, grant: Grant) -> Path:
        return self._folder / f"{grant.id}.json"
