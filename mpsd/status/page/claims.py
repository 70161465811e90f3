"""The pods that wait, for a page, and what they claim. Each claim, or its template, is read once:
what it asks for never changes.

Rights: get resourceclaims and resourceclaimtemplates; for a cluster list deviceclasses and
resourceslices. Where one is missing, pods that get their GPU by a claim are not listed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from mpsd.admission.rules.claims import asked_of
from mpsd.model.names import CLAIM_DRIVER
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE, ClaimName, Pod
from mpsd.model.policy import Policy
from mpsd.platform.kube import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kube,
    KubeError,
    NotFound,
    Object,
)
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.status.rules.claims import ClaimsServed, read_served, with_claim
from mpsd.status.rules.pods import PodSeen, read_pod_seen

_OF_KIND = {CLAIM: RESOURCE_CLAIMS, CLAIM_TEMPLATE: CLAIM_TEMPLATES}
_DRIVER = {"fieldSelector": f"spec.driver={CLAIM_DRIVER}"}
_AT_ONCE = 8
_MISSING_S, _REFUSED_S, _SERVED_S = 10.0, 60.0, 30.0  # before the same question is asked again

Key = tuple[str, ClaimName]  # with the namespace


def pending_pods(
    kube: Kube, policy: Callable[[], Policy], note: Callable[[], None], node: str = ""
) -> Mirror[PodSeen]:
    """Those that ask for a GPU and do not run. node: those that are bound to it, and are not being
    deleted."""

    def read(thing: Object) -> PodSeen | None:
        pod = read_pod_seen(thing, policy())
        asks = pod.shared or pod.unreadable or pod.claims
        return pod if asks and not (node and pod.terminating) else None

    selected = "status.phase=Pending"
    if node:
        selected = f"spec.nodeName={node},{selected}"
    return Mirror(kube, Selection(PODS, query={"fieldSelector": selected}, fields=Pod), read, note)


class ClaimsOfPods:
    """note: called once more is known. of_cluster: whether it matters what the cluster serves."""

    def __init__(self, kube: Kube, note: Callable[[], None], *, of_cluster: bool) -> None:
        self._kube = kube
        self._note = note
        self._of_cluster = of_cluster
        self._things: dict[Key, Object | None] = {}  # None: it asks for no GPU of mpsd
        self._missing: set[Key] = set()
        self._again: dict[Key, float] = {}  # when each may be asked for again, monotonic
        self._served = ClaimsServed(None, None, 0)
        self._served_until = 0.0
        self._task: asyncio.Task[None] | None = None  # None before the first question

    def asking(self, pods: Sequence[PodSeen], policy: Policy) -> list[PodSeen]:
        """Those that ask for a GPU, as far as their claims are known, and asks for the others."""
        named = {key for pod in pods for key in _keys(pod)}
        self._things = {key: self._things[key] for key in named & self._things.keys()}
        self._missing &= named
        self._again = {key: self._again[key] for key in named & self._again.keys()}
        now = time.monotonic()
        if self._task and self._task.done():
            self._task.result()  # a fault of ours, for whoever shows them
        due = [one for one in named - self._things.keys() if now >= self._again.get(one, 0.0)]
        is_old = self._of_cluster and bool(named) and now >= self._served_until
        if (due or is_old) and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._ask(due, policy))
        ours = self._missing.union([key for key, thing in self._things.items() if thing])
        return [pod for pod in pods if pod.shared or pod.unreadable or ours & {*_keys(pod)}]

    def seen(self, pod: PodSeen, policy: Policy) -> PodSeen:
        known = {key: thing for key in _keys(pod) if (thing := self._things.get(key)) is not None}
        return with_claim(pod, known, self._missing, self._served, policy)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _ask(self, due: Sequence[Key], policy: Policy) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def ask(key: Key) -> None:
            async with limit:
                await self._read(key, policy)

        await asyncio.gather(*map(ask, due))
        if self._of_cluster:
            self._served_until = time.monotonic() + _SERVED_S
            with suppress(KubeError):
                classes = await self._kube.list(DEVICE_CLASSES)
                self._served = read_served(
                    classes, await self._kube.list(RESOURCE_SLICES, query=_DRIVER)
                )
        self._note()

    async def _read(self, key: Key, policy: Policy) -> None:
        namespace, name = key
        try:
            thing = await self._kube.get(_OF_KIND[name.kind], name.name, namespace)
        except NotFound:
            self._missing.add(key)
            self._again[key] = time.monotonic() + _MISSING_S
        except KubeError:
            self._missing.discard(key)
            self._again[key] = time.monotonic() + _REFUSED_S
        else:
            self._missing.discard(key)
            is_ours = asked_of(thing, name.kind, policy)
            self._things[key] = {"spec": thing.get("spec")} if is_ours else None


def _keys(pod: PodSeen) -> list[Key]:
    return [(pod.name.namespace, name) for name in pod.claims]
