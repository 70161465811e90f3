"""The clients of one domain: who they are, known by pidfd while they live, and how each ended. Any
tenant may write log lines, so a client is who the server lists."""

import math
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import EndRecord, FaultHit
from mpsd.mps.rules.faults import ClientDeath, recorded_command
from mpsd.platform import clock, processes, records
from mpsd.platform.containers import PodProcesses, ProgramCgroups
from mpsd.platform.event_loop import DeathWatch

_FIRST_LIST_S = 0.1  # after a process has connected: its context takes as long
_LONGEST_LIST_S = 20.0  # between two lists while some have connected and are not listed
_LISTS_APART_S = 0.25  # however many connect: each list costs a process
_KEPT_S = 2.0  # how long an end is remembered
_MOST_UNLISTED = 256
_LONGEST_COMMAND = 120  # characters


@dataclass(slots=True)
class _Connected:
    """A living process that has connected, or that a line in the log names."""

    who: FaultHit
    owner: str
    #: seconds of CLOCK_BOOTTIME
    since_s: float
    watch: DeathWatch
    #: whether the server has listed it
    is_client: bool = False


class DomainClients:
    """on_end: called at every end of a client. on_last_end: called with that of the last known one.
    on_unlisted_end: called where one
    that had connected was gone before it was listed, and did not end well as far as is known. ends:
    the folder of mpsd's ends."""

    def __init__(
        self,
        on_end: Callable[[], None],
        on_last_end: Callable[[ClientDeath], None],
        on_unlisted_end: Callable[[], None],
        ends: Path,
    ) -> None:
        self._on_end = on_end
        self._on_last_end = on_last_end
        self._on_unlisted_end = on_unlisted_end
        self._ends = ends
        self._pods, self._programs = PodProcesses(), ProgramCgroups()
        self._connected: dict[int, _Connected] = {}  # by pid, the oldest first
        self._deaths: list[ClientDeath] = []
        self._unlisted: list[ClientDeath] = []  # of processes that the server had not listed yet
        self._list_at = math.inf  # monotonic
        self._list_pause_s = _FIRST_LIST_S
        self._listed_at = -math.inf
        self._named = 0  # by the log, since the last list

    def connected(self, pid: int) -> None:
        """By the log's word, so that its end is seen; it is a client once the server lists it. Too
        many before the next list, which a tenant may name, are not looked at."""
        self._named += 1
        if self._named > _MOST_UNLISTED:
            self.ask_for_list()
            return
        is_gone = False
        try:
            is_new = self._hold(pid)
            if not is_new:
                is_gone = processes.identity_of(pid) is None
        except OSError as error:
            if not processes.is_shortage(error):
                raise
            is_new = True  # it is known once it is listed, and mpsd can look at it
        if is_new:
            self.ask_for_list()
        if is_gone:
            self._on_unlisted_end()

    def ask_for_list(self) -> None:
        self._list_pause_s = _FIRST_LIST_S
        self._ask_for_list(_FIRST_LIST_S)

    def _ask_for_list(self, after_s: float) -> None:
        soonest = max(time.monotonic() + after_s, self._listed_at + _LISTS_APART_S)
        self._list_at = min(self._list_at, soonest)

    @property
    def list_due_s(self) -> float | None:
        """Seconds until the server should be asked for its clients; None where nobody waits."""
        if self._list_at == math.inf:
            return None
        return max(0.0, self._list_at - time.monotonic())

    def listed(self, pids: Collection[int], asked_s: float) -> dict[int, FaultHit]:
        """By the server's word: who is known and lives, by pid. asked_s: when asked, by
        CLOCK_BOOTTIME. OSError in a shortage."""
        self._listed_at = time.monotonic()
        self._list_at = math.inf
        self._named = 0
        for death in tuple(self._unlisted):
            # before the answer came
            if death.at_s >= asked_s and death.client.process.pid in pids:
                self._unlisted.remove(death)
                self._note(death)
        known = {}
        for pid in pids:
            self._hold(pid)
            if one := self._connected.get(pid):
                one.is_client = True
                known[pid] = one.who
        if not all(one.is_client for one in self._connected.values()):
            self._ask_for_list(self._list_pause_s)
            self._list_pause_s = min(2 * self._list_pause_s, _LONGEST_LIST_S)
        return known

    def _hold(self, pid: int) -> bool:
        """Whether this is a process that was not known, and no client of mpsd's own."""
        identity = processes.identity_of(pid)
        known = self._connected.get(pid)
        if identity is None or (known and known.who.process == identity):
            return False
        if processes.parent_of(pid) == os.getpid():
            return False
        pod = self._pods.owner_of(pid)
        owner = pod or self._pods.cgroups_of(pid)
        grant = None
        if not pod:
            grant = self._programs.grant_of(identity)
        command = recorded_command(processes.command_of(pid))[:_LONGEST_COMMAND]
        if not processes.is_alive(identity):  # then what was read may be another's
            return False
        self._forget(pid)
        watch = DeathWatch(identity, lambda: self._ended(identity))
        who = FaultHit(identity, command, pod, grant=grant)
        self._connected[pid] = _Connected(who, owner, clock.boot_s(), watch)
        unlisted = [pid for pid, one in self._connected.items() if not one.is_client]
        if len(unlisted) > _MOST_UNLISTED:
            self._forget(unlisted[0])
        return True

    def _ended(self, process: ProcessIdentity) -> None:
        one = self._connected.get(process.pid)
        if one is None or one.who.process != process:
            return
        del self._connected[process.pid]
        status = one.watch.status
        now_s = clock.boot_s()
        signum = os.WTERMSIG(status or 0)
        how = self._how_ended(process, status)
        death = ClientDeath(one.who, one.owner, now_s, signum, how, is_well=status == 0)
        if one.is_client:
            self._note(death)
            self._on_end()
        else:
            self._unlisted = [*_recent(self._unlisted, now_s), death]
            if not death.is_well:
                self._on_unlisted_end()

    def _how_ended(self, process: ProcessIdentity, status: int | None) -> str:
        with suppress(records.UnreadableRecord, OSError):
            end = records.read(self._ends / f"{process.pid}.json", EndRecord)
            if end and end.is_killed and end.process == process:
                return f"ended by mpsd ({end.reason})"
        return processes.how_ended(status)

    def _note(self, death: ClientDeath) -> None:
        self._deaths = [*_recent(self._deaths, death.at_s), death]
        if not self.living(death.at_s):
            self._on_last_end(death)

    def living(self, before_s: float) -> tuple[FaultHit, ...]:
        """Those that the server has listed, and that had connected by then (CLOCK_BOOTTIME)."""
        return tuple(
            one.who for one in self._connected.values() if one.is_client and one.since_s <= before_s
        )

    @property
    def deaths(self) -> tuple[ClientDeath, ...]:
        """Of clients, of late."""
        return tuple(self._deaths)

    def forget(self) -> None:
        """Their server is gone."""
        for pid in [*self._connected]:
            self._forget(pid)
        self._list_at = math.inf

    def _forget(self, pid: int) -> None:
        if known := self._connected.pop(pid, None):
            known.watch.close()


def _recent(deaths: list[ClientDeath], now_s: float) -> list[ClientDeath]:
    return [one for one in deaths if one.at_s >= now_s - _KEPT_S][-_MOST_UNLISTED:]
