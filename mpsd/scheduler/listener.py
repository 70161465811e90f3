"""The extender's listener: a port that only kube-scheduler reaches, or one that takes only client certificates.

Without both a certificate of its own and an authority for those of clients, a port that others reach is never
open; what is renewed on disk counts within seconds, and what cannot be used leaves the last good in force.
"""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

from mpsd.platform.certificates import Certificates, FolderCertificates, UnusableCertificate, fingerprints, load_into
from mpsd.platform.listener import Handler, Listener, ListenerSettings, TcpAddress, tls_context
from mpsd.platform.logs import logger
from mpsd.scheduler.api import SchedulerMetrics
from mpsd.scheduler.settings import SchedulerSettings
from mpsd.scheduler.wire import LONGEST_BODY

_LOOK_S = 2.0


class ExtenderListener:
    """The listener. trouble: why it is not open, or why the files on disk do not count; empty for neither."""

    def __init__(self, routes: Mapping[str, Handler], settings: SchedulerSettings, metrics: SchedulerMetrics) -> None:
        self._routes = routes
        self._settings = settings
        self._metrics = metrics
        self._server: Listener | None = None  # None until it is open
        self._context: ssl.SSLContext | None = None  # None without TLS, and before the first certificates
        self._shown: Certificates | None = None
        self._authorities = ""  # PEM: whose client certificates are taken
        self.trouble = "not open yet"
        self._log = logger(role="scheduler")

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def keep(self) -> None:
        """Until it is cancelled. PortTaken where nobody can listen there."""
        folder, authority = self._settings.certificate_directory, self._settings.client_authority
        if folder is None or authority is None:
            await self._open(None)
            await asyncio.get_running_loop().create_future()
            return
        source = FolderCertificates(folder)
        while True:
            try:
                await self._look(await source.look(0), authority)
                self._say("")
            except UnusableCertificate as error:
                self._say(str(error))
            await asyncio.sleep(_LOOK_S)

    def ask_to_go(self) -> None:
        if self._server:
            self._server.ask_to_go()

    async def close(self) -> None:
        """Finishes what is under way."""
        if self._server:
            await self._server.stop()
            self._server = None

    async def _look(self, found: Certificates, authority: Path) -> None:
        authorities = _read_authorities(authority)
        if self._context is None or authorities != self._authorities:
            context = _context(authorities)
            load_into(context, found.serving)
            # Clients of an authority that is no longer trusted must not stay connected.
            await self.close()
            await self._open(context)
            self._authorities = authorities
        elif found != self._shown:
            load_into(self._context, found.serving)
            self._log.info("certificate renewed", ends=round(found.expiries["serving"]))
        self._shown = found
        self._metrics.certificates({"serving": found.expiries["serving"]})

    async def _open(self, context: ssl.SSLContext | None) -> None:
        settings = self._settings
        server = Listener(
            self._routes, TcpAddress(settings.address, settings.port, context), ListenerSettings(LONGEST_BODY)
        )
        await server.start()
        self._server, self._context, self.trouble = server, context, ""
        self._log.info("serving", address=settings.address, port=server.port, tls=context is not None)

    def _say(self, trouble: str) -> None:
        """Once when it changes."""
        if trouble and trouble != self.trouble:
            self._log.warning("certificates cannot be used", reason=trouble, served=self.is_open)
        self.trouble = trouble


def _read_authorities(path: Path) -> str:
    try:
        found = path.read_bytes()
    except OSError as error:
        raise UnusableCertificate(f"{path} cannot be read: {error.strerror}") from None
    if not fingerprints(found):
        raise UnusableCertificate(f"{path} holds no certificate of an authority, in PEM")
    return found.decode()


def _context(authorities: str) -> ssl.SSLContext:
    try:
        return tls_context(authorities)
    except ssl.SSLError as error:
        raise UnusableCertificate(f"the authority for clients cannot be used: {error}") from None
