"""The ledger of a node's grants: what the agent needs of any (`Ledger`), and that of one machine
without Kubernetes, which keeps the grants of programs and containers on disk.

A record that cannot be read is never taken for a grant that has ended: the grant is rebuilt from
what its programs were started with, or stays in `LedgerView.unreadable` until somebody removes the
file.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

from mpsd.grants.kept import (
    CONTAINER,
    ContainerGrant,
    KeptGrant,
    ProgramGrant,
    id_of,
    others_live,
    read_grant,
)
from mpsd.grants.rules.messages import HostContainerName, HostContainerRequest
from mpsd.model.client_limits import limit_in
from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, PIPE_DIRECTORY, VARIABLES
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant, evenly, rooms
from mpsd.model.identity import ProcessIdentity, process_of
from mpsd.model.node_view import HeldGrant, LedgerView, UnreadableGrant
from mpsd.model.policy import Policy
from mpsd.mps.records import NodeDomains
from mpsd.platform import containers, processes, records
from mpsd.platform.containers import ContainerProcesses, ProgramCgroups, Whereabouts, own_cgroups
from mpsd.platform.event_loop import DeathWatch
from mpsd.platform.logs import Logger
from mpsd.platform.process_environment import environment_of
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import GRANT


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A process that was started under a grant. variables: what it was started with."""

    process: ProcessIdentity
    variables: Mapping[str, str]


_OF_GRANTS = (GRANT, *VARIABLES)
_READ_S = 0.1  # for the environment of a process that is keeping it from being read
_PATIENCE_S = 2.0  # for all of them: a user may start thousands


def marked_processes() -> Mapping[str, Sequence[MarkedProcess]]:
    """By the grant that it was started under, every process that lives outside containers, the
    oldest first: what a process in a container is started with proves nothing."""
    found: dict[str, list[MarkedProcess]] = {}
    patience_s = _PATIENCE_S
    here = containers.pid_namespace("self")
    for pid in processes.every_pid():
        one = processes.identity_of(pid)
        if not one or containers.pid_namespace(pid) != here:
            continue
        began = time.monotonic()
        variables = environment_of(pid, _OF_GRANTS, min(_READ_S, patience_s)) or {}
        patience_s = max(0.0, patience_s - (time.monotonic() - began))
        if GRANT in variables and processes.is_alive(one):
            found.setdefault(variables[GRANT], []).append(MarkedProcess(one, variables))
    for marked in found.values():
        marked.sort(key=lambda one: (one.process.start_ticks, one.process.pid))
    return found


@dataclass(frozen=True, slots=True)
class GrantableGpus:
    """The GPUs that a machine grants of, and the policy by which it does."""

    policy: Callable[[], Policy]
    domains: NodeDomains

    def domain_of(self, marked: Sequence[MarkedProcess], run_directory: Path) -> Domain | None:
        """The domain that all these processes were given; None where they disagree, or name none of
        this machine."""
        pipes = {one.variables.get(PIPE_DIRECTORY) for one in marked}
        for domain in self.domains.now:
            if pipes == {str(DomainFolder(run_directory / domain.name).client)}:
                return domain
        return None

    def rebuilt(
        self,
        grant_id: str,
        domain: Domain,
        marked: Sequence[MarkedProcess],
        others: Sequence[Grant],
    ) -> ProgramGrant | None:
        """The grant that these processes, of this domain, were started under: at least as much as
        they can use. None where its holder was not started with its limit, or where that does not
        fit beside the other grants. It reserves its cap of threads, or what the others leave."""
        holder = marked[0].process
        gpus = domain.gpus
        if len(gpus) > 1:
            named = ",".join(one.variables.get(CUDA_VISIBLE_DEVICES, "") for one in marked)
            gpus = tuple(uuid for uuid in gpus if uuid in named.split(","))
        if not gpus or not limit_in(marked[0].variables):
            return None
        limits = [*filter(None, (limit_in(one.variables) for one in marked))]
        memory_mib = max(limit.memory_mib for limit in limits)
        percent = max(limit.thread_percent for limit in limits)
        policy = self.policy()
        mine = [gpu for gpu in self.domains.gpus if gpu.uuid in gpus]
        left = rooms(mine, dict.fromkeys(gpus, domain.name), others, policy)
        if len(mine) < len(gpus) or any(room.memory_mib < memory_mib for room in left):
            return None
        reserved = max(0, min(percent, *(room.thread_percent for room in left)))
        parts = evenly(gpus, memory_mib, reserved)
        command = processes.command_of(holder.pid)[:200]
        clients = policy.requests.clients_per_grant
        return ProgramGrant(grant_id, domain.name, parts, percent, clients, holder, command)


class LocalGrants:
    """The ledger of `mpsd up`: grants on disk, which outlive the agent and end with their holders.
    Each is saved before anything is answered, and holds for this boot only. on_end: called when a
    holder ends or a grant was released or changed. here: None where no grant can be rebuilt."""

    pods_known = False  # no process is in a pod here

    def __init__(
        self,
        folder: Path,
        on_end: Callable[[], None],
        log: Logger,
        here: GrantableGpus | None = None,
    ) -> None:
        self._folder = folder
        self._here = here
        self._on_end = on_end
        self._log = log
        self._grants: dict[str, KeptGrant] = {}
        self._watches: dict[str, DeathWatch] = {}
        # by grant, what a container that waits for it asks
        self._asked: dict[str, HostContainerRequest] = {}
        # the grants of containers whose runtime ended without making them
        self._not_made: set[str] = set()
        self._unreadable: dict[str, str] = {}  # by grant, why its container's state cannot be read
        self._broken: dict[Path, UnreadableGrant] = {}
        self._programs = ProgramCgroups()
        self._view = LedgerView()
        self._viewed: tuple[object, ...] = ()  # what it was made from
        self.whereabouts = ContainerProcesses(self.settle)

    def load(self) -> None:
        """Loads what an earlier agent of this boot granted."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # left where mpsd was killed while it wrote a file
        for path in self._folder.glob(".*.json.new"):
            path.unlink(missing_ok=True)
        # as granted
        for path in sorted(self._folder.glob("*.json"), key=lambda path: path.lstat().st_mtime_ns):
            self._load(path)
        self._rebuild()
        if self._programs.why_not:
            self._log.info("programs get no cgroups", reason=self._programs.why_not)
        if self._grants:
            self._log.info("grants found again", grants=len(self._grants))

    def _load(self, path: Path) -> None:
        try:
            grant = read_grant(path)
        except records.UnreadableRecord as error:
            if path not in self._broken or self._broken[path].reason != error.reason:
                self._log.warning(
                    "grant unreadable", grant=id_of(path), file=str(path), reason=error.reason
                )
            known = self._broken.get(path, UnreadableGrant(id_of(path), str(path), ""))
            self._broken[path] = replace(known, reason=error.reason)
            return
        if self._broken.pop(path, None):
            self._log.info("grant unreadable no more", grant=id_of(path), removed=grant is None)
        if grant and process_of(grant.holder).boot_id == processes.boot_id():
            self._keep(grant)
        else:
            path.unlink(missing_ok=True)

    def _rebuild(self) -> None:
        """Rebuilds what can be proven of grants whose records cannot be read, and replaces their
        files; of the others it learns the domain."""
        if self._here is None or not self._broken:
            return
        marked = marked_processes()
        for path, broken in tuple(self._broken.items()):
            own = marked.get(broken.id)
            if not own or path.name.endswith(CONTAINER):
                continue
            domain = self._here.domain_of(own, self._folder.parent)
            if domain is None:
                continue
            self._broken[path] = replace(broken, domain=domain.name)
            if grant := self._here.rebuilt(broken.id, domain, own, tuple(self._grants.values())):
                grant = replace(grant, cgroups=self._programs.found_again(grant.holder, grant.id))
                with contextlib.suppress(OSError):  # else it is rebuilt again by the next agent
                    records.write(path, grant)
                del self._broken[path]
                self._keep(grant)
                size = {"gpus": grant.gpus, "memory_mib": grant.memory_mib}
                self._log.warning("grant rebuilt", grant=grant.id, holder=str(grant.holder), **size)

    async def refresh(self) -> None:
        """Learns from runtimes what became of containers, and whether a record was removed or can
        be read again."""
        self.settle()
        for path in tuple(self._broken):
            self._load(path)

    # -- grants and their ends

    def expect(self, grant_id: str, asks: HostContainerRequest) -> None:
        """What a container asks for this grant, until it is added or `forget` is called."""
        self._asked[grant_id] = asks

    def forget(self, grant_id: str) -> None:
        self._asked.pop(grant_id, None)

    def add(self, grant: Grant) -> None:
        same = {field.name: getattr(grant, field.name) for field in fields(grant)}
        if grant.container:
            asks = self._asked[grant.id]
            runtime = asks.runtime or "runc"
            boxed = ContainerGrant(**same, oom_script=asks.oom_script, runtime=runtime)
            records.write(self._file(boxed), boxed)
            self._keep(boxed)
        else:
            self._add_program(ProgramGrant(**same))

    def _add_program(self, grant: ProgramGrant) -> None:
        """In a cgroup of its own; in none where it could not be moved there."""
        made = self._programs.place_for(grant.holder, grant.id)
        if made:
            grant = replace(grant, cgroups=(made,))
        # first, so that no cgroup is made that nobody knows of
        try:
            records.write(self._file(grant), grant)
        except OSError:  # such as a full disk
            if made:
                self._programs.remove(made)
            raise
        if made and (why_not := self._programs.take_in(grant.holder, made)):
            self._log.warning("program gets no cgroup", grant=grant.id, reason=why_not)
            self._programs.remove(made)
            grant = replace(grant, cgroups=())
            records.write(self._file(grant), grant)
        self._keep(grant)

    def _keep(self, grant: KeptGrant) -> None:
        watch = DeathWatch(process_of(grant.holder), self._on_end)
        self._forget_watch(grant.id)
        self._grants[grant.id] = grant
        self._watches[grant.id] = watch
        if grant.is_somewhere:
            self.whereabouts.put(grant.id, process_of(grant.holder), grant.cgroups)

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
            reason = "its processes have ended"
            if grant.id in self._not_made:
                reason = "not created"
            about = {"container": grant.container.id, "gpus": grant.gpus, "reason": reason}
            self._log.info("released", grant=grant.id, **about)
        kept = self._grants.get(grant.id)
        if isinstance(kept, ProgramGrant):
            for made in kept.cgroups:
                self._programs.remove(made)  # before its record is
        for ending in (".json", CONTAINER):
            (self._folder / f"{grant.id}{ending}").unlink(missing_ok=True)
        self._grants.pop(grant.id, None)
        self._not_made.discard(grant.id)
        self._unreadable.pop(grant.id, None)
        self.whereabouts.take_out(grant.id)
        self._forget_watch(grant.id)

    def release(self, grant: Grant) -> None:
        self.end(grant)
        self._on_end()

    def _forget_watch(self, grant_id: str) -> None:
        if watch := self._watches.pop(grant_id, None):
            watch.close()

    # -- queries

    @property
    def view(self) -> LedgerView:
        """`whereabouts` names containers, and programs with cgroups, by their grants; no process is
        in a pod here."""
        kept = tuple(self._grants.values())
        alive = tuple([watch.alive for watch in self._watches.values()])
        unreadable = tuple(self._broken.values())
        sources = kept, alive, frozenset(self._not_made), unreadable
        # of who has ended, others may end without a word
        if sources != self._viewed or not all(alive):
            places = [one.id for one in kept if one.container or one.cgroups]
            self._view = LedgerView(
                held=tuple(map(self._held, kept)),
                holders=self.holders(),
                by_place=dict(zip(places, places, strict=True)),
                unreadable=unreadable,
            )
            self._viewed = sources
        return self._view

    def _held(self, grant: KeptGrant) -> HeldGrant:
        alive = self._is_held(grant)
        own = None
        if isinstance(grant, ProgramGrant):
            own = next((made.path for made in grant.cgroups), "")
        return HeldGrant(grant, alive, not alive and others_live(grant, self._programs), own)

    def has_cgroup(self, grant_id: str) -> bool:
        """Whether it is a program's, and the kernel says by a cgroup of its own which processes are
        under it."""
        kept = self._grants.get(grant_id)
        return isinstance(kept, ProgramGrant) and bool(kept.cgroups)

    def processes_of(self, grant: ProgramGrant) -> frozenset[ProcessIdentity]:
        """The program that holds it, and whoever else is in the cgroup that mpsd made for it; none
        that has ended."""
        found = {one for made in grant.cgroups for one in self._programs.processes_in(made)}
        if processes.is_alive(grant.holder):
            found.add(grant.holder)
        return frozenset(found)

    def _is_held(self, grant: KeptGrant) -> bool:
        if isinstance(grant, ContainerGrant) and not grant.holder.is_made:
            # until its runtime has ended and its state was read after that
            return grant.id not in self._not_made
        return self._watches[grant.id].alive

    def holders(self) -> dict[int, str]:
        """The grant of each living program, by pid."""
        return {
            grant.holder.pid: grant.id
            for grant in self._grants.values()
            if isinstance(grant, ProgramGrant) and self._watches[grant.id].alive
        }

    def of_container(self, name: HostContainerName) -> tuple[ContainerGrant, bool] | None:
        """What this container holds, and whether it still counts as living."""
        self.settle()
        for grant in self._containers():
            if (grant.holder.root, grant.holder.id) == (name.root, name.id):
                return grant, self._is_held(grant)
        return None

    def _containers(self) -> list[ContainerGrant]:
        return [one for one in self._grants.values() if isinstance(one, ContainerGrant)]

    # -- states of containers

    def settle(self) -> None:
        """Reads the states of the containers that were being made."""
        for grant in self._containers():
            if not grant.holder.is_made and grant.id not in self._not_made:
                self._check(grant)

    def _check(self, grant: ContainerGrant) -> None:
        # read before the state, which is written before the end
        is_under_way = self._watches[grant.id].alive
        try:
            first = containers.first_process(grant.holder.root, grant.holder.id)
            # an earlier one's, or another's
            taken = any(first == other.holder.process for other in self._containers())
            is_own = first and not taken and first.start_ticks >= grant.holder.process.start_ticks
            if first and is_own and processes.is_alive(first):
                holder = replace(grant.holder, process=first, is_made=True)
                made = replace(grant, holder=holder, cgroups=own_cgroups(first))
                records.write(self._file(made), made)
                self._keep(made)
                self._log.info(
                    "container made", grant=made.id, container=made.holder.id, pid=first.pid
                )
            elif not is_under_way:
                self._not_made.add(grant.id)
            self._unreadable.pop(grant.id, None)
        except (containers.StateUnknown, OSError) as error:
            if self._unreadable.get(grant.id) != str(error):
                self._log.warning(
                    "state of a container unknown", container=grant.holder.id, reason=str(error)
                )
            self._unreadable[grant.id] = str(error)

    def is_unmade(self, grant: ContainerGrant, caller: int) -> bool:
        """Whether a container that is being made is over, as this caller reports: it was started by
        the very runtime that makes it, as its hooks are, and the state is gone."""
        with contextlib.suppress(containers.StateUnknown):
            holder = grant.holder
            is_hook = processes.parent_of(caller) == holder.process.pid and not holder.is_made
            return is_hook and containers.first_process(holder.root, holder.id) is None
        return False

    def close(self) -> None:
        """Stops watching; the grants stay on disk for the next agent."""
        for grant_id in tuple(self._watches):
            self._forget_watch(grant_id)

    def _file(self, grant: KeptGrant) -> Path:
        return self._folder / f"{grant.id}{grant.ending}"


class Ledger(Protocol):
    """Who holds what of this node's GPUs: `LocalGrants` on one machine, `KubeletGrants` beside a
    kubelet. Where its source cannot be read it keeps its last state, and says so in `view.unknown`;
    nothing counts as free meanwhile."""

    @property
    def whereabouts(self) -> Whereabouts:
        """Finds the pod, or the container with a grant, that a process is in."""

    @property
    def pods_known(self) -> bool:
        """Whether a kubelet is served: then only pods hold grants, else no process is in one."""

    def load(self) -> None: ...

    async def refresh(self) -> None:
        """Asks the source of the grants; what could not be learned is in `view.unknown`."""

    @property
    def view(self) -> LedgerView:
        """Its parts compare equal to those of before where nothing has changed."""

    def add(self, grant: Grant) -> None: ...

    def end(self, grant: Grant) -> None: ...

    def close(self) -> None: ...
