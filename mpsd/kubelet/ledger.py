"""The ledger of a node whose GPUs kubelet gives away: kubelet's list of held devices, joined with the journal.

While kubelet does not answer, its last list stands. The journal, which is of this boot only, adds what kubelet does not
list (init containers) or does not list yet. Kubelet's list changes with pods and with what it is answered, and the
agent sees both: so kubelet is asked at every look after such a change, and otherwise rarely.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mpsd.kubelet.client import KubeletUnavailable, held_devices
from mpsd.kubelet.rules.ledger import (
    ContainerDevices,
    JournalEntry,
    Kind,
    by_cgroup,
    corrected,
    pod_grants,
    still_needed,
    ungranted,
)
from mpsd.kubelet.rules.node_pods import Bystander, NodePod, PodKey
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import HeldGrant
from mpsd.model.policy import Policy
from mpsd.platform import processes, records
from mpsd.platform.containers import PodProcesses
from mpsd.platform.kube_mirror import Mirror
from mpsd.platform.logs import Logger

_NEWS_S = 30.0  # how long kubelet and the API may lag behind what was answered
_QUIET_S = 10.0  # between two questions to kubelet while nothing has changed in _NEWS_S
_ASK_AGAIN_S = 0.25  # when kubelet did not answer while a container starts
_DEADLINE_S = 5.0


class KubeletGrants:
    """pods: those of this node. domains: of this node. socket: of kubelet's PodResources."""

    pods_known = True

    def __init__(
        self,
        socket: Path,
        journal: Path,
        pods: Mirror[NodePod | Bystander],
        domains: tuple[Domain, ...],
        policy: Callable[[], Policy],
        log: Logger,
    ) -> None:
        self._socket = socket
        self._journal = journal
        self._pods = pods
        self._domains = domains
        self._policy = policy
        self._log = log
        self._trouble = ""  # why kubelet did not answer when it was last asked
        self._questions = self._answered = 0  # how many there were, and the last that kubelet has answered
        self._asked_at = self._changed_at = time.monotonic()
        self._asked_with: tuple[object, ...] = ()  # what was known when kubelet was asked
        self._rows: tuple[NodePod | Bystander, ...] = ()  # that `_requesting` was made from
        self._requesting: tuple[NodePod, ...] = ()
        self._counted: tuple[object, ...] = ()  # what the grants were made from
        self._held: tuple[HeldGrant, ...] = ()
        self._by_cgroup: Mapping[str, str] = {}
        self._unallocated: frozenset[str] = frozenset()
        self.whereabouts = PodProcesses()
        self.ungranted: Mapping[str, PodName] = {}
        self.held_devices: tuple[ContainerDevices, ...] = ()
        self.listed: frozenset[PodKey] = frozenset()  # the pods in kubelet's last list
        self.entries: tuple[JournalEntry, ...] = ()

    @property
    def pods_seen(self) -> tuple[NodePod, ...]:
        """Those that ask for a GPU; the very same tuple as before where none of them has changed."""
        rows = self._pods.objects()
        if rows is not self._rows:
            self._rows = rows
            requesting = tuple(row for row in rows if isinstance(row, NodePod))
            self._requesting = self._requesting if are_same(requesting, self._requesting) else requesting
        return self._requesting

    @property
    def is_answered(self) -> bool:
        """Whether kubelet answered when it was last asked."""
        return self._answered > 0 and not self._trouble

    def set_unallocated(self, uids: frozenset[str]) -> None:
        """Sets the pods that have long been without what they ask for: they count as holding nothing."""
        if uids != self._unallocated:
            self._unallocated = uids
            self._count()

    # -- what kubelet lists ----------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Asks kubelet if there may be something new."""
        now, known = time.monotonic(), (self.pods_seen, self.entries)
        if not are_same(known, self._asked_with):
            self._changed_at = now
        unsure = not self.is_answered or self._pods.out_of_sync_since is not None
        if unsure or now - self._changed_at < _NEWS_S or now - self._asked_at >= _QUIET_S:
            await self._ask(_DEADLINE_S)
        self._count()

    async def refresh_now(self, deadline_s: float = _DEADLINE_S) -> None:
        """Asks kubelet, and drops from the journal what nobody holds any more."""
        await self._ask(deadline_s)
        self._count()

    async def until_answered(self, deadline_s: float) -> str:
        """Asks kubelet until it answers; empty, or why it did not by the deadline."""
        before = self._questions
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self.refresh_now()
                while self._answered <= before:
                    await asyncio.sleep(_ASK_AGAIN_S)
                    await self.refresh_now()
        return "" if self._answered > before else self._trouble or "it has not answered yet"

    async def _ask(self, deadline_s: float) -> None:
        self._questions += 1
        question, entries = self._questions, self.entries
        self._asked_at, self._asked_with = time.monotonic(), (self.pods_seen, entries)
        resources = self._policy().resources
        kinds: Mapping[str, Kind] = {resources.memory: "memory", resources.percent: "percent"}
        try:
            answer = await held_devices(self._socket, kinds, deadline_s)
        except KubeletUnavailable as error:
            if question > self._answered:
                if not self._trouble:
                    self._log.warning("kubelet does not list devices", reason=str(error))
                self._trouble = str(error)
            return
        if question < self._answered:  # several tasks may ask at once, and a later question has its answer already
            return
        self._answered = question
        if self._trouble:
            self._log.info("kubelet lists devices again")
        if answer.held != self.held_devices:
            self.held_devices, self._changed_at = answer.held, time.monotonic()
        self.listed, self._trouble = answer.pods, ""
        if self._pods.synced:
            right = corrected(self.entries, entries, self.held_devices, self.pods_seen)
            self._keep(still_needed(right, self.held_devices, self.pods_seen, time.time() - _NEWS_S))

    # -- the journal -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads what an earlier agent answered in this boot."""
        try:
            found = records.read(self._journal, list[JournalEntry]) or []
        except records.UnreadableRecord as error:
            self._log.warning("journal ignored", reason=str(error))
            found = []
        self.entries = tuple(found)
        self._keep(tuple(entry for entry in found if entry.boot_id == processes.boot_id()))
        self._count()

    def note(self, entry: JournalEntry) -> None:
        """Records an answer, before it is given."""
        self._keep((*self.entries, entry))
        self._count()

    def _keep(self, entries: tuple[JournalEntry, ...]) -> None:
        if entries != self.entries:
            self._journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records.write(self._journal, entries)
            self.entries = entries

    # -- the grants ------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Makes the grants again where something that they are made from has changed."""
        pods, policy = self.pods_seen, self._policy()
        sources = (self.held_devices, self.entries, self._rows, self._unallocated, policy)
        if are_same(sources, self._counted):
            return
        self._counted = sources
        grants = pod_grants(self.held_devices, self.entries, pods, self._domains, policy)
        held = tuple(HeldGrant(grant, holder_alive=True) for grant in grants)
        self._held = self._held if held == self._held else held
        self._by_cgroup = by_cgroup(grants, pods)
        self.ungranted = ungranted(self._rows, self.held_devices, self.entries, self._unallocated, policy)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why the grants are not known; () once kubelet has listed them: pods outlive it, so its last list stands."""
        return () if self._answered else (self._trouble or "kubelet has not listed who holds which device yet",)

    def held(self) -> Iterable[HeldGrant]:
        """The grants by what the API reports now, not at the last look."""
        self._count()
        return self._held

    def holders(self) -> Mapping[int, str]:
        return {}

    def pods(self) -> Mapping[str, str]:
        """By the uid that the pod's cgroups have."""
        return self._by_cgroup

    def add(self, grant: Grant) -> None:
        raise NotImplementedError("kubelet gives the grants here")

    def end(self, grant: Grant) -> None:
        """Kubelet ends them too."""

    def close(self) -> None:
        """The journal stays for the next agent."""


def are_same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Whether they hold the very same objects: to compare their contents would cost as much as to count again."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
