"""Scans the processes on the GPUs: who they are, under which grant they run, and which of them are mpsd's own.

What a process was started with, and in which pod or container, is read once and kept while that very process lives. A
process in a pod or container belongs to the grant of that alone, and beside a kubelet nothing else counts: a process
that could choose its mark could hide behind another's grant.

A scan that finds nothing new costs one call to NVML a GPU, and returns the very same clients.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpsd.model.cuda_limit_parser import VARIABLES
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client, DomainRecord
from mpsd.platform import processes, run_directory
from mpsd.platform.containers import Whereabouts
from mpsd.platform.nvml import Nvml, NvmlFailed, Uses
from mpsd.platform.processes import ProcessSet

_MIB = 1024 * 1024
_ON_MPS_S = 2.0  # how long the list of processes on MPS counts while no process comes
_TRIES = 10  # to read an environment that is empty, as it is during an exec


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose a process can be. servers: the pids of MPS servers, which are skipped. grants: those that a mark may name,
    which are programs'.

    holders: from a holder's pid to its grant. pods: from what `Whereabouts` says of a process to its grant.
    """

    servers: frozenset[int] = frozenset()
    grants: frozenset[str] = frozenset()
    holders: Mapping[int, str] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scan:
    """clients: every living process on the GPUs that could be seen, but MPS servers. unknown: why some could not be.

    unseen: the UUIDs of those.
    """

    clients: tuple[Client, ...]
    unknown: tuple[str, ...]
    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    identity: ProcessIdentity
    mark: str | None
    command: str
    pod: str | None
    environment: Mapping[str, str] | None
    tries: int  # that are left at an environment that was empty


@dataclass(slots=True)
class _GpuScan:
    """The last scan of a GPU."""

    uses: Uses = ()
    pids: frozenset[int] = frozenset()
    on_mps: frozenset[int] = frozenset()
    mps_asked_at: float = float("-inf")
    clients: dict[int, Client] = field(default_factory=dict)
    failed: str = ""


class GpuProcessScanner:
    """gpus: their UUIDs. mark: the variable in whose value a process carries the id of its grant, through every child
    it starts; None where programs have none. whereabouts: None where nobody is in a pod or container.
    """

    def __init__(
        self, nvml: Nvml, gpus: Iterable[str], mark: str | None, whereabouts: Whereabouts | None = None
    ) -> None:
        self._nvml = nvml
        self._gpus = {uuid: _GpuScan() for uuid in gpus}
        self._mark = mark
        self._whereabouts = whereabouts
        self._owners = Owners()
        self._known: dict[int, _KnownProcess] = {}
        self._living = ProcessSet()  # of those that are known
        self._settled = True  # whether nothing about them is left to read, and each is held by a pidfd
        self._last = Scan((), ())

    def scan(self, owners: Owners, *, sure: bool = False) -> Scan:
        """The very same as before where nothing has changed. sure: asks NVML who is on MPS in any case."""
        ended = self._living.ask()
        for pid in ended:
            self._known.pop(pid, None)
        now = time.monotonic()
        sure = sure or owners.servers != self._owners.servers
        anew = bool(ended) or owners != self._owners or not self._settled
        if anew:
            self._settled = True
        self._owners = owners
        changed = [self._scan_gpu(uuid, one, now, sure=sure, anew=anew) for uuid, one in self._gpus.items()]
        if any(changed):
            self._last = Scan(
                tuple([client for one in self._gpus.values() for client in one.clients.values()]),
                tuple([one.failed for one in self._gpus.values() if one.failed]),
                frozenset([uuid for uuid, one in self._gpus.items() if one.failed]),
            )
            self._forget()
        return self._last

    def _scan_gpu(self, uuid: str, one: _GpuScan, now: float, *, sure: bool, anew: bool) -> bool:
        """Whether anything has changed."""
        try:
            uses, on_mps = self._ask(uuid, one, now, sure=sure)
        except NvmlFailed as error:
            same = one.failed == str(error)
            self._gpus[uuid] = _GpuScan(failed=str(error))
            return not same
        if uses == one.uses and on_mps == one.on_mps and not anew and not one.failed:
            return False
        before, one.clients = one.clients, {}
        one.uses, one.on_mps, one.failed = uses, on_mps, ""
        for pid, used_bytes in _each_once(uses).items():
            known = None if pid in self._owners.servers else self._who(pid)
            if known:
                used_mib = None if used_bytes is None else used_bytes // _MIB
                one.clients[pid] = self._client(before.get(pid), known, uuid, used_mib, on_mps=pid in on_mps)
        return True

    def _ask(self, uuid: str, one: _GpuScan, now: float, *, sure: bool) -> tuple[Uses, frozenset[int]]:
        """Who uses the GPU, and who of them is on MPS; the latter is asked first, where it may have changed."""
        if not sure and now - one.mps_asked_at < _ON_MPS_S:
            uses = self._nvml.uses(uuid)
            if uses == one.uses:
                return uses, one.on_mps
            before, one.pids = one.pids, frozenset([pid for pid, _ in uses])
            if before >= one.pids:
                return uses, one.on_mps & one.pids  # one that leaves and comes back, as at an exec, is asked for again
        one.mps_asked_at = now
        on_mps = self._nvml.mps_pids(uuid)
        uses = self._nvml.uses(uuid)
        one.pids = frozenset([pid for pid, _ in uses])
        return uses, on_mps

    def _client(
        self, before: Client | None, known: _KnownProcess, uuid: str, used_mib: int | None, *, on_mps: bool
    ) -> Client:
        """The very client of the scan before where nothing of it has changed."""
        grant = self._grant_of(known)
        if (
            before
            and before.used_mib == used_mib
            and before.on_mps is on_mps
            and before.grant == grant
            and before.process is known.identity
            and before.environment is known.environment
        ):
            return before
        return Client(known.identity, uuid, used_mib, on_mps, known.command, grant, known.pod, known.environment)

    def _grant_of(self, known: _KnownProcess) -> str | None:
        if known.pod is not None or self._mark is None:
            return self._owners.pods.get(known.pod or "")
        return known.mark if known.mark in self._owners.grants else self._owners.holders.get(known.identity.pid)

    def _who(self, pid: int) -> _KnownProcess | None:
        known = self._known.get(pid)
        if known and not known.tries and pid in self._living:
            return known
        identity = processes.identity_of(pid)
        if identity is None:
            return None
        if known is None or known.identity != identity or known.tries:
            left = known.tries if known and known.identity == identity else _TRIES
            known = self._known[pid] = self._read(identity, left)
            self._living.add(identity)
        if known.tries or pid not in self._living:
            self._settled = False
        return known

    def _read(self, identity: ProcessIdentity, tries: int) -> _KnownProcess:
        found = processes.environment_of(identity.pid)
        return _KnownProcess(
            identity=identity,
            mark=(found or {}).get(self._mark or ""),
            command=processes.command_of(identity.pid),
            pod=self._whereabouts.owner_of(identity.pid) if self._whereabouts else None,
            environment={name: found[name] for name in VARIABLES if name in found} if found else None,
            tries=tries - 1 if found == {} else 0,
        )

    def _forget(self) -> None:
        """Drops processes that are on no GPU any more."""
        seen = {pid for one in self._gpus.values() for pid in one.clients}
        if len(seen) != len(self._known):
            self._known = {pid: known for pid, known in self._known.items() if pid in seen}
            self._living.keep_only(seen)


def _each_once(uses: Uses) -> dict[int, int | None]:
    """By pid; the use of a process that is listed twice is summed."""
    found: dict[int, int | None] = {}
    for pid, used_bytes in uses:
        before = found.get(pid, 0)
        found[pid] = None if used_bytes is None or before is None else before + used_bytes
    return found


class OwnProcesses:
    """Which processes on the GPUs are mpsd's own: MPS servers that just started, and clients of the canary.

    Own is what descends from mpsd or from a control daemon of its records, by the kernel's word, and whatever mpsd
    itself descends from. directory: mpsd's run directory, whose holder is `mpsd control`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._above = frozenset(processes.line_of(os.getpid()))
        self._known: frozenset[ProcessIdentity] = frozenset()

    def among(self, asked: Iterable[ProcessIdentity], records: Iterable[DomainRecord]) -> frozenset[ProcessIdentity]:
        """Those of `asked` that are mpsd's own. One that was is as long as it lives."""
        asked = frozenset(asked)
        unknown = asked - self._known
        if unknown:
            roots = self._roots(records)
            found = {
                one for one in unknown if one.pid in self._above or not roots.isdisjoint(processes.line_of(one.pid))
            }
            self._known = (self._known & asked) | found
        else:
            self._known &= asked
        return self._known

    def _roots(self, records: Iterable[DomainRecord]) -> frozenset[int]:
        roots = {os.getpid(), run_directory.holder(self._directory) or os.getpid()}
        for record in records:
            roots.update(record.servers, [record.daemon.pid] if record.daemon else [])
        return frozenset(roots)
