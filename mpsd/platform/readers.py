"""The TCP ports on which readers (Prometheus, a browser) are served.

On a loopback address anybody of this machine may read; on any other, over TLS, who has a token of
Kubernetes and may get the path. A token goes to the API server and into no log, answer or error.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from aiohttp import web

from mpsd.model.times import DAY_S
from mpsd.platform import certificates, clock, life
from mpsd.platform.certificates import FolderCertificates, Pair, UnusableCertificate
from mpsd.platform.kube import KubeError, Resource
from mpsd.platform.kube_access import open_kube
from mpsd.platform.listener import USER, Handler, Listener, ListenerSettings, tls_context
from mpsd.platform.logs import logger
from mpsd.platform.rules import readers as rules
from mpsd.platform.rules.readers import ReaderVerdict
from mpsd.platform.settings import CannotListen, ListenAddress

_TOKENS = Resource("authentication.k8s.io/v1", "tokenreviews")
_ACCESS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
_MOST_AT_ONCE = 8  # who makes tokens up costs the API server no more than this
_PATIENCE_S = 5.0  # for one's turn: half of what Prometheus waits for a scrape
_LIFE_S = 3650 * DAY_S  # of a certificate that is made
_LOOK_S = 10.0  # at the folder of a certificate
_LONGEST_BODY = 4096
_LAST_REQUESTS_S = 1.0  # of scrapes, which are made again, and streams
_CONNECTIONS = 128  # on each port; each takes some 100 KiB
_OF_ONE_ADDRESS = 48  # not a loopback one; several readers may share it (NAT)
_LONGEST_ANSWER_S = 600.0  # of a stream; who asks anew is looked at anew


class TokenReviewer:
    """Reviews tokens by a connection of its own, so that they hold up no other request.

    kubeconfig None: the service account of this pod. Unavailable where neither can be read.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kube = open_kube(kubeconfig)
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)  # who came first is asked about first

    async def review(self, token: str, path: str) -> ReaderVerdict:
        """Whether the token's owner may; a 503 where the API server cannot say."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._turns.acquire()
        except TimeoutError:
            return rules.TOO_MANY
        try:
            user = rules.reviewed_user(await self._kube.create(_TOKENS, rules.token_review(token)))
            if user is None:
                return rules.NOT_KNOWN
            answer = await self._kube.create(_ACCESS, rules.access_review(user, path))
            return user.verdict(path, allowed=rules.is_allowed(answer))
        except KubeError as error:
            return rules.away(str(error).replace(token, "…"))
        finally:
            self._turns.release()

    def close(self) -> None:
        self._kube.close()


class ReadersPort:
    """The same routes, from `GET /path` to handler, on each of these addresses.

    reviewer: None where every address is a loopback one. certificate: the folder of tls.crt and
    tls.key for the others; the last good pair stays in force. None: one is made at start, in memory
    alone.
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        addresses: Sequence[ListenAddress],
        reviewer: TokenReviewer | None,
        certificate: Path | None = None,
    ) -> None:
        self._routes = routes
        self._addresses = addresses
        self._reviewer = reviewer
        self._folder = certificate
        self._context = tls_context()
        self._settings = ListenerSettings(
            _LONGEST_BODY, _LAST_REQUESTS_S, True, _CONNECTIONS, _CONNECTIONS
        )
        self._shown: Pair | None = None  # None until the first one is loaded
        self._verdicts = rules.Verdicts()
        self._servers: list[Listener] = []
        self._renewing: asyncio.Task[None] | None = None  # None where no folder is looked at
        self._log = logger(role="readers' port")

    async def start(self) -> None:
        """CannotListen where a port is taken or the certificate cannot be used."""
        try:
            if not all(one.is_loopback for one in self._addresses):
                await self._show_certificate()
                if self._folder:
                    self._renewing = life.background(self._renew())
            for one in self._addresses:
                await self._open(one)
        except CannotListen as error:
            await self.stop()
            raise CannotListen(f"--listen: {error}") from None
        except UnusableCertificate as error:
            await self.stop()
            raise CannotListen(f"--listen-certificate: {error}") from None

    async def stop(self) -> None:
        if self._renewing:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._servers.clear()
        if self._reviewer:
            self._reviewer.close()

    async def _open(self, one: ListenAddress) -> None:
        if one.is_loopback:
            routes = {route: _at_home(do) for route, do in self._routes.items()}
            who = "this machine"
            settings = self._settings
        elif self._reviewer is None:
            why = "other machines reach it, and no API server reviews the tokens of readers"
            raise CannotListen(f"{one}: {why}")
        else:
            review = partial(self._for_reviewed, reviewer=self._reviewer)
            routes = {route: review(route, do) for route, do in self._routes.items()}
            who = "whom the API server lets"
            settings = replace(self._settings, most_of_peer=_OF_ONE_ADDRESS, context=self._context)
        server = Listener(routes, one, settings)
        await server.start()
        self._servers.append(server)
        where = {"address": one.address, "port": server.port}
        self._log.info("serving readers", **where, tls=settings.context is not None, readers=who)

    # -- the certificate

    async def _show_certificate(self) -> None:
        """UnusableCertificate where the folder's cannot be used."""
        if self._folder:
            found = (await FolderCertificates(self._folder).look(0)).serving
        else:
            name = socket.gethostname()
            now = clock.wall_s()
            authority = certificates.new_authority(f"mpsd on {name}", now, _LIFE_S)
            found = certificates.issue(authority, [name, "localhost"], now, _LIFE_S)
        if found != self._shown:
            certificates.load_into(self._context, found)
            self._shown, sha256 = found, certificates.fingerprint(found.certificate)
            self._log.info("certificate for readers", sha256=sha256, made=self._folder is None)

    async def _renew(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._show_certificate()
                trouble = ""
            except UnusableCertificate as error:
                if trouble != str(error):
                    trouble = str(error)
                    self._log.warning("certificate for readers cannot be used", reason=trouble)

    # -- requests

    def _for_reviewed(self, route: str, handler: Handler, reviewer: TokenReviewer) -> Handler:
        path = route.split()[1]

        async def answer(request: web.Request) -> web.StreamResponse:
            verdict = rules.NO_TOKEN
            if token := rules.bearer_token(request.headers.get("Authorization", "")):
                verdict = await self._verdict(token, path, reviewer)
            if not verdict.may_read:
                return _refused(verdict)
            request[USER] = verdict.user
            return await _served(request, handler)

        return answer

    async def _verdict(self, token: str, path: str, reviewer: TokenReviewer) -> ReaderVerdict:
        now = monotonic()
        if known := self._verdicts.known(token, path, now):
            return known
        verdict = await reviewer.review(token, path)
        self._verdicts.keep(token, path, verdict, now)
        if verdict.status == 503:
            self._log.warning("reader refused", path=path, reason=verdict.reason)
        return verdict


def _at_home(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if rules.is_own_host(request.headers.get("Host", "")):
            return await handler(request)
        return _refused(rules.OTHER_HOST)

    return answer


async def _served(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Closes what lasts too long: a right that was taken away must not last."""
    transport = request.transport
    if transport is None:  # it has hung up while we asked
        return await handler(request)
    end = asyncio.get_running_loop().call_later(_LONGEST_ANSWER_S, transport.close)
    try:
        return await handler(request)
    finally:
        end.cancel()


def _refused(verdict: ReaderVerdict) -> web.Response:
    """A refusal, which keeps no connection, as others may need it."""
    answer = web.Response(text=f"{verdict.reason}\n", status=verdict.status)
    if verdict.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    answer.force_close()
    return answer
