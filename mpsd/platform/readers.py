"""The TCP ports on which readers (Prometheus, a browser) are served.

On a loopback address whoever is on this machine may read; on any other nobody is served without TLS and a Kubernetes
token whose owner may get the path, by TokenReview and SubjectAccessReview. A token goes to the API server and nowhere
else: into no log, no answer and no message of an error.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Protocol

from aiohttp import web

from mpsd.model.times import DAY_S
from mpsd.platform.certificates import (
    FolderCertificates,
    Pair,
    UnusableCertificate,
    fingerprint,
    issue,
    load_into,
    new_authority,
)
from mpsd.platform.kube import Kube, KubeError, Resource, open_kube
from mpsd.platform.listener import (
    USER,
    ConnectionLimits,
    Handler,
    Listener,
    ListenerSettings,
    PortTaken,
    TcpAddress,
    tls_context,
)
from mpsd.platform.logs import Logger, logger
from mpsd.platform.rules.readers import (
    NO_TOKEN,
    NOT_KNOWN,
    OTHER_HOST,
    TOO_MANY,
    ReaderVerdict,
    Verdicts,
    access_review,
    away,
    bearer_token,
    is_allowed,
    is_own_host,
    lets_in,
    no_right,
    reviewed_user,
    token_review,
)
from mpsd.platform.settings import CannotListen, ListenAddress

_TOKENS = Resource("authentication.k8s.io/v1", "tokenreviews")
_ACCESS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
_MOST_AT_ONCE = 8  # who makes tokens up costs the API server no more than this
_PATIENCE_S = 5.0  # for one's turn: half of what Prometheus waits for a scrape


class TokenReviewer:
    """It has a connection of its own, so that whoever sends many tokens holds up none of mpsd's other questions."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)  # who came first is asked about first

    async def review(self, token: str, path: str) -> ReaderVerdict:
        """Whether who has this token may get this path; a 503 where the API server cannot say."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._turns.acquire()
        except TimeoutError:
            return TOO_MANY
        try:
            return await self._asked(token, path)
        except KubeError as error:
            return away(str(error).replace(token, "…"))
        finally:
            self._turns.release()

    async def _asked(self, token: str, path: str) -> ReaderVerdict:
        user = reviewed_user(await self._kube.create(_TOKENS, token_review(token)))
        if user is None:
            return NOT_KNOWN
        allowed = is_allowed(await self._kube.create(_ACCESS, access_review(user, path)))
        return lets_in(user) if allowed else no_right(user, path)

    def close(self) -> None:
        self._kube.close()


def token_reviewer(kubeconfig: Path | None) -> TokenReviewer:
    """kubeconfig None: the service account of this pod. Unavailable where neither can be read; nobody is asked yet."""
    return TokenReviewer(open_kube(kubeconfig))


_LIFE_S = 3650 * DAY_S  # as long as a process may live
_LOOK_S = 10.0  # between two looks at the folder


class ReadersCertificate:
    """The certificate that readers are shown where others get in: one made at start, whose key is in memory alone, or
    that of a folder, where one that cannot be used leaves the last good one in force.

    folder: of tls.crt and tls.key; None: it is made.
    """

    def __init__(self, folder: Path | None, log: Logger) -> None:
        self._folder = folder
        self._log = log
        self._shown: Pair | None = None  # None until `load`
        self._trouble = ""
        self.context = tls_context()

    async def load(self) -> None:
        """CannotListen where the folder's certificate cannot be used."""
        try:
            await self._look()
        except UnusableCertificate as error:
            raise CannotListen(f"--listen-certificate: {error}") from None

    async def keep(self) -> None:
        """Shows what is renewed in the folder, until it is cancelled; a change of what is wrong is logged once."""
        while self._folder:
            await asyncio.sleep(_LOOK_S)
            trouble = ""
            try:
                await self._look()
            except UnusableCertificate as error:
                trouble = str(error)
            if trouble and trouble != self._trouble:
                self._log.warning("certificate for readers cannot be used", reason=trouble)
            self._trouble = trouble

    async def _look(self) -> None:
        found = (await FolderCertificates(self._folder).look(0)).serving if self._folder else _made()
        if found != self._shown:
            load_into(self.context, found)
            self._shown = found
            self._log.info("certificate for readers", sha256=fingerprint(found.certificate), made=self._folder is None)


def _made() -> Pair:
    name, now = socket.gethostname(), time.time()
    return issue(new_authority(f"mpsd on {name}", now, _LIFE_S), [name, "localhost"], now, _LIFE_S)


_LONGEST_BODY = 4096
_LAST_REQUESTS_S = 1.0  # a scrape that is cut is made again, and a stream has no end to wait for
_CONNECTIONS = 128  # at a time on each port; each takes some 100 KiB, and an agent has 256 MiB
# Where others get in; on a loopback address whoever is on this machine is one. Several readers may share an address
# (NAT): one of them can have all 32 streams of the page and be told so, with 16 connections left for the others.
_OF_ONE_ADDRESS = 48
_LONGEST_ANSWER_S = 600.0  # of a stream; who asks anew is looked at anew


class Reviewer(Protocol):
    async def review(self, token: str, path: str, /) -> ReaderVerdict: ...

    def close(self) -> None: ...


class ReadersPort:
    """The same routes on each of these addresses, from `GET /path` to handler.

    reviewer: says who may read where others get in; None where every address is a loopback one.
    certificate: the folder of tls.crt and tls.key; None: one is made at start.
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        addresses: Sequence[ListenAddress],
        reviewer: Reviewer | None,
        certificate: Path | None = None,
    ) -> None:
        self._routes = routes
        self._addresses = addresses
        self._reviewer = reviewer
        self._certificate = certificate
        self._verdicts = Verdicts()
        self._servers: list[Listener] = []
        self._renewing: asyncio.Task[None] | None = None  # None where no folder is looked at
        self._log = logger(role="readers' port")

    async def start(self) -> None:
        """CannotListen where a port is taken or the certificate cannot be used; nothing is open then."""
        try:
            context = await self._context() if any(not one.is_loopback for one in self._addresses) else None
            for one in self._addresses:
                await self._open(one, context)
        except (PortTaken, CannotListen) as error:
            await self.stop()
            raise CannotListen(f"--listen: {error}") from None

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

    async def _open(self, one: ListenAddress, context: ssl.SSLContext | None) -> None:
        if one.is_loopback:
            routes, shown, who = {route: _at_home(do) for route, do in self._routes.items()}, None, "this machine"
            limits = ConnectionLimits(_CONNECTIONS, _CONNECTIONS)
        elif self._reviewer is None:
            raise CannotListen(f"{one}: others reach it, and there is nobody to ask who may read")
        else:
            routes = {route: self._for_reviewed(route, do, self._reviewer) for route, do in self._routes.items()}
            shown, who = context, "whom the API server lets"
            limits = ConnectionLimits(_CONNECTIONS, _OF_ONE_ADDRESS)
        settings = ListenerSettings(_LONGEST_BODY, _LAST_REQUESTS_S, cancels=True, limits=limits)
        server = Listener(routes, TcpAddress(one.address, one.port, shown), settings)
        await server.start()
        self._servers.append(server)
        self._log.info("serving readers", address=one.address, port=server.port, tls=shown is not None, readers=who)

    def _for_reviewed(self, route: str, handler: Handler, reviewer: Reviewer) -> Handler:
        path = route.split()[1]

        async def answer(request: web.Request) -> web.StreamResponse:
            verdict = await self._verdict(bearer_token(request.headers.get("Authorization", "")), path, reviewer)
            if not verdict.may_read:
                return _refused(verdict)
            request[USER] = verdict.user
            return await _served(request, handler)

        return answer

    async def _verdict(self, token: str, path: str, reviewer: Reviewer) -> ReaderVerdict:
        if not token:
            return NO_TOKEN
        now = monotonic()
        known = self._verdicts.known(token, path, now)
        if known:
            return known
        verdict = await reviewer.review(token, path)
        self._verdicts.keep(token, path, verdict, now)
        if verdict.status == 503:
            self._log.warning("reader refused", path=path, reason=verdict.reason)
        return verdict

    async def _context(self) -> ssl.SSLContext:
        shown = ReadersCertificate(self._certificate, self._log)
        await shown.load()
        if self._certificate:
            self._renewing = asyncio.create_task(shown.keep())
        return shown.context


def _at_home(handler: Handler) -> Handler:
    """For a loopback address."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_own_host(request.headers.get("Host", "")):
            return _refused(OTHER_HOST)
        return await handler(request)

    return answer


async def _served(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ends what lasts too long by closing its connection: a right that was taken away must not last in a stream."""
    transport = request.transport
    if transport is None:  # it has hung up while we asked
        return await handler(request)
    end = asyncio.get_running_loop().call_later(_LONGEST_ANSWER_S, transport.close)
    try:
        return await handler(request)
    finally:
        end.cancel()


def _refused(verdict: ReaderVerdict) -> web.Response:
    """In plain words. Who is refused keeps no connection, which others may need."""
    headers = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else {}
    answer = web.Response(text=f"{verdict.reason}\n", status=verdict.status, headers=headers)
    answer.force_close()
    return answer
