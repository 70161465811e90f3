"""`mpsd webhook`: answers admission reviews over TLS, with certificates and a registration that it keeps itself.

It is ready only while it serves, and goes on serving for a while after it has reported that it ends.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from mpsd.admission.certificates import SecretCertificates
from mpsd.admission.registration import Registrar, RegistrationOutcome
from mpsd.admission.review_api import LONGEST_BODY, Lookups, ReviewApi, WebhookMetrics
from mpsd.admission.settings import WebhookSettings
from mpsd.platform import event_loop
from mpsd.platform.certificates import (
    Certificates,
    CertificateSource,
    FolderCertificates,
    UnusableCertificate,
    load_into,
)
from mpsd.platform.kube import Kube, KubeError
from mpsd.platform.limits_files import Limits, LimitsFiles, watch_limits
from mpsd.platform.listener import (
    Handler,
    Listener,
    ListenerSettings,
    Shutdown,
    TcpAddress,
    tls_context,
    trouble_reaching,
)
from mpsd.platform.logs import logger
from mpsd.platform.server_metrics import CONTENT_TYPE

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
        loops: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._keep_certificates()),
            asyncio.create_task(watch_limits(self._files, self._log, self._note_limits)),
            asyncio.create_task(stop.wait()),
        ]
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
        """Whether both configurations, when last looked at, named this webhook as the settings want it."""
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
