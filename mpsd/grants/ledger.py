"""The ledger of grants: what the agent needs of any (`Ledger`), and that of one machine without Kubernetes.

`LocalGrants` keeps the grants of programs and containers on disk, so that they outlive the agent, and ends them with
their holders. A grant is saved before anything is answered, and holds for this boot only.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

from mpsd.grants.rules.messages import HostContainerName, HostContainerRequest
from mpsd.model.grants import Grant
from mpsd.model.identity import HostContainer, PodName, ProcessIdentity, process_of
from mpsd.model.node_view import HeldGrant
from mpsd.platform import containers, processes, records
from mpsd.platform.containers import ContainerProcesses, Whereabouts, own_cgroups
from mpsd.platform.event_loop import DeathWatch
from mpsd.platform.logs import Logger
from mpsd.platform.rules.cgroups import Cgroup


@dataclass(frozen=True, slots=True)
class ProgramGrant(Grant):
    """A grant to a program of this machine."""

    holder: ProcessIdentity


@dataclass(frozen=True, slots=True)
class ContainerGrant(Grant):
    """A grant to a container without Kubernetes.

    oom_script: called before a process of it is ended for its memory; empty for none. runtime: the program that made
    the container. cgroups: its own; none before the container is made.
    """

    holder: HostContainer
    oom_script: str = ""
    runtime: str = "runc"
    cgroups: tuple[Cgroup, ...] = ()


KeptGrant = ProgramGrant | ContainerGrant


_CONTAINER = ".container.json"  # how the file of a container's grant ends; a program's ends in .json alone
_UNFINISHED = ".*.json.new"  # left where mpsd was killed while it wrote a file


def living(folder: Path) -> list[KeptGrant]:
    """The grants on disk whose holders live and may still start programs on their GPUs."""
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(records.UnreadableRecord):  # `load` logs it
            grant = _read(path)
            if grant and processes.is_alive(process_of(grant.holder)):
                found.append(grant)
    return found


def _read(path: Path) -> KeptGrant | None:
    """None where there is no file. UnreadableRecord."""
    if path.name.endswith(_CONTAINER):
        return records.read(path, ContainerGrant)
    return records.read(path, ProgramGrant)


class LocalGrants:
    """The ledger of `mpsd up`. on_end: called when a holder ends or a grant was released or changed."""

    pods_known = False

    def __init__(self, folder: Path, on_end: Callable[[], None], log: Logger) -> None:
        self._folder = folder
        self._on_end = on_end
        self._log = log
        self._grants: dict[str, KeptGrant] = {}
        self._watches: dict[str, DeathWatch] = {}
        self._asked: dict[str, HostContainerRequest] = {}  # by grant, what a container that waits for it asks
        self._not_made: set[str] = set()  # the grants of containers whose runtime ended without making them
        self._unreadable: dict[str, str] = {}  # by grant, why its container's state cannot be read
        self.whereabouts = ContainerProcesses(self.settle)

    def load(self) -> None:
        """Loads what an earlier agent of this boot granted."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._folder.glob(_UNFINISHED):
            records.remove(path)
        for path in sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):  # as granted
            try:
                grant = _read(path)
            except records.UnreadableRecord as error:
                self._log.warning("grant ignored", reason=str(error))
                continue
            if grant is None or process_of(grant.holder).boot_id != processes.boot_id():
                records.remove(path)
            else:
                self._keep(grant)
        if self._grants:
            self._log.info("grants found again", grants=len(self._grants))

    async def refresh(self) -> None:
        """Learns from the runtimes what became of containers."""
        self.settle()

    @property
    def unknown(self) -> tuple[str, ...]:
        return ()

    def pods(self) -> Mapping[str, str]:
        """`whereabouts` names containers by their grants."""
        return {grant.id: grant.id for grant in self._containers()}

    @property
    def ungranted(self) -> Mapping[str, PodName]:
        """No process is in a pod here."""
        return {}

    # -- grants and their ends ------------------------------------------------------------------------------------

    def expect(self, grant_id: str, asks: HostContainerRequest) -> None:
        """What a container asks for this grant, until it is added or `forget` is called."""
        self._asked[grant_id] = asks

    def forget(self, grant_id: str) -> None:
        self._asked.pop(grant_id, None)

    def add(self, grant: Grant) -> None:
        kept = self._kept(grant)
        records.write(self._file(kept), kept)
        self._keep(kept)

    def _kept(self, grant: Grant) -> KeptGrant:
        same = {field.name: getattr(grant, field.name) for field in fields(grant)}
        match grant.holder:
            case ProcessIdentity():
                return ProgramGrant(**same)
            case HostContainer():
                asks = self._asked[grant.id]
                return ContainerGrant(**same, oom_script=asks.oom_script, runtime=asks.runtime or "runc")
            case PodName():
                raise TypeError(f"{grant.holder} holds no grant of this machine")

    def _keep(self, grant: KeptGrant) -> None:
        watch = DeathWatch(process_of(grant.holder), self._on_end)
        self._forget_watch(grant.id)
        self._grants[grant.id], self._watches[grant.id] = grant, watch
        if isinstance(grant, ContainerGrant) and grant.holder.is_made:
            self.whereabouts.put(grant.id, grant.holder.process, grant.cgroups)

    def change(self, grant: KeptGrant) -> None:
        """Another size of a held grant; saved when it returns."""
        path = self._file(grant)
        granted_ns = path.stat().st_mtime_ns  # `load` sorts by it
        records.write(path, grant)
        os.utime(path, ns=(granted_ns, granted_ns))
        self._grants[grant.id] = grant
        self._on_end()

    def end(self, grant: Grant) -> None:
        if grant.container:
            reason = "not created" if grant.id in self._not_made else "its processes have ended"
            self._log.info("released", grant=grant.id, container=grant.container.id, gpus=grant.gpus, reason=reason)
        for path in self._files_of(grant.id):
            records.remove(path)
        self._grants.pop(grant.id, None)
        self._not_made.discard(grant.id)
        self._unreadable.pop(grant.id, None)
        self.whereabouts.take_out(grant.id)
        self._forget_watch(grant.id)

    def release(self, grant: Grant) -> None:
        """Ends it outside the agent's cycle."""
        self.end(grant)
        self._on_end()

    def _forget_watch(self, grant_id: str) -> None:
        watch = self._watches.pop(grant_id, None)
        if watch:
            watch.close()

    # -- queries --------------------------------------------------------------------------------------------------

    def held(self) -> Iterable[HeldGrant]:
        return (HeldGrant(grant, self._is_held(grant)) for grant in self._grants.values())

    def _is_held(self, grant: KeptGrant) -> bool:
        """A container being made counts as held until its runtime has ended and its state was read after that."""
        if isinstance(grant, ContainerGrant) and not grant.holder.is_made:
            return grant.id not in self._not_made
        return self._watches[grant.id].alive

    def holders(self) -> dict[int, str]:
        """The grant of each living program, by pid."""
        programs = (grant for grant in self._grants.values() if isinstance(grant, ProgramGrant))
        return {grant.holder.pid: grant.id for grant in programs if self._watches[grant.id].alive}

    def of_container(self, name: HostContainerName) -> tuple[ContainerGrant, bool] | None:
        """What this container holds, and whether it still counts as living."""
        self.settle()
        for grant in self._containers():
            if (grant.holder.root, grant.holder.id) == (name.root, name.id):
                return grant, self._is_held(grant)
        return None

    def _containers(self) -> Iterator[ContainerGrant]:
        return (grant for grant in tuple(self._grants.values()) if isinstance(grant, ContainerGrant))

    # -- states of containers -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Reads the states of the containers that were being made."""
        for grant in self._containers():
            if not grant.holder.is_made and grant.id not in self._not_made:
                self._check(grant)

    def _check(self, grant: ContainerGrant) -> None:
        is_under_way = self._watches[grant.id].alive  # read before the state, which is written before the end
        try:
            first = containers.first_process(grant.holder.root, grant.holder.id)
            if first and self._made_by(first, grant):
                self._settle(grant, first)
            elif not is_under_way:
                self._not_made.add(grant.id)
            self._unreadable.pop(grant.id, None)
        except (containers.StateUnknown, OSError) as error:
            if self._unreadable.get(grant.id) != str(error):
                self._log.warning("state of a container unknown", container=grant.holder.id, reason=str(error))
            self._unreadable[grant.id] = str(error)

    def is_unmade(self, grant: ContainerGrant, caller: int) -> bool:
        """Whether a container that is being made is over, as this caller reports: it was started by the very runtime
        that makes it, as its hooks are, and the state is gone."""
        with contextlib.suppress(containers.StateUnknown):
            is_hook = processes.parent_of(caller) == grant.holder.process.pid and not grant.holder.is_made
            return is_hook and containers.first_process(grant.holder.root, grant.holder.id) is None
        return False

    def _made_by(self, first: ProcessIdentity, grant: ContainerGrant) -> bool:
        """Whether this is its process: not an earlier container's of that name, nor another grant's."""
        taken = any(first == other.holder.process for other in self._containers())
        return not taken and first.start_ticks >= grant.holder.process.start_ticks and processes.is_alive(first)

    def _settle(self, grant: ContainerGrant, first: ProcessIdentity) -> None:
        made = replace(grant, holder=replace(grant.holder, process=first, is_made=True), cgroups=own_cgroups(first))
        records.write(self._file(made), made)
        self._keep(made)
        self._log.info("container made", grant=made.id, container=made.holder.id, pid=first.pid)

    def close(self) -> None:
        """Stops watching; the grants stay on disk for the next agent."""
        for grant_id in tuple(self._watches):
            self._forget_watch(grant_id)

    def _file(self, grant: KeptGrant) -> Path:
        program, container = self._files_of(grant.id)
        return container if isinstance(grant, ContainerGrant) else program

    def _files_of(self, grant_id: str) -> tuple[Path, Path]:
        return self._folder / f"{grant_id}.json", self._folder / f"{grant_id}{_CONTAINER}"


class Ledger(Protocol):
    """Who holds what of this node's GPUs: `LocalGrants` on one machine, `KubeletGrants` beside a kubelet.

    One that cannot be read now keeps its last state and reports it in `unknown`; nothing counts as free meanwhile.
    """

    @property
    def whereabouts(self) -> Whereabouts:
        """Finds the pod, or the container with a grant, that a process is in."""

    @property
    def pods_known(self) -> bool:
        """Whether a kubelet is served: then only pods hold grants. Where not, no process is in a pod."""

    def load(self) -> None:
        """Loads what an earlier agent knew."""

    async def refresh(self) -> None:
        """Asks the source of the grants; what could not be learned is in `unknown`."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why the ledger may be incomplete; empty where it is complete."""

    def held(self) -> Iterable[HeldGrant]: ...

    def holders(self) -> Mapping[int, str]:
        """The grant of each living holder, by pid."""

    def pods(self) -> Mapping[str, str]:
        """The grant of each pod or container that holds one, by its name in `whereabouts`."""

    @property
    def ungranted(self) -> Mapping[str, PodName]:
        """Each pod that is known to hold no grant, by the uid in its cgroups; the very same where nothing changed."""

    def add(self, grant: Grant) -> None: ...

    def end(self, grant: Grant) -> None: ...

    def close(self) -> None: ...
