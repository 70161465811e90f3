"""Prepares resource claims for kubelet. What a claim holds is in the journal before kubelet is
answered, and is not judged anew where kubelet asks again, as after a kill of either: it gets the
same answer, also while the API server is away.

A claim that kubelet gives up has left: its grant ends once the agent sees no process of it, so that
nobody gets memory that a program still holds.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.dra.rules import cdi
from mpsd.kubelet.dra.rules import claims as rules
from mpsd.kubelet.dra.rules.claims import ClaimNode, PreparedClaim
from mpsd.kubelet.ledger import KubeletGrants, are_same
from mpsd.kubelet.plugin_server import StartDeferred
from mpsd.kubelet.rules.allocation import Answer, NodeConditions, memory_answer
from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY
from mpsd.model.grants import Gpu
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, shortened
from mpsd.platform import clock, processes, records
from mpsd.platform.event_loop import Shortages
from mpsd.platform.kube import RESOURCE_CLAIMS, Kube, KubeError, NotFound
from mpsd.platform.logs import logger

_ANSWER_S = 6.0
_START_S = 20.0  # kubelet waits for 45 s
_LOOK_S = 5.0
_WHOLE_PERCENT = 100
_END_S = 3.0  # that kubelet waits for the end of what it gives up
_API_LAG_S = 1.0  # kubelet may know a pod before the agent does
_LOOK_AGAIN_S = 0.05
_LEFT_S = 60.0  # that a claim must be without any pod before mpsd asks whether it is still there


@dataclass(frozen=True, slots=True)
class _ClaimJournal:
    claims: tuple[PreparedClaim, ...]


@dataclass(frozen=True, slots=True)
class ClaimPlace:
    """Where claims are served. driver: empty where they are no longer. pool: the name of the node.
    journal: the file of what is prepared. cdi: the container runtime's folder of devices. registry:
    kubelet's plugins_registry."""

    driver: str
    pool: str
    gpus: Callable[[], tuple[Gpu, ...]]
    journal: Path
    cdi: Path
    registry: Path
    conditions: NodeConditions


class ClaimDriver:
    """agent: raises limits for claims, and ends their grants."""

    def __init__(
        self,
        place: ClaimPlace,
        agent: AgentRole,
        ledger: KubeletGrants,
        kube: Kube,
        policy: Callable[[], Policy],
    ) -> None:
        self._place = place
        self._agent = agent
        self._ledger = ledger
        self._kube = kube
        self._policy = policy
        self._log = logger(role="DRA driver")
        self._shortages = Shortages(self._log)
        self._lock = asyncio.Lock()  # what a claim may have depends on what the one before it got
        self._claims: dict[str, PreparedClaim] = {}  # by uid
        self._unreadable = ""  # why the journal is not known; empty where it is
        # why the last look at what kubelet does not tell failed; empty where it did not
        self._trouble = ""
        # of claims without a pod, and of pods that are gone, by uid
        self._absent_since: dict[str, float] = {}
        self._noted: tuple[object, ...] = ()  # what the journal's pods were last compared with
        ledger.end_claim = self._end

    @property
    def _node(self) -> ClaimNode:
        """With the domains of now: a claim of one GPU may be in one that was joined for others."""
        place = self._place
        return ClaimNode(
            place.driver, place.pool, place.gpus(), self._agent.domains.now, processes.boot_id()
        )

    # -- the journal

    def load(self) -> None:
        """Reads what an earlier agent prepared in this boot. While the journal cannot be read, and
        is not made again from the API, nothing counts as known."""
        found: tuple[PreparedClaim, ...] = ()
        try:
            if journal := records.read(self._place.journal, _ClaimJournal):
                found = journal.claims
        except records.UnreadableRecord as error:
            self._log.warning("journal unreadable", file=str(error.path), reason=error.reason)
            why = f"the journal of claims cannot be read ({error})"
            self._unreadable = f"{why}; mpsd reads them from the API again"
        boot_id = processes.boot_id()
        self._claims = {claim.uid: claim for claim in found if claim.boot_id == boot_id}
        self._count()
        if not self._unreadable and self._place.driver:
            self._sweep_files()
        self._log_unserved()

    def _log_unserved(self) -> None:
        if self._claims and not self._place.driver:
            claims = shortened([str(claim) for claim in self._claims.values()])
            remedy = "delete the pods that have them, or serve claims here again"
            reason = f"they keep their GPUs until then; {remedy} so that kubelet can end them"
            self._log.warning("claims not served", claims=claims, reason=reason)

    def _keep(self, claims: Mapping[str, PreparedClaim]) -> None:
        """OSError where it cannot be written; then nothing has changed."""
        if claims != self._claims or self._unreadable:
            self._place.journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records.write(self._place.journal, _ClaimJournal(tuple(claims.values())))
            self._claims = dict(claims)
            self._unreadable = ""
            self._count()

    def _keep_one(self, claim: PreparedClaim) -> None:
        self._keep({**self._claims, claim.uid: claim})

    def _count(self) -> None:
        self._ledger.set_claims(tuple(self._claims.values()), self._unreadable)

    def note_pods(self) -> None:
        """Writes down the pods that have come to a claim: kubelet does not ask again for them, and
        their processes must be known while the API server is away."""
        rows = self._ledger.rows
        claims = self._claims
        if self._unreadable or are_same((rows, claims), self._noted):
            return
        with self._shortages.survived("write the journal of claims"):
            holders = rules.claim_holders(tuple(claims.values()), rows)
            self._keep({uid: rules.refreshed(claim, holders[uid]) for uid, claim in claims.items()})
            self._noted = rows, self._claims

    # -- what kubelet asks

    async def prepare(
        self, namespace: str, name: str, uid: str
    ) -> tuple[PreparedClaim, tuple[str, ...]]:
        """The claim, and what its containers get beside its own CDI devices. InvalidInput,
        StartDeferred, KubeError or OSError; kubelet tries again."""
        async with self._lock:
            claim = await self._prepared(namespace, name, uid)
        if why := await self._agent.until_allowed(claim.domain, claim.memory_mib, _START_S):
            raise StartDeferred(f"{claim} waits: {why}")
        answer = memory_answer(claim.allocation, self._place.conditions)
        self._write_file(claim, answer)
        self._log.info("prepared", claim=str(claim), gpus=claim.gpus, memory_mib=claim.memory_mib)
        return claim, answer.cdi

    async def _prepared(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        if self._unreadable:
            raise StartDeferred(self._unreadable)
        before = self._claims.get(uid)
        if before and not before.left:
            # what it holds is known; only who has come to it is news
            with suppress(KubeError, InvalidInput):
                now = await self._read(namespace, name, uid)
                self._keep_one(rules.refreshed(self._claims[uid], now.pods))
            return self._claims[uid]
        if silent := await self._ledger.until_answered(_ANSWER_S):
            raise StartDeferred(f"kubelet does not list who holds which device: {silent}")
        if unknown := self._ledger.view.unknown:
            raise StartDeferred("; ".join(unknown))
        claim = await self._with_priority(await self._read(namespace, name, uid))
        for old in rules.replaced_by(claim, self._claims.values()):
            self._path(old.uid).unlink(missing_ok=True)
            self._keep_one(old)
            reason = "deleted, and another has its name"
            self._log.info("unprepared", claim=str(old), uid=old.uid, reason=reason)
        wrong = rules.other_claim_of(claim, self._claims.values())
        if before := self._claims.get(uid):
            again = rules.taken_up(before, claim)
            if not (wrong or again):
                wrong = f"{claim} was allocated anew, and processes that had it before still run"
            claim = again or claim
        elif not wrong:
            others = [held.grant for held in self._ledger.view.held]
            wrong = rules.why_no_room(claim, others, self._node, self._policy())
        if wrong:
            raise StartDeferred(wrong)
        self._keep_one(claim)
        return claim

    async def _read(
        self, namespace: str, name: str, uid: str, started: int | None = None
    ) -> PreparedClaim:
        thing = await self._kube.get(RESOURCE_CLAIMS, name, namespace)
        return rules.read_claim(thing, uid, self._node, self._policy(), clock.wall_s(), started)

    async def _with_priority(self, claim: PreparedClaim) -> PreparedClaim:
        """Once its pods are known."""
        deadline = time.monotonic() + _API_LAG_S
        while self._policy().gpu_priority.by != "none" and time.monotonic() < deadline:
            if {row.identity for row in self._ledger.rows}.issuperset(claim.pods):
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        return rules.with_priority(claim, self._ledger.rows, self._policy())

    async def unprepare(self, uid: str) -> None:
        """Gives the claim up, and waits a moment for its end. OSError where that is not
        recorded."""
        async with self._lock:
            self._path(uid).unlink(missing_ok=True)
            # without its file and without processes it does not count when that is made again
            if self._unreadable:
                raise StartDeferred(self._unreadable)
            if claim := self._claims.get(uid):
                self._leave(claim, "kubelet has given it up")
        if claim and not await self._agent.until_ended(uid, _END_S):
            reason = "processes of its pods still run; its grant ends with them"
            self._log.warning("grant kept", claim=str(claim), reason=reason)

    def _leave(self, claim: PreparedClaim, why: str) -> None:
        if not claim.left:
            self._keep_one(replace(claim, left=True))
            self._log.info("unprepared", claim=str(claim), reason=why)

    def _end(self, uid: str) -> None:
        """Of a claim that has left, now that nothing of it lives. OSError."""
        claim = self._claims.get(uid)
        if claim and claim.left:  # else kubelet has prepared it again a moment ago
            self._keep({other: kept for other, kept in self._claims.items() if other != uid})

    # -- the files of the container device interface

    def _path(self, uid: str) -> Path:
        return self._place.cdi / cdi.file_of(self._place.driver, uid)

    def _write_file(self, claim: PreparedClaim, answer: Answer) -> None:
        path = self._path(claim.uid)
        content = cdi.spec_of(self._place.driver, claim, answer)
        with suppress(FileNotFoundError):
            if path.read_bytes() == content:
                return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        records.replace(path, content, 0o644)

    def _sweep_files(self) -> None:
        """Removes the files of claims that nobody holds, such as those of before a reboot."""
        with suppress(FileNotFoundError):
            for path in self._place.cdi.iterdir():
                owner = cdi.owner_of(self._place.driver, path.name)
                if owner and owner not in self._claims:
                    path.unlink(missing_ok=True)
                    reason = "its claim is not prepared"
                    self._log.info("CDI file removed", file=str(path), reason=reason)

    # -- what kubelet does not tell

    async def run(self) -> None:
        """Reads an unreadable journal's claims from the API, and ends grants of claims that kubelet
        has forgotten without giving them up."""
        while True:
            try:
                async with self._lock:
                    if self._unreadable:
                        await self._restore()
                    else:
                        await self._end_forgotten()
                self._trouble = ""
            # the next look tries again
            except (KubeError, InvalidInput, StartDeferred, OSError) as error:
                if self._trouble != str(error):
                    self._log.warning("claims not looked at", reason=str(error))
                self._trouble = str(error)
            await asyncio.sleep(_LOOK_S)

    async def _restore(self) -> None:
        """InvalidInput for a claim whose programs run, where nobody can say what it takes."""
        if not self._ledger.pods_synced:
            return
        found: dict[str, PreparedClaim] = {}
        names = {(row.namespace, name) for row in self._ledger.rows for name in row.claims}
        for namespace, name in names:
            with suppress(NotFound):
                thing = await self._kube.get(RESOURCE_CLAIMS, name, namespace)
                uid = str(thing.get("metadata", {}).get("uid"))
                if claim := await self._restored(namespace, name, uid):
                    found[uid] = claim
        self._keep(found)
        if self._place.driver:
            self._sweep_files()
        reason = "the API has named the claims of this node"
        self._log.info("journal written again", claims=len(found), reason=reason)
        self._log_unserved()

    async def _restored(self, namespace: str, name: str, uid: str) -> PreparedClaim | None:
        """None for one of another driver, or not allocated, or never prepared, where it cannot
        be."""
        started, priority = self._started_with(uid)
        here = [row for row in self._ledger.rows if row.namespace == namespace]
        pods = {row.uid for row in here if name in row.claims}
        if started is None and not self._ledger.whereabouts.living(pods):
            return None  # kubelet asks for it, and then its room is looked at
        try:
            claim = await self._read(namespace, name, uid)
        except InvalidInput as refused:
            if started is None:
                return None
            claim = await self._read(namespace, name, uid, started)
            reason = f"it was prepared before, but now {refused}"
            self._log.warning("claim kept", claim=str(claim), reason=reason)
        if started is None:
            return await self._with_priority(claim)
        return replace(claim, priority=priority)

    def _started_with(self, uid: str) -> tuple[int | None, int | None]:
        """The cap of threads, None where it was not prepared, and the priority that its programs
        were started with. An agent that no longer serves claims cannot see their files: all
        count."""
        try:
            spec = self._path(uid).read_bytes()
            return cdi.started_with(spec) or _WHOLE_PERCENT, cdi.started_with(spec, CLIENT_PRIORITY)
        except (FileNotFoundError, ValueError):
            return None if self._place.driver else _WHOLE_PERCENT, None

    async def _end_forgotten(self) -> None:
        if not self._ledger.pods_synced:
            return
        now = time.monotonic()
        here = {row.uid for row in self._ledger.rows}
        prepared = [claim for claim in self._claims.values() if not claim.left]
        absent: set[str] = set()
        for claim in prepared:
            pods = {pod.uid for pod in claim.pods}
            absent |= pods - here
            if here.isdisjoint(pods):
                absent.add(claim.uid)
        self._absent_since = {uid: self._absent_since.get(uid, now) for uid in absent}
        long = {uid for uid, since in self._absent_since.items() if now - since >= _LEFT_S}
        living = self._ledger.whereabouts.living(long)
        for uid in [claim.uid for claim in prepared]:
            claim = self._claims[uid]
            if uid in long:
                self._absent_since[uid] = now
                if await self._is_gone(claim):
                    self._path(uid).unlink(missing_ok=True)
                    self._leave(self._claims[uid], "no pod has it, and kubelet forgot it")
            elif uid not in absent:
                stay = tuple(pod for pod in claim.pods if pod.uid not in long - living)
                self._keep_one(replace(claim, pods=stay))

    async def _is_gone(self, claim: PreparedClaim) -> bool:
        """Or reserved for nobody. KubeError where that cannot be known."""
        try:
            thing = await self._kube.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return True
        status = thing.get("status") or {}
        return thing["metadata"].get("uid") != claim.uid or not status.get("reservedFor")
