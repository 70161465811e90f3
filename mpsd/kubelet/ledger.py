"""The ledger of a node whose GPUs kubelet gives away: kubelet's list of held devices, which stands
while it does not answer, and the journal of what it does not list yet, or at all (init containers).

Cycles ask kubelet once a second for a while after pods or its answers changed, otherwise rarely.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpsd.kubelet.client import KubeletUnavailable, held_devices
from mpsd.kubelet.dra.rules.claims import PreparedClaim, claim_holders
from mpsd.kubelet.rules import ledger as rules
from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry
from mpsd.kubelet.rules.node_pods import Kind, NodePod, PodKey
from mpsd.kubelet.rules.ungranted import ungranted, unserved
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import HeldGrant, LedgerView
from mpsd.model.policy import Policy
from mpsd.mps.records import NodeDomains
from mpsd.platform import clock, processes, records
from mpsd.platform.containers import PodProcesses
from mpsd.platform.kube_mirror import Mirror
from mpsd.platform.logs import Logger

_NEWS_S = 30.0  # how long kubelet and the API may lag behind what was answered
_NEWS_PAUSE_S = 1.0  # between two questions of cycles to kubelet meanwhile
_PROCESSES_S = 1.0  # between two looks at whether processes live of a claim that has left
_QUIET_S = 10.0  # between two questions to kubelet while nothing has changed in _NEWS_S
_ASK_AGAIN_S = 0.25  # when kubelet did not answer while a container starts
_DEADLINE_S = 5.0
_NOT_LISTED = "kubelet has not reported its allocations yet"


@dataclass(frozen=True, slots=True)
class _Journal:
    entries: tuple[JournalEntry, ...]


@dataclass(eq=False)
class KubeletGrants:
    """_socket: of kubelet's PodResources."""

    _socket: Path
    _journal: Path
    _pods: Mirror[NodePod]
    _domains: NodeDomains
    _policy: Callable[[], Policy]
    _log: Logger
    pods_known: ClassVar = True

    def __post_init__(self) -> None:
        self._trouble = ""  # why kubelet did not answer when it was last asked
        # why the journal is not known; empty where it is, or kubelet has made up for it
        self._unreadable = ""
        # The pods of which only that journal may know; None: not asked yet.
        self._unproven: frozenset[str] | None = None
        # how many there were, and the last that kubelet has answered
        self._questions = self._answered = 0
        self._noted = 0  # the last question asked before the last answer to Allocate
        self._asked_at = self._changed_at = time.monotonic()
        self._asked_with: tuple[object, ...] = ()  # what was known when kubelet was asked
        self._rows: tuple[NodePod, ...] = ()  # that `_requesting` was made from
        self._requesting: tuple[NodePod, ...] = ()
        self._counted: tuple[object, ...] = ()  # what `view` was made from
        self._counted_rows: tuple[NodePod, ...] = ()
        self._facts: tuple[object, ...] = ()  # what of these counts
        self._unallocated: frozenset[str] = frozenset()
        self._unserved: frozenset[str] = frozenset()  # by kubelet's last list
        self.claims: tuple[PreparedClaim, ...] = ()
        self.claims_unknown = ""  # why there may be more of them
        # ends the claim of this uid, which has left
        self.end_claim: Callable[[str], None] = lambda _uid: None
        # the pods of claims that have left in which processes live; when seen, and of which
        self._living: frozenset[str] = frozenset()
        self._living_at: tuple[float, tuple[PreparedClaim, ...]] = (float("-inf"), ())
        self.whereabouts = PodProcesses()
        self.view = LedgerView(unknown=(_NOT_LISTED,))
        self.held_devices: tuple[ContainerDevices, ...] = ()
        self.listed: frozenset[PodKey] = frozenset()  # the pods in kubelet's last list
        self.entries: tuple[JournalEntry, ...] = ()

    @property
    def pods_seen(self) -> tuple[NodePod, ...]:
        """Those that ask for a GPU; the very tuple of before where none has changed."""
        rows = self._pods.objects()
        if rows is not self._rows:
            self._rows = rows
            requesting = tuple(row for row in rows if row.requests)
            if not are_same(requesting, self._requesting):
                self._requesting = requesting
        return self._requesting

    @property
    def rows(self) -> tuple[NodePod, ...]:
        """All pods of this node that could be read."""
        return self._pods.objects()

    @property
    def pods_synced(self) -> bool:
        """Whether `rows` are all of them, as of now."""
        return self._pods.synced and self._pods.out_of_sync_since is None

    @property
    def is_answered(self) -> bool:
        """When it was last asked."""
        return self._answered > 0 and not self._trouble

    @property
    def is_current(self) -> bool:
        """Whether kubelet has listed what each container holds since anything was last given
        here."""
        return self.is_answered and self._answered > self._noted

    def set_unallocated(self, uids: frozenset[str]) -> None:
        """Sets the pods that have long been without what they ask for, and hold nothing."""
        if uids != self._unallocated:
            self._unallocated = uids
            self.count()

    def set_claims(self, claims: tuple[PreparedClaim, ...], unknown: str) -> None:
        """Sets the claims that hold a grant here. unknown: why there may be more, or empty."""
        self.claims = claims
        self.claims_unknown = unknown
        self.count()

    def _look_at_left(self, now: float) -> None:
        """Nobody has these claims any more; whether a process lives the kernel says."""
        left = tuple(claim for claim in self.claims if claim.left)
        looked_at, before = self._living_at
        if left and (left != before or now - looked_at >= _PROCESSES_S):
            pods = {pod.uid for claim in left for pod in claim.pods}
            self._living = self.whereabouts.living(pods)
            self._living_at = now, left

    async def refresh(self) -> None:
        now = time.monotonic()
        known = (self.pods_seen, self.entries)
        if not are_same(known, self._asked_with):
            self._changed_at = now
        self._look_at_left(now)
        pause_s = _QUIET_S
        if now - self._changed_at < _NEWS_S:
            pause_s = _NEWS_PAUSE_S
        if not self.is_answered or self._pods.out_of_sync_since is not None:
            pause_s = 0.0
        if now - self._asked_at >= pause_s:
            await self._ask(_DEADLINE_S)
        self.count()

    async def refresh_now(self, deadline_s: float = _DEADLINE_S) -> None:
        """Asks kubelet, and drops from the journal what nobody holds any more."""
        await self._ask(deadline_s)
        self.count()

    async def until_answered(self, deadline_s: float) -> str:
        """Empty once kubelet has answered, or why it did not by the deadline."""
        before = self._questions
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self.refresh_now()
                while self._answered <= before:
                    await asyncio.sleep(_ASK_AGAIN_S)
                    await self.refresh_now()
        if self._answered > before:
            return ""
        return self._trouble or "it has not answered yet"

    async def _ask(self, deadline_s: float) -> None:
        self._questions += 1
        question = self._questions
        entries = self.entries
        rows = self.rows if self.pods_synced else ()
        self._asked_at = time.monotonic()
        self._asked_with = (self.pods_seen, entries)
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
        # several tasks may ask at once, and a later question has its answer already
        if question < self._answered:
            return
        self._answered = question
        if self._trouble:
            self._log.info("kubelet lists devices again")
        if answer.held != self.held_devices:
            self.held_devices = answer.held
            self._changed_at = time.monotonic()
        self.listed = answer.pods
        if self.pods_synced:
            found = unserved(rows, answer.pods, answer.of_others, self._policy())
            if found != self._unserved:
                self._unserved = found
        self._trouble = ""
        if self._pods.synced:
            self._prove()
            right = rules.corrected(self.entries, entries, self.held_devices, self.pods_seen)
            self._keep(
                rules.still_needed(
                    right, self.held_devices, self.pods_seen, clock.boot_s() - _NEWS_S
                )
            )

    def _prove(self) -> None:
        """Replaces an unreadable journal once kubelet has listed the devices of every pod of
        then."""
        if not self._unreadable:
            return
        holding = {one.pod for one in self.held_devices if one.memory}
        unproven = frozenset(
            pod.uid for pod in self.pods_seen if not pod.is_finished and pod.key not in holding
        )
        if self._unproven is not None:
            unproven &= self._unproven
        self._unproven = unproven
        if not unproven - self._unallocated:
            self._unreadable = ""
            self._write(self.entries)
            reason = "kubelet has listed who holds which device"
            self._log.info("journal written again", reason=reason)

    def load(self) -> None:
        """Reads what an earlier agent answered in this boot. While the journal cannot be read,
        nothing counts as known before kubelet's list has made up for it."""
        found: tuple[JournalEntry, ...] = ()
        try:
            if read := records.read(self._journal, _Journal):
                found = read.entries
        except records.UnreadableRecord as error:
            self._log.warning("journal unreadable", file=str(self._journal), reason=error.reason)
            why = f"the journal of allocations cannot be read ({self._journal}: {error.reason})"
            remedy = "this ends by itself once kubelet has listed the devices of every pod here"
            self._unreadable = f"{why}; {remedy}"
        self.entries = found
        self._keep(tuple(entry for entry in found if entry.boot_id == processes.boot_id()))
        self.count()

    def note(self, entry: JournalEntry) -> None:
        self._noted = self._questions
        self._keep((*self.entries, entry))
        self.count()

    def _keep(self, entries: tuple[JournalEntry, ...]) -> None:
        if entries != self.entries:
            if not self._unreadable:
                self._write(entries)
            self.entries = entries

    def _write(self, entries: tuple[JournalEntry, ...]) -> None:
        self._journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        records.write(self._journal, _Journal(entries))

    def count(self) -> None:
        """Makes the view again where something that it is made from has changed. Once kubelet has
        listed the devices nothing is unknown: pods outlive it."""
        pods = self.pods_seen
        if self._rows is not self._counted_rows:
            self._counted_rows = self._rows
            facts = rules.counted(self._rows)
            if facts != self._facts:
                self._facts = facts
        trouble = self._unreadable
        if not self._answered:
            trouble = self._trouble or _NOT_LISTED
        known = self.held_devices, self.entries
        of_claims_seen = self.claims, self.claims_unknown, self._living
        without = self._unallocated, self._unserved
        others = self._facts, *without, trouble, self._policy(), self._domains.every
        sources = (*known, *of_claims_seen, *others)
        if are_same(sources, self._counted):
            return
        self._counted = sources
        policy = self._policy()
        grants = rules.pod_grants(*known, pods, self._domains.every, policy)
        held = [HeldGrant(grant, holder_alive=True) for grant in grants]
        of_claims: dict[str, str] = {}
        if self.claims:
            holders = claim_holders(self.claims, self._rows)
            held += [self._held(claim, holders[claim.uid]) for claim in self.claims]
            of_claims = {pod.uid: uid for uid, sharing in holders.items() for pod in sharing}
        judged = ungranted(self._rows, *known, frozenset().union(*without), policy)
        for uid in judged.keys() & of_claims.keys():
            del judged[uid]
        self.view = LedgerView(
            held=tuple(held),
            unknown=tuple(filter(None, (trouble, self.claims_unknown))),
            by_place=of_claims | rules.by_cgroup(grants, pods),
            ungranted=judged,
            ends={row.uid: row.ends for row in self._rows if row.ends},
        )

    def _held(self, claim: PreparedClaim, holders: tuple[PodName, ...]) -> HeldGrant:
        is_looked_at = claim in self._living_at[1]
        lives = any(pod.uid in self._living for pod in claim.pods) or not is_looked_at
        grant = claim.grant(holders)
        return HeldGrant(grant, holder_alive=not claim.left, others_alive=claim.left and lives)

    def add(self, grant: Grant) -> None:
        raise NotImplementedError("kubelet gives the grants here")

    def end(self, grant: Grant) -> None:
        """Kubelet ends those of devices itself."""
        self.end_claim(grant.id)

    def close(self) -> None:
        """The journal stays for the next agent."""


def are_same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Whether they hold the very same objects: a comparison would cost as much as counting."""
    return len(some) == len(others) and all(
        one is other for one, other in zip(some, others, strict=True)
    )
