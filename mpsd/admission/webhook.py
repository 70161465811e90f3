"""`mpsd webhook`: answers admission reviews over TLS, with certificates and a registration that it
keeps itself. It serves on for a while after it has reported that it ends."""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mpsd.admission.certificates import SecretCertificates
from mpsd.admission.registration import Registrar, RegistrationOutcome
from mpsd.admission.review_api import LONGEST_BODY, ReviewApi, WebhookMetrics
from mpsd.admission.settings import WebhookSettings
from mpsd.platform import certificates, clock, event_loop, life
from mpsd.platform.certificates import (
    Certificates,
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
    health_routes,
    tls_context,
    trouble_reaching,
)
from mpsd.platform.logs import logger
from mpsd.platform.rules import certificates as rules
from mpsd.platform.settings import ANYWHERE, CannotListen, ListenAddress

_FIRST_RETRY_S = 0.5
_CHECK_S = 2.0
_SWEEP_S = 3600.0


def _context(client_authority: Path | None) -> ssl.SSLContext:
    """Asks for a certificate, and leaves it to each route whether one is needed: health and metrics
    need none. The file is read at the start alone. CannotListen."""
    if client_authority is None:
        return tls_context()
    try:
        context = tls_context(client_authority.read_text())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        what = f"the authority for clients cannot be used: {client_authority}: {error}"
        raise CannotListen(f"{what}; write a PEM file of certificates") from None
    if not context.get_ca_certs():
        what = f"the authority for clients cannot be used: {client_authority}"
        raise CannotListen(f"{what}: it has no certificate of a CA; write a PEM file of them")
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


class WebhookRole:
    """One replica. kube None: certificates come from a folder, and nothing is registered.
    CannotListen where the clients' authority cannot be used."""

    def __init__(self, settings: WebhookSettings, files: LimitsFiles, kube: Kube | None) -> None:
        self._settings = settings
        self._files = files
        self._metrics = WebhookMetrics()
        self._reviews = ReviewApi(
            lambda: Limits(files.policy, files.facts),
            kube,
            self._metrics,
            asks_for_certificates=settings.client_authority is not None,
        )
        self._context = _context(settings.client_authority)
        self.server = self._listener(self.routes(), settings.port, self._context)
        self.plain_server = self._listener(self._public_routes(), settings.metrics_port, None)
        self._registrar = Registrar(kube, settings, self._reach) if kube else None
        self._source: FolderCertificates | SecretCertificates
        if settings.certificate_directory:
            self._source = FolderCertificates(settings.certificate_directory)
        else:
            assert kube, "settings without an API server name a folder"
            assert self._registrar, "whoever has an API server has a registrar"
            self._source = SecretCertificates(kube, settings, self._registrar.trusted)
        self._served: Certificates | None = None  # None until the first certificate is there
        # whether both configurations, as last seen, name this webhook as they must
        self.is_registered = False
        # the troubles that were said last; None before the first look
        self._said: tuple[str, ...] | None = None
        self._log = logger(role="webhook")
        self._shutdown = Shutdown(settings.drain_s, self._log)
        self.hurry = self._shutdown.hurry  # ends the drain that is under way

    async def run(self, stop: asyncio.Event) -> None:
        """CannotListen."""
        await self.plain_server.start()
        limits = watch_limits(
            self._files,
            self._log,
            lambda: self._metrics.limits(wrong=self._files.wrong is not None),
        )
        loops = (self._keep_certificates(), limits, self._sweep(), stop.wait())
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(loop) for loop in loops]
        try:
            await event_loop.until_one_ends(tasks)  # a loop ends only by what it cannot go on after
            await self._shutdown.drain(self.server.ask_to_go)
            life.end_within(life.STOPPING_S)
        finally:
            for task in tasks:
                task.cancel()
            await self.server.stop()
            await self.plain_server.stop()

    def routes(self) -> Mapping[str, Handler]:
        return {
            "POST /validate": self._reviews.validate,
            "POST /mutate": self._reviews.mutate,
            **self._public_routes(),
        }

    def _public_routes(self) -> Mapping[str, Handler]:
        return {**health_routes(self._trouble), "GET /metrics": self._metrics.show}

    def _listener(
        self, routes: Mapping[str, Handler], port: int, context: ssl.SSLContext | None
    ) -> Listener:
        settings = ListenerSettings(LONGEST_BODY, context=context)
        return Listener(routes, ListenAddress(self._settings.address, port), settings)

    async def _keep_certificates(self) -> None:
        """First the certificates, so that what is registered is what is served."""
        look_s = self._settings.look_s
        retry_s = _FIRST_RETRY_S
        while True:
            outcome = await self._look()
            if outcome.changed:
                await asyncio.sleep(min(look_s, _FIRST_RETRY_S))
                continue
            self._say((*outcome.troubles, *self._why_invalid()))
            if self._registrar:
                self.is_registered = outcome.is_settled
                self._metrics.registered(well=outcome.is_settled)
            retry_s = min(look_s, retry_s * 2) if outcome.troubles else _FIRST_RETRY_S
            await asyncio.sleep(retry_s if outcome.troubles else look_s)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            with suppress(KubeError):  # also where there is no right to it, without dra.enabled
                await self._reviews.templates.sweep(self._reviews.lookups.now)

    async def _look(self) -> RegistrationOutcome:
        await self._reviews.lookups.look_at_version()
        try:
            found = await self._source.look(self._reviews.lookups.now)
            await self._serve(found)
        except (KubeError, UnusableCertificate) as error:
            return RegistrationOutcome((str(error),))
        return await self._registrar.look(found) if self._registrar else RegistrationOutcome()

    def _why_invalid(self) -> Iterator[str]:
        """Why API servers refuse the certificate that is served."""
        if self._served:
            validity = certificates.validity(self._served.serving.certificate)
            now = self._reviews.lookups.now
            if why := rules.why_invalid(validity, now, clock.wall_s()):
                yield why

    async def _serve(self, found: Certificates) -> None:
        """The first one opens the port."""
        if found == self._served:
            return
        load_into(self._context, found.serving)
        if self._served is None:
            await self.server.start()
            event_loop.expect_long_life()
        self._served = found
        self._metrics.certificates(found.expiries)
        self._log.info(
            "serving", port=self.server.port, certificate_ends=round(found.expiries["serving"])
        )

    def _say(self, troubles: tuple[str, ...]) -> None:
        if troubles and troubles != self._said:
            self._log.warning("not yet as it must be", reasons=list(troubles))
        elif troubles != self._said:
            self._log.info("all is as it must be", registered=self._registrar is not None)
        self._said = troubles

    async def _reach(self, bundle: str) -> str:
        anywhere = {ANYWHERE: "127.0.0.1", "::": "::1"}
        address = anywhere.get(self._settings.address, self._settings.address)
        return await trouble_reaching(
            address, self.server.port, self._settings.host_name, bundle, _CHECK_S
        )

    def _trouble(self) -> str:
        """Why API servers may not come; empty where they may."""
        if self._shutdown.has_begun:
            return "going"
        return "" if self._served else "; ".join(self._said or ["no certificate yet"])
