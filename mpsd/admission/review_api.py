"""Answers AdmissionReviews over HTTP: reads the body, looks up what the rules need, and not for
long, and measures. What cannot be read is answered with a 4xx and the reason."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from functools import cache, partial
from typing import TypedDict, TypeVar

import msgspec
from aiohttp import web

from mpsd.admission.registration import NAMESPACES
from mpsd.admission.rules import review as rules
from mpsd.admission.rules.claims import classes_of
from mpsd.admission.rules.requests import TemplateWanted
from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    MalformedReview,
    Review,
    ReviewNeeds,
)
from mpsd.model import metrics as names
from mpsd.model.names import LABEL, NAME_LABEL, PRODUCT, WEBHOOK
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE, ClaimName
from mpsd.platform import clock
from mpsd.platform.bodies import BodyRefused, read_json
from mpsd.platform.kube import (
    CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Conflict,
    Forbidden,
    Kube,
    KubeError,
    NotFound,
    Object,
    PatchKind,
    Rejected,
    Resource,
)
from mpsd.platform.limits_files import Limits
from mpsd.platform.listener import has_certificate, json_answer
from mpsd.platform.rules.kubernetes_objects import kubernetes_version
from mpsd.platform.server_metrics import ServerMetrics

_ANSWERED = "answered"
_UNKNOWN = "unknown"


class Lookup(StrEnum):
    NAMESPACE = "namespace"
    CONFIG_MAP = "config map"
    CLAIM = "claim"


class WebhookMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__(names.Exporter.WEBHOOK)
        # Finding a metric by its labels costs more than counting, so each is found once.
        self._reviews_of = cache(self.counter(names.ADMISSION_REVIEWS).labels)
        self._seconds_of = cache(self.histogram(names.ADMISSION_SECONDS).labels)
        self._findings_of = cache(self.counter(names.ADMISSION_FINDINGS).labels)
        self._refused = self.counter(names.ADMISSION_REFUSED)
        # made when it is first set: a webhook that registers nowhere does not report it
        self._registered = cache(partial(self.gauge, names.ADMISSION_REGISTERED))
        self._lookups = self.counter(names.ADMISSION_LOOKUPS)
        for what in Lookup:
            # from the beginning, so that the first one is seen as an increase
            for outcome in (_ANSWERED, _UNKNOWN):
                self._lookups.labels(what.value, outcome)

    def reviewed(self, webhook: str, answer: AdmissionAnswer, took_s: float) -> None:
        self._reviews_of(webhook, _verdict(answer)).inc()
        self._seconds_of(webhook).observe(took_s)
        for rule, mode in answer.verdicts:
            self._findings_of(rule, mode).inc()

    def refused(self, webhook: str, status: int) -> None:
        self._refused.labels(webhook, str(status)).inc()

    def looked_up(self, what: Lookup, *, found: bool) -> None:
        """found: whether the API answered, were it only that there is none."""
        self._lookups.labels(what.value, _ANSWERED if found else _UNKNOWN).inc()

    def registered(self, *, well: bool) -> None:
        self._registered().set(well)


def _verdict(answer: AdmissionAnswer) -> str:
    if answer.is_probe:
        return "probe"
    if not answer.allowed:
        return "refused"
    if answer.patch:
        return "patched"
    return "warned" if answer.warnings else "allowed"


# -- beyond the object: its namespace's labels, the keys of its ConfigMaps
# It is advice: nothing waits longer than its deadline for it, and what is not known in time is
# unknown, never empty.

CONFIG_MAPS = Resource("v1", "configmaps")
_OF_KIND = {CLAIM: RESOURCE_CLAIMS, CLAIM_TEMPLATE: CLAIM_TEMPLATES}
LONGEST_S = 1.0  # of the 5 s that an API server waits for us
_FRESH_S = 10.0  # a changed label counts after this at the latest
_STALE_S = 600.0  # labels this old are better than none while the API is away
_MOST_NAMESPACES = 4096
# `lifecycle.preStop.sleep` is on from 1.30, which may still serve beside an API server of this one
_FIRST_WITH_SLEEP = (1, 31)
_MOST_NAMED = 32  # of one object; what is beyond is unknown

Labels = Mapping[str, str]
Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")


class Lookups:
    """kube None: nothing is ever known."""

    def __init__(self, kube: Kube | None, metrics: WebhookMetrics) -> None:
        self._kube = kube
        self._metrics = metrics
        # by namespace, with when it was asked
        self._known: OrderedDict[str, tuple[Labels, float]] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Labels | None]] = {}
        # whether the API server is known to have `lifecycle.preStop.sleep`
        self.has_sleep = False

    @property
    def now(self) -> float:
        """By the clock of the API server, which verifies certificates, and which all replicas ask;
        by ours where there is none."""
        return self._kube.now if self._kube else clock.wall_s()

    async def look_at_version(self) -> None:
        """Kept where it does not answer."""
        if self._kube is None:
            return
        with suppress(KubeError):
            version = kubernetes_version(await self._kube.read("/version"))
            self.has_sleep = version is not None and version >= _FIRST_WITH_SLEEP

    async def namespace_labels(self, name: str) -> Labels | None:
        """None where they are not known."""
        labels, at = self._known.get(name, (None, 0.0))
        now = time.monotonic()
        if labels is not None and now - at < _FRESH_S:
            return labels
        if self._kube is None or not name:
            return None
        task = self._under_way.get(name)
        if task is None:  # many pods of one Job ask at once; one question is enough
            task = self._under_way[name] = asyncio.create_task(self._ask_labels(self._kube, name))
            task.add_done_callback(lambda _task: self._under_way.pop(name, None))
        found = await asyncio.shield(task)
        return labels if found is None and now - at < _STALE_S else found

    async def config_map_keys(
        self, namespace: str, names: Sequence[str]
    ) -> dict[str, frozenset[str]]:
        """Of those that are known; one that does not exist is not."""
        kube = self._kube
        if kube is None:
            return {}
        return await self._each(names, lambda name: self._ask_keys(kube, namespace, name))

    async def claim_classes(
        self, namespace: str, names: Sequence[ClaimName]
    ) -> dict[ClaimName, tuple[str, ...]]:
        """Of those that are known; none where the webhook may not read claims, as without
        dra.enabled, or there is no API server."""
        kube = self._kube
        if kube is None:
            return dict.fromkeys(names, ())
        return await self._each(names, lambda name: self._ask_classes(kube, namespace, name))

    async def _each(
        self, names: Sequence[Name], ask: Callable[[Name], Coroutine[None, None, Found | None]]
    ) -> dict[Name, Found]:
        tasks = {name: asyncio.create_task(ask(name)) for name in names[:_MOST_NAMED]}
        if not tasks:
            return {}
        _done, late = await asyncio.wait(tasks.values(), timeout=LONGEST_S)
        for task in late:
            task.cancel()
        answers = {name: task.result() for name, task in tasks.items() if task not in late}
        return {name: found for name, found in answers.items() if found is not None}

    async def _ask_labels(self, kube: Kube, name: str) -> Labels | None:
        question = kube.get(NAMESPACES, name, deadline_s=LONGEST_S)
        found = await self._asked(Lookup.NAMESPACE, question)
        if found is None:
            return None
        labels: Labels = (found.get("metadata") or {}).get("labels") or {}
        self._known[name] = (labels, time.monotonic())
        self._known.move_to_end(name)
        while len(self._known) > _MOST_NAMESPACES:
            self._known.popitem(last=False)
        return labels

    async def _ask_keys(self, kube: Kube, namespace: str, name: str) -> frozenset[str] | None:
        question = kube.get(CONFIG_MAPS, name, namespace, deadline_s=LONGEST_S)
        found = await self._asked(Lookup.CONFIG_MAP, question)
        if found is None:
            return None
        return frozenset((*(found.get("data") or ()), *(found.get("binaryData") or ())))

    async def _ask_classes(
        self, kube: Kube, namespace: str, name: ClaimName
    ) -> tuple[str, ...] | None:
        try:
            question = kube.get(_OF_KIND[name.kind], name.name, namespace, deadline_s=LONGEST_S)
            found = await self._asked(Lookup.CLAIM, question)
        except Forbidden:
            return ()
        return None if found is None else classes_of(found, name.kind)

    async def _asked(self, what: Lookup, question: Awaitable[Object]) -> Object | None:
        try:
            found = await question
        except KubeError as error:
            self._metrics.looked_up(what, found=isinstance(error, NotFound))
            if what is Lookup.CLAIM and isinstance(error, Forbidden):
                raise
            return None
        self._metrics.looked_up(what, found=True)
        return found


# -- the templates of the claims that pods get in place of their requests

USED_AT = "mpsd.io/used-at"  # seconds since 1970, of the last pod at about that time
_RENEW_S = 3600.0
_UNUSED_S = 86_400.0
_KEEP_S = 3.0  # of the 5 s that an API server waits
_ATTEMPTS = 3


class _Template(TypedDict):
    """What is read of each that is there."""

    metadata: Object


class ClaimTemplates:
    """Each is there before its pod is created, and removed a day after the last: Kubernetes makes a
    pod's claim at once, and needs the template no longer. kube None: there is no API server."""

    def __init__(self, kube: Kube | None) -> None:
        self._kube = kube

    async def keep(self, namespace: str, wanted: TemplateWanted, now: float) -> str:
        """Why the template is not there; empty where it is. It says in it that it is used."""
        try:
            async with asyncio.timeout(_KEEP_S):
                for _attempt in range(_ATTEMPTS):
                    with suppress(Conflict):  # another replica was first
                        return await self._kept(namespace, wanted, now)
        except TimeoutError:
            return f"the API server did not answer within {_KEEP_S:g} s"
        except KubeError as error:
            return str(error)
        return f"ResourceClaimTemplate {namespace}/{wanted.name} is changed by others all the time"

    async def _kept(self, namespace: str, wanted: TemplateWanted, now: float) -> str:
        if self._kube is None:
            return "this webhook has no API server"
        used = {USED_AT: f"{now:.0f}"}
        name = wanted.name
        try:
            found = await self._kube.get(CLAIM_TEMPLATES, name, namespace)
        except NotFound:
            labels = {NAME_LABEL: WEBHOOK, LABEL: PRODUCT}
            metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": used}
            template = {
                "apiVersion": CLAIM_TEMPLATES.api,
                "kind": CLAIM_TEMPLATE,
                "metadata": metadata,
                "spec": {"spec": wanted.spec},
            }
            await self._kube.create(CLAIM_TEMPLATES, template, namespace)
            return ""
        if (found.get("spec") or {}).get("spec") != wanted.spec:
            what = f"ResourceClaimTemplate {namespace}/{name}"
            return f"{what} has other contents than its name says; delete it"
        there = found["metadata"]
        # another's is not for it to write
        is_swept = (there.get("labels") or {}).get(NAME_LABEL) == WEBHOOK
        if is_swept and now - _used_at(found) >= _RENEW_S:
            metadata = {"resourceVersion": there["resourceVersion"], "annotations": used}
            patch = {"metadata": metadata}
            await self._kube.patch(CLAIM_TEMPLATES, name, patch, PatchKind.MERGE, namespace)
        return ""

    async def sweep(self, now: float) -> None:
        """Removes those that no pod has used for a day. KubeError."""
        if self._kube is None:
            return
        query = {"labelSelector": f"{NAME_LABEL}={WEBHOOK}"}
        each = self._kube.each(CLAIM_TEMPLATES, query=query, fields=_Template)
        async for thing in each:
            if now - _used_at(thing) >= _UNUSED_S:
                there = thing["metadata"]
                own = {key: there[key] for key in ("uid", "resourceVersion")}
                # used again, gone, or only named as ours
                with suppress(Conflict, NotFound, Forbidden, Rejected):
                    name, namespace = there["name"], there["namespace"]
                    await self._kube.delete(CLAIM_TEMPLATES, name, namespace, **own)


def _used_at(template: Object) -> float:
    """0 where it does not say."""
    text = (template["metadata"].get("annotations") or {}).get(USED_AT, "")
    return float(text) if text.isascii() and text.isdecimal() else 0.0


# -- one review

_NO_CERTIFICATE = (
    "only API servers with a client certificate are answered; name one for this webhook in their"
    " AdmissionConfiguration (docs/install-webhook.md)"
)
LONGEST_BODY = 3 * 1024**2  # the API server's own limit on a request
_BODY_S = 3.0  # an API server waits 5 s for all of it
# of this size a review takes 0.2 s at the very worst; of 3 MiB, half a second
_LARGE_BODY = 128 * 1024
Decided = TypeVar("Decided")
_STEPS = {
    "validate": (rules.needed_to_validate, rules.validate),
    "mutate": (rules.needed_to_mutate, rules.mutate),
}


class ReviewApi:
    """limits: in force now. asks_for_certificates: only who shows one is answered."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        kube: Kube | None,
        metrics: WebhookMetrics,
        *,
        asks_for_certificates: bool = False,
    ) -> None:
        self._limits = limits
        self._asks_for_certificates = asks_for_certificates
        self.lookups = Lookups(kube, metrics)
        self.templates = ClaimTemplates(kube)
        self._metrics = metrics
        # one, so that large ones wait for each other
        self._aside = ThreadPoolExecutor(1, "large-reviews")
        self.validate = partial(self._respond, "validate")
        self.mutate = partial(self._respond, "mutate")

    async def _respond(self, webhook: str, request: web.Request) -> web.Response:
        """200 with the answer; 4xx with the reason for what is no review."""
        began = time.perf_counter()
        status = 400
        try:
            if self._asks_for_certificates and not has_certificate(request):
                raise BodyRefused(401, _NO_CERTIFICATE)
            body = await read_json(request, _BODY_S)
            answer = await self._answer(webhook, body)
        except BodyRefused as refused:
            status = refused.status
            reason = str(refused)
        except MalformedReview as error:
            reason = str(error)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = f"the body is not JSON: {error}"
        except RecursionError:
            reason = "the body is nested too deeply"
        else:
            self._metrics.reviewed(webhook, answer, time.perf_counter() - began)
            return json_answer(answer.record())
        self._metrics.refused(webhook, status)
        return web.Response(status=status, text=f"{reason}\n")

    async def _answer(self, webhook: str, body: bytes) -> AdmissionAnswer:
        limits = self._limits()
        policy = limits.policy
        facts = limits.facts
        need, decide = _STEPS[webhook]

        def read() -> tuple[Review, ReviewNeeds]:
            review = rules.read_review(msgspec.json.decode(body))
            return review, need(review, policy, facts)

        review, needs = await self._think(body, read)
        seen = await self._look_up(needs)
        if needs.is_faultless:
            return AdmissionAnswer(review.uid)
        answer = await self._think(body, lambda: decide(review, policy, facts, seen))
        if answer.template is None or review.is_dry_run:
            return answer
        found = review.found
        now = self.lookups.now
        why = await self.templates.keep(found.namespace, answer.template, now)
        if not why:
            return answer
        message = f"{found.name} is refused, since the template of its claim is not there: {why}"
        return AdmissionAnswer(review.uid, allowed=False, message=message)

    async def _think(self, body: bytes, decide: Callable[[], Decided]) -> Decided:
        """Beside the loop where small reviews would wait for it."""
        if len(body) <= _LARGE_BODY:
            return decide()
        return await asyncio.get_running_loop().run_in_executor(self._aside, decide)

    async def _look_up(self, needs: ReviewNeeds) -> AdmissionContext:
        # labels are mostly known, and then nothing is waited for
        ask = self.lookups
        if not (needs.config_maps or needs.claims):
            labels = await ask.namespace_labels(needs.namespace)
            return AdmissionContext(labels, has_sleep=ask.has_sleep)
        labels, config_maps, claims = await asyncio.gather(
            ask.namespace_labels(needs.namespace),
            ask.config_map_keys(needs.namespace, needs.config_maps),
            ask.claim_classes(needs.namespace, needs.claims),
        )
        return AdmissionContext(labels, config_maps, claims, ask.has_sleep)
