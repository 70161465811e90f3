"""Prepares resource claims for kubelet, and remembers them: what a claim holds is in the journal before kubelet is
answered, and in the ledger of the node beside every other grant.

Every call may come again after a kill of kubelet, of the agent or of both, and gives the same answer: a claim that is
in the journal is not judged anew, so that it can be prepared again while the API server is away.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mpsd.kubelet.dra.rules import claims as rules
from mpsd.kubelet.dra.rules.claims import ClaimNode, PreparedClaim
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.plugin_server import StartDeferred
from mpsd.kubelet.rules.allocation import Answer, NodeConditions, memory_answer
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.mps.records import NodeDomains
from mpsd.platform import processes, records
from mpsd.platform.kube import Kube, KubeError, NotFound, Resource
from mpsd.platform.logs import logger

CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims")
_ANSWER_S = 6.0
_START_S = 20.0  # kubelet waits for 45 s
_LOOK_S = 5.0
_LEFT_S = 60.0  # that a claim must be without any pod before mpsd asks whether it is still there


@dataclass(frozen=True, slots=True)
class _ClaimJournal:
    """As it is on disk."""

    claims: tuple[PreparedClaim, ...]


@dataclass(frozen=True, slots=True)
class DriverPlaces:
    """journal: what is prepared. cdi: the folder in which the container runtime looks for devices."""

    journal: Path
    cdi: Path


class ClaimDriver:
    """until_allowed: waits until a domain takes clients of so many MiB, for so long; else says why it does not."""

    def __init__(
        self,
        node: ClaimNode,
        domains: NodeDomains,
        places: DriverPlaces,
        ledger: KubeletGrants,
        kube: Kube,
        policy: Callable[[], Policy],
        conditions: NodeConditions,
        until_allowed: Callable[[str, int, float], Awaitable[str]],
    ) -> None:
        self._begun_on, self._domains = node, domains
        self._places, self._ledger, self._kube = places, ledger, kube
        self._policy, self._conditions, self._until_allowed = policy, conditions, until_allowed
        self._log = logger(role="DRA driver")
        self._lock = asyncio.Lock()  # what a claim may have depends on what the one before it got
        self._claims: dict[str, PreparedClaim] = {}  # by uid
        self._unreadable = ""  # why the journal is not known; empty where it is
        self._left_since: dict[str, float] = {}  # of claims without a pod, by uid

    @property
    def _node(self) -> ClaimNode:
        """With the domains of this moment: a claim of one GPU may be in a domain that was joined for others."""
        return replace(self._begun_on, domains=self._domains.now)

    # -- the journal -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads what an earlier agent prepared in this boot. While a journal that cannot be read is not made again from
        the API, nothing counts as known."""
        found: tuple[PreparedClaim, ...] = ()
        try:
            journal = records.read(self._places.journal, _ClaimJournal)
            found = journal.claims if journal else ()
        except records.UnreadableRecord as error:
            self._log.warning("journal unreadable", file=str(error.path), reason=error.reason)
            self._unreadable = f"the journal of claims cannot be read ({error}); mpsd reads them from the API again"
        boot_id = processes.boot_id()
        self._claims = {claim.uid: claim for claim in found if claim.boot_id == boot_id}
        self._count()
        if not self._unreadable and self._node.driver:
            self._sweep_files()

    def _keep(self, claims: Mapping[str, PreparedClaim]) -> None:
        """OSError where it cannot be written; then nothing has changed."""
        if claims != self._claims or self._unreadable:
            self._places.journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records.write(self._places.journal, _ClaimJournal(tuple(claims.values())))
            self._claims, self._unreadable = dict(claims), ""
            self._count()

    def _count(self) -> None:
        self._ledger.set_claims(tuple(self._claims.values()), self._unreadable)

    # -- what kubelet asks -----------------------------------------------------------------------------------------

    async def prepare(self, namespace: str, name: str, uid: str) -> tuple[PreparedClaim, tuple[str, ...]]:
        """The claim and the CDI devices of its containers. InvalidInput, StartDeferred, KubeError or OSError with the
        reason why there are none yet; kubelet tries again."""
        async with self._lock:
            claim = await self._prepared(namespace, name, uid)
        if why := await self._until_allowed(claim.domain, claim.memory_mib, _START_S):
            raise StartDeferred(f"{claim} waits: {why}")
        answer = memory_answer(claim.allocation, self._conditions)
        self._write_file(uid, answer)
        self._log.info("prepared", claim=str(claim), gpus=claim.gpus, memory_mib=claim.memory_mib)
        return claim, (*answer.cdi, rules.cdi_name(self._node.driver, uid))

    async def _prepared(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        if self._unreadable:
            raise StartDeferred(self._unreadable)
        if before := self._claims.get(uid):
            with suppress(KubeError, InvalidInput):  # what it holds is known; only who has come to it is news
                now = await self._read(namespace, name, uid)
                self._keep({**self._claims, uid: rules.refreshed(before, now)})
            return self._claims[uid]
        if silent := await self._ledger.until_answered(_ANSWER_S):
            raise StartDeferred(f"kubelet does not list who holds which device: {silent}")
        if unknown := self._ledger.view.unknown:
            raise StartDeferred("; ".join(unknown))
        claim = await self._read(namespace, name, uid)
        others = [held.grant for held in self._ledger.view.held]
        wrong = rules.other_claim_of(claim, self._claims.values())
        if wrong := wrong or rules.why_no_room(claim, others, self._node, self._policy()):
            raise StartDeferred(wrong)
        self._keep({**self._claims, uid: claim})
        return claim

    async def _read(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        thing = await self._kube.get(CLAIMS, name, namespace)
        return rules.read_claim(thing, uid, self._node, self._policy(), processes.boot_id(), time.time())

    async def unprepare(self, uid: str) -> None:
        """Ends the claim's grant, whether or not the claim is still there. OSError where that cannot be recorded."""
        async with self._lock:
            if self._unreadable:
                raise StartDeferred(self._unreadable)
            self._path(uid).unlink(missing_ok=True)
            if claim := self._claims.get(uid):
                self._keep({other: kept for other, kept in self._claims.items() if other != uid})
                self._log.info("unprepared", claim=str(claim))

    # -- the files of the container device interface ---------------------------------------------------------------

    def _path(self, uid: str) -> Path:
        return self._places.cdi / rules.cdi_file(self._node.driver, uid)

    def _write_file(self, uid: str, answer: Answer) -> None:
        """Whole or not at all: a container runtime may read it at any moment."""
        path, text = self._path(uid), json.dumps(rules.cdi_spec(self._node.driver, uid, answer), indent=1)
        with suppress(FileNotFoundError):
            if path.read_text() == text:
                return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        beside = path.with_name(f".{path.name}.new")
        try:
            beside.write_text(text)
            beside.chmod(0o644)
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise

    def _sweep_files(self) -> None:
        """Removes the files of claims that nobody holds, such as those of before a reboot."""
        with suppress(FileNotFoundError):
            for path in self._places.cdi.iterdir():
                owner = rules.cdi_file_owner(self._node.driver, path.name)
                if owner and owner not in self._claims:
                    path.unlink(missing_ok=True)
                    self._log.info("CDI file removed", file=str(path), reason="its claim is not prepared")

    # -- what kubelet does not tell --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Reads an unreadable journal's claims from the API again, and ends grants of claims that are gone though
        kubelet, which has forgotten them, did not say so."""
        while True:
            with suppress(KubeError, OSError):  # the next look tries again
                async with self._lock:
                    await (self._restore() if self._unreadable else self._end_left())
            await asyncio.sleep(_LOOK_S)

    async def _restore(self) -> None:
        if not self._ledger.pods_synced:
            return
        found: dict[str, PreparedClaim] = {}
        for namespace, name in {(row.identity.namespace, name) for row in self._ledger.rows for name in row.claims}:
            with suppress(NotFound, InvalidInput):  # one of another driver, or that is not allocated yet
                thing = await self._kube.get(CLAIMS, name, namespace)
                uid = str(thing.get("metadata", {}).get("uid"))
                boot_id, policy = processes.boot_id(), self._policy()
                found[uid] = rules.read_claim(thing, uid, self._node, policy, boot_id, time.time())
        self._keep(found)
        self._sweep_files()
        self._log.info("journal written again", claims=len(found), reason="the API has named the claims of this node")

    async def _end_left(self) -> None:
        if not self._ledger.pods_synced:
            return
        now, here = time.monotonic(), {row.identity.uid for row in self._ledger.rows}
        holders = rules.claim_holders(tuple(self._claims.values()), self._ledger.rows)
        left = {uid for uid, pods in holders.items() if not any(pod.uid in here for pod in pods)}
        self._left_since = {uid: self._left_since.get(uid, now) for uid in left}
        for uid in (uid for uid, since in self._left_since.items() if now - since >= _LEFT_S):
            claim, self._left_since[uid] = self._claims[uid], now
            if await self._is_gone(claim):
                self._keep({other: kept for other, kept in self._claims.items() if other != uid})
                self._path(uid).unlink(missing_ok=True)
                self._log.info("grant ended", claim=str(claim), reason="no pod has the claim, and kubelet forgot it")

    async def _is_gone(self, claim: PreparedClaim) -> bool:
        """Whether the claim is gone, or is reserved for nobody. KubeError where that cannot be known."""
        try:
            thing = await self._kube.get(CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return True
        status = thing.get("status") or {}
        return thing["metadata"].get("uid") != claim.uid or not status.get("reservedFor")
