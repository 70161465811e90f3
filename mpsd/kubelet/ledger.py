"""The ledger of a node whose GPUs kubelet gives: its word on who holds which device, joined with what mpsd answered it.

One rule: kubelet's word wins, and while it says nothing, what it said last stands. The journal adds what kubelet leaves
out (init containers) or does not say yet, and is of this boot or of none.

What kubelet says changes with pods and with what it is answered, and both are known here by themselves: so it is asked
at every look after something of that has changed, and else now and then.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mpsd.kubelet.kubelet_socket import KubeletUnavailable
from mpsd.kubelet.pod_resources import Kind, held_devices
from mpsd.kubelet.rules.allocation import JournalEntry
from mpsd.kubelet.rules.journal import corrected, still_needed
from mpsd.kubelet.rules.node_pods import Bystander, NodePod
from mpsd.kubelet.rules.pod_grants import ContainerDevices, by_cgroup, pod_grants
from mpsd.kubelet.rules.reconcile import Known, ungranted
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import HeldGrant
from mpsd.model.policy import Policy
from mpsd.platform import processes, records
from mpsd.platform.containers import PodProcesses
from mpsd.platform.kube_mirror import Mirror
from mpsd.platform.logs import Logger

_NEWS_S = 30.0  # what was answered in this time, kubelet and the API may not know of yet
_QUIET_S = 10.0  # between two questions to kubelet while nothing has changed in _NEWS_S
_ASK_AGAIN_S = 0.25  # a kubelet that did not answer a start
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
        self._heard = False  # whether kubelet has ever told this agent who holds what
        self._away = ""
        self._questions = self._answered = 0  # how many there were, and the newest that kubelet has answered
        self._asked_at = self._changed_at = time.monotonic()
        self._asked_beside: tuple[object, ...] = ()  # what was known when kubelet was asked
        self.whereabouts = PodProcesses()
        self._counted: tuple[object, ...] = ()  # what the grants were made from
        self._held: tuple[HeldGrant, ...] = ()
        self._by_cgroup: Mapping[str, str] = {}
        self._rows: tuple[NodePod | Bystander, ...] = ()  # that `_asking` is of
        self._asking: tuple[NodePod, ...] = ()
        self.ungranted: Mapping[str, PodName] = {}
        self._unallocated: frozenset[str] = frozenset()
        self.held_devices: tuple[ContainerDevices, ...] = ()
        self.listed: frozenset[tuple[str, str]] = frozenset()  # the pods that kubelet spoke of when asked last
        self.entries: tuple[JournalEntry, ...] = ()

    @property
    def pods_seen(self) -> tuple[NodePod, ...]:
        """Those that ask for a GPU; the very same tuple as before where none of them has changed."""
        rows = self._pods.objects()
        if rows is not self._rows:
            self._rows = rows
            asking = tuple(row for row in rows if isinstance(row, NodePod))
            self._asking = self._asking if are_same(asking, self._asking) else asking
        return self._asking

    def set_unallocated(self, uids: frozenset[str]) -> None:
        """The pods that have long been without what they ask: from now on they count as holding nothing."""
        if uids != self._unallocated:
            self._unallocated = uids
            self._count()

    def held_by_pod(self) -> Mapping[tuple[str, str], list[ContainerDevices]]:
        """What kubelet says that each pod's containers hold, by its namespace and name."""
        found: dict[tuple[str, str], list[ContainerDevices]] = {}
        for one in self.held_devices:
            found.setdefault(one.pod, []).append(one)
        return found

    @property
    def is_answered(self) -> bool:
        """Whether kubelet answered when it was last asked."""
        return self._heard and not self._away

    def load(self) -> None:
        """Finds what an earlier agent answered in this boot."""
        try:
            found = records.read(self._journal, list[JournalEntry]) or []
        except records.UnreadableRecord as error:
            self._log.warning("journal ignored", reason=str(error))
            found = []
        self.entries = tuple(found)
        self._keep(tuple(entry for entry in found if entry.boot_id == processes.boot_id()))
        self._count()

    async def refresh(self) -> None:
        """Asks kubelet where that may bring something new."""
        if self._may_bring_news():
            await self._ask()
        self._count()

    async def refresh_now(self, deadline_s: float = _DEADLINE_S) -> None:
        """Asks kubelet; forgets what nobody holds any more."""
        await self._ask(deadline_s)
        self._count()

    async def until_answered(self, deadline_s: float) -> str:
        """Asks kubelet until it answers; why it has not by the deadline, else empty."""
        before = self._questions
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self.refresh_now()
                while self._answered <= before:
                    await asyncio.sleep(_ASK_AGAIN_S)
                    await self.refresh_now()
        return "" if self._answered > before else self._away or "it has not answered yet"

    def _may_bring_news(self) -> bool:
        now, beside = time.monotonic(), (self.pods_seen, self.entries)
        if not are_same(beside, self._asked_beside):
            self._changed_at = now
        if self._away or not self._heard or self._pods.out_of_sync_since is not None:
            return True
        return now - self._changed_at < _NEWS_S or now - self._asked_at >= _QUIET_S

    async def _ask(self, deadline_s: float = _DEADLINE_S) -> None:
        self._questions += 1
        question, entries = self._questions, self.entries
        self._asked_at, self._asked_beside = time.monotonic(), (self.pods_seen, entries)
        resources = self._policy().resources
        try:
            names: Mapping[str, Kind] = {resources.memory: "memory", resources.percent: "percent"}
            said = await held_devices(self._socket, names, deadline_s)
        except KubeletUnavailable as error:
            if question < self._answered:
                return
            if not self._away:
                self._log.warning("kubelet does not say who holds what", reason=str(error))
            self._away = str(error)
            return
        if question < self._answered:  # several may ask at once, and a newer question has its answer already
            return
        self._answered = question
        if self._away:
            self._log.info("kubelet says again who holds what")
        if said.held != self.held_devices:
            self.held_devices, self._changed_at = said.held, time.monotonic()
        self.listed = said.pods
        self._away, self._heard = "", True
        if self._pods.synced:
            right = corrected(self.entries, entries, self.held_devices, self.pods_seen)
            self._keep(still_needed(right, self.held_devices, self.pods_seen, time.time() - _NEWS_S))

    def note(self, entry: JournalEntry) -> None:
        """Writes down an answer, before it is given."""
        self._keep((*self.entries, entry))
        self._count()

    def _keep(self, entries: tuple[JournalEntry, ...]) -> None:
        if entries != self.entries:
            self._journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records.write(self._journal, entries)
            self.entries = entries

    def _count(self) -> None:
        """Makes the grants anew where something that they come from is another than before."""
        pods, policy = self.pods_seen, self._policy()
        sources = (self.held_devices, self.entries, self._rows, self._unallocated, policy)
        if are_same(sources, self._counted):
            return
        self._counted = sources
        grants = pod_grants(self.held_devices, self.entries, pods, self._domains, policy)
        held = tuple(HeldGrant(grant, holder_alive=True) for grant in grants)
        self._held = self._held if held == self._held else held
        self._by_cgroup = by_cgroup(grants, pods)
        bystanders = tuple(row for row in self._rows if isinstance(row, Bystander))
        known = Known(pods, bystanders, self.held_devices, self.entries, self._unallocated)
        self.ungranted = ungranted(known, policy)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Kubelet's silence counts only where it has never spoken: its last word stands, since pods outlive it."""
        return () if self._heard else (self._away or "kubelet has not said yet who holds what",)

    def held(self) -> Iterable[HeldGrant]:
        """By what the API says now: a pod that it has just made known is not waited for until the next look."""
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
    """Whether they are the very same objects, one by one; to compare what is in them would cost as much as to count."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
