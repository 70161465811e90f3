"""`mpsd webhook`: answers admission reviews over TLS, with certificates and a registration that it keeps itself.

One rule: it says that it is ready only while it serves, and serves on for a while after it has said that it goes.
"""

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from aiohttp import web

from mpsd.admission.certificates import SecretCertificates
from mpsd.admission.metrics import Lookup, WebhookMetrics
from mpsd.admission.registration import NAMESPACES, Registrar, RegistrationOutcome
from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    MalformedReview,
    Review,
    ReviewNeeds,
    mutate,
    needed_to_mutate,
    needed_to_validate,
    read_review,
    validate,
)
from mpsd.admission.settings import WebhookSettings
from mpsd.platform import event_loop
from mpsd.platform.certificates import (
    Certificates,
    CertificateSource,
    FolderCertificates,
    UnusableCertificate,
    load_into,
)
from mpsd.platform.kube import Kube, KubeError, NotFound, Resource
from mpsd.platform.limits_files import Limits, LimitsFiles
from mpsd.platform.limits_watch import watch_limits
from mpsd.platform.listener import (
    BodyRefused,
    Handler,
    Listener,
    ListenerSettings,
    Shutdown,
    TcpAddress,
    json_answer,
    read_body,
    tls_context,
    trouble_reaching,
)
from mpsd.platform.logs import logger
from mpsd.platform.server_metrics import CONTENT_TYPE

# What a review needs to know beyond the object itself: its namespace's labels, the keys of its ConfigMaps.
#
# One rule: it is advice. Nothing waits longer than its deadline for it, and what is not known in time is said to be
# unknown, never to be empty.

CONFIG_MAPS = Resource("v1", "configmaps")
LONGEST_S = 1.0  # of the 5 s that an API server waits for us
_FRESH_S = 10.0  # a changed label counts after this at the latest
_STALE_S = 600.0  # labels this old are better than none while the API is away
_MOST_NAMESPACES = 4096
_MOST_CONFIG_MAPS = 32  # of one object; what is beyond is unknown

Name = tuple[str, str]  # namespace, name
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _KnownNamespace:
    labels: Labels
    at: float


class Lookups:
    """kube None: there is no API server, so nothing is ever known."""

    def __init__(self, kube: Kube | None, metrics: WebhookMetrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._known: OrderedDict[str, _KnownNamespace] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Labels | None]] = {}

    async def namespace_labels(self, name: str) -> Labels | None:
        """None where they are not known. At once where they were asked for a moment ago."""
        known = self._known.get(name)
        now = time.monotonic()
        if known and now - known.at < _FRESH_S:
            return known.labels
        if self._kube is None or not name:
            return None
        task = self._under_way.get(name)
        if task is None:  # many pods of one Job ask at once; one question is enough
            task = self._under_way[name] = asyncio.create_task(self._ask_labels(self._kube, name))
            task.add_done_callback(lambda _task: self._under_way.pop(name, None))
        labels = await asyncio.shield(task)
        if labels is None and known and now - known.at < _STALE_S:
            return known.labels
        return labels

    async def config_map_keys(self, names: Iterable[Name]) -> dict[Name, frozenset[str]]:
        """The keys of those that are known; one that does not exist is not."""
        if self._kube is None:
            return {}
        wanted = list(dict.fromkeys(names))[:_MOST_CONFIG_MAPS]
        tasks = {name: asyncio.create_task(self._ask_keys(self._kube, *name)) for name in wanted}
        if not tasks:
            return {}
        _done, late = await asyncio.wait(tasks.values(), timeout=LONGEST_S)
        for task in late:
            task.cancel()
        answers = {name: task.result() for name, task in tasks.items() if task not in late}
        return {name: keys for name, keys in answers.items() if keys is not None}

    async def _ask_labels(self, kube: Kube, name: str) -> Labels | None:
        try:
            found = await kube.get(NAMESPACES, name, deadline_s=LONGEST_S)
        except KubeError as error:
            self._metrics.looked_up(Lookup.NAMESPACE, found=isinstance(error, NotFound))
            return None
        self._metrics.looked_up(Lookup.NAMESPACE, found=True)
        labels: Labels = (found.get("metadata") or {}).get("labels") or {}
        self._known[name] = _KnownNamespace(labels, time.monotonic())
        self._known.move_to_end(name)
        while len(self._known) > _MOST_NAMESPACES:
            self._known.popitem(last=False)
        return labels

    async def _ask_keys(self, kube: Kube, namespace: str, name: str) -> frozenset[str] | None:
        try:
            found = await kube.get(CONFIG_MAPS, name, namespace, deadline_s=LONGEST_S)
        except KubeError as error:
            self._metrics.looked_up(Lookup.CONFIG_MAP, found=isinstance(error, NotFound))
            return None
        self._metrics.looked_up(Lookup.CONFIG_MAP, found=True)
        return frozenset({**(found.get("data") or {}), **(found.get("binaryData") or {})})


# Answers one AdmissionReview: from HTTP to `admission.rules.admission_review` and back.
#
# One rule: what cannot be read is answered with a 4xx that says why, and what can be is answered at once; only what the
# core asks for is looked up, and not for long.

LONGEST_BODY = 3 * 1024**2  # the API server's own limit on a request
_BODY_S = 3.0  # an API server waits 5 s for all of it
_LARGE_BODY = 128 * 1024  # of this size a review takes 0.2 s at the very worst; of 3 MiB, half a second
_NOTHING_SEEN = AdmissionContext()


Said = TypeVar("Said")


@dataclass(frozen=True, slots=True)
class _Webhook:
    """One of the two webhooks. name: as its path and its metrics have it."""

    name: str
    needed: Callable[[Review, Limits], ReviewNeeds]
    answer: Callable[[Review, Limits, AdmissionContext], AdmissionAnswer]


_VALIDATE = _Webhook(
    "validate",
    lambda review, limits: needed_to_validate(review, limits.policy, limits.facts),
    lambda review, limits, seen: validate(review, limits.policy, limits.facts, seen),
)
_MUTATE = _Webhook(
    "mutate",
    lambda review, limits: needed_to_mutate(review, limits.policy),
    lambda review, limits, seen: mutate(review, limits.policy, seen),
)


class ReviewApi:
    """limits: those in force now."""

    def __init__(self, limits: Callable[[], Limits], lookups: Lookups, metrics: WebhookMetrics) -> None:
        self._limits = limits
        self._lookups = lookups
        self._metrics = metrics
        self._aside = ThreadPoolExecutor(1, "large-reviews")  # one, so that large ones wait for each other

    async def validate(self, request: web.Request) -> web.Response:
        return await self._respond(_VALIDATE, request)

    async def mutate(self, request: web.Request) -> web.Response:
        return await self._respond(_MUTATE, request)

    async def _respond(self, webhook: _Webhook, request: web.Request) -> web.Response:
        """200 with the answer; 4xx with the reason for what is no review."""
        began = time.perf_counter()
        try:
            body = await read_body(request, "application/json", LONGEST_BODY, _BODY_S)
            answer = await self._answer(webhook, body)
        except BodyRefused as refused:
            return self._refuse(webhook, refused.status, str(refused))
        except MalformedReview as error:
            return self._refuse(webhook, 400, str(error))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._refuse(webhook, 400, f"the body is not JSON: {error}")
        except RecursionError:
            return self._refuse(webhook, 400, "the body is nested too deeply")
        self._metrics.reviewed(webhook.name, answer, time.perf_counter() - began)
        return json_answer(answer.record())

    async def _answer(self, webhook: _Webhook, body: bytes) -> AdmissionAnswer:
        limits = self._limits()
        review, needs = await self._think(body, lambda: self._read(webhook, body, limits))
        seen = await self._look_up(needs)
        return await self._think(body, lambda: webhook.answer(review, limits, seen))

    def _read(self, webhook: _Webhook, body: bytes, limits: Limits) -> tuple[Review, ReviewNeeds]:
        review = read_review(msgspec.json.decode(body))
        return review, webhook.needed(review, limits)

    async def _think(self, body: bytes, decide: Callable[[], Said]) -> Said:
        """Decides at once, or beside the loop where that may take long and small reviews would wait for it."""
        if len(body) <= _LARGE_BODY:
            return decide()
        return await asyncio.get_running_loop().run_in_executor(self._aside, decide)

    async def _look_up(self, needs: ReviewNeeds) -> AdmissionContext:
        """Everything at once; nothing for an object that needs nothing."""
        if not needs.namespace and not needs.config_maps:
            return _NOTHING_SEEN
        if not needs.config_maps:  # the labels are known most of the time, and then nothing is waited for
            return AdmissionContext(await self._lookups.namespace_labels(needs.namespace))
        labels, config_maps = await asyncio.gather(
            self._lookups.namespace_labels(needs.namespace), self._lookups.config_map_keys(needs.config_maps)
        )
        return AdmissionContext(labels, config_maps)

    def _refuse(self, webhook: _Webhook, status: int, reason: str) -> web.Response:
        self._metrics.refused(webhook.name, status)
        return web.Response(status=status, text=f"{reason}\n")


_LOOK_S = 10.0
_FIRST_RETRY_S = 0.5
_CHECK_S = 2.0
_LOOKS_IN_A_LIFE = 50  # so that even a certificate made to live for seconds is renewed in time


class WebhookRole:
    """One replica. kube None: no API server, so certificates come from a folder and nothing is registered."""

    def __init__(self, settings: WebhookSettings, files: LimitsFiles, kube: Kube | None) -> None:
        self._settings = settings
        self._files = files
        self._metrics = WebhookMetrics()
        self._reviews = ReviewApi(
            lambda: Limits(files.policy, files.facts), Lookups(kube, self._metrics), self._metrics
        )
        self._context: ssl.SSLContext = tls_context()
        self.server = self._listener(self.routes(), settings.port, self._context)
        self.plain_server = self._listener(self._public_routes(), settings.metrics_port, None)
        self._registrar = Registrar(kube, settings, self._reach) if kube else None
        self._source = self._certificate_source(kube)
        self._served: Certificates | None = None  # None until the first certificate is there
        self._registered = False
        self._said: tuple[str, ...] | None = None  # the troubles that were said last; None before the first look
        self._log = logger(role="webhook")
        self._shutdown = Shutdown(settings.drain_s, self._log)

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop`, then drains. PortTaken where it cannot listen."""
        await self.plain_server.start()
        loops = [
            asyncio.create_task(self._keep_certificates()),
            asyncio.create_task(watch_limits(self._files, self._log, self._note_limits)),
        ]
        loops.append(asyncio.create_task(self._wait(stop)))
        try:
            await event_loop.until_one_ends(loops)  # a loop ends only by what it cannot go on after
            await self._shutdown.drain(self.server.ask_to_go)
        finally:
            for task in loops:
                task.cancel()
            await self.server.stop()
            await self.plain_server.stop()

    def hurry(self) -> None:
        """Ends the drain that is under way."""
        self._shutdown.hurry()

    @property
    def is_registered(self) -> bool:
        """Whether API servers were last seen to ask us, in the way that the settings want."""
        return self._registered

    @property
    def is_ready(self) -> bool:
        return self._served is not None and not self._shutdown.has_begun

    def routes(self) -> Mapping[str, Handler]:
        """Everything that is served over TLS."""
        return {
            "POST /validate": self._reviews.validate,
            "POST /mutate": self._reviews.mutate,
            **self._public_routes(),
        }

    def _public_routes(self) -> Mapping[str, Handler]:
        return {"GET /healthz": self._health, "GET /readyz": self._readiness, "GET /metrics": self._show_metrics}

    def _listener(self, routes: Mapping[str, Handler], port: int, context: ssl.SSLContext | None) -> Listener:
        return Listener(routes, TcpAddress(self._settings.address, port, context), ListenerSettings(LONGEST_BODY))

    def _certificate_source(self, kube: Kube | None) -> CertificateSource:
        if self._settings.certificate_directory:
            return FolderCertificates(self._settings.certificate_directory)
        assert kube, "settings without an API server name a folder"
        assert self._registrar, "whoever has an API server has a registrar"
        return SecretCertificates(kube, self._settings, self._registrar.trusted)

    async def _keep_certificates(self) -> None:
        """Looks at the certificates and then at the registration, so that what is registered is what is served."""
        look_s = min(_LOOK_S, self._settings.lives.serving_s / _LOOKS_IN_A_LIFE)
        retry_s = _FIRST_RETRY_S
        while True:
            outcome = await self._look()
            if outcome.changed:
                await asyncio.sleep(min(look_s, _FIRST_RETRY_S))
                continue
            self._say(outcome.troubles)
            if self._registrar:
                self._registered = outcome.is_settled
                self._metrics.registered(well=self._registered)
            retry_s = min(look_s, retry_s * 2) if outcome.troubles else _FIRST_RETRY_S
            await asyncio.sleep(retry_s if outcome.troubles else look_s)

    async def _look(self) -> RegistrationOutcome:
        try:
            found = await self._source.look(time.time())
            await self._serve(found)
        except (KubeError, UnusableCertificate) as error:
            return RegistrationOutcome((str(error),))
        return await self._registrar.look(found) if self._registrar else RegistrationOutcome()

    async def _serve(self, found: Certificates) -> None:
        """Shows this certificate from now on; the first one opens the port."""
        if found == self._served:
            return
        load_into(self._context, found.serving)
        if self._served is None:
            await self.server.start()
            event_loop.expect_long_life()
        self._served = found
        self._metrics.certificates(found.expiries)
        self._log.info("serving", port=self.server.port, certificate_ends=round(found.expiries["serving"]))

    def _say(self, troubles: tuple[str, ...]) -> None:
        """Once when they change, and once when they are over."""
        if troubles == self._said:
            return
        if troubles:
            self._log.warning("not yet as it must be", reasons=list(troubles))
        else:
            self._log.info("all is as it must be", registered=self._registrar is not None)
        self._said = troubles

    async def _wait(self, stop: asyncio.Event) -> None:
        await stop.wait()

    def _note_limits(self) -> None:
        self._metrics.limits(wrong=self._files.wrong is not None)

    async def _reach(self, bundle: str) -> str:
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        address = anywhere.get(self._settings.address, self._settings.address)
        return await trouble_reaching(address, self.server.port, self._settings.host_name, bundle, _CHECK_S)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 while API servers may come."""
        if self.is_ready:
            return web.Response(text="ok\n")
        reason = "going" if self._shutdown.has_begun else "; ".join(self._said or ["no certificate yet"])
        return web.Response(text=f"{reason}\n", status=503)

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
