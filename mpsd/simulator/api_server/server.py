"""A simulated Kubernetes API server, with a scheduler, Jobs, admission by webhooks and garbage
collection behind it.

    python -m mpsd.simulator.api_server.server --dir DIR [--port PORT]

writes DIR/kubeconfig once it serves, and serves until SIGTERM. On 127.0.0.1 alone, one token,
everything allowed.

What it does is what Kubernetes does, and what it does not do it refuses; tests/kube_contract holds
it to a real one.
"""

import argparse
import asyncio
import base64
import json
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from aiohttp import web

from mpsd.platform import certificates
from mpsd.simulator.api_server import kinds
from mpsd.simulator.api_server.admission import REVIEWS, Admitted
from mpsd.simulator.api_server.cluster import SimulatedCluster
from mpsd.simulator.api_server.kinds import PODS, ApiRefusal, Object
from mpsd.simulator.api_server.requests import (
    Target,
    Watched,
    changes,
    discovery,
    is_wanted,
    list_options,
    read_target,
    table,
)

# The certificate is new at every start and good for 127.0.0.1 alone.
_HOST = "127.0.0.1"
_LIFE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Shown:
    """authority: PEM of what has signed the certificate."""

    context: ssl.SSLContext
    authority: bytes


def new_certificate() -> Shown:
    now = time.time()
    authority = certificates.new_authority("simulated Kubernetes", now, _LIFE_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_into(context, certificates.issue(authority, [_HOST], now, _LIFE_S))
    return Shown(context, authority.certificate)


# -- serves HTTP over TLS on 127.0.0.1, and goes down as a machine does
# Nobody is waited for, and once it has stopped nothing is left of any connection, not even of one
# that was just being accepted.

_LAST_S = 0.1  # for handlers to end once their connections are gone


class SuddenServer:
    """handle: answers every request. port 0: the kernel chooses one."""

    def __init__(
        self,
        handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
        context: ssl.SSLContext,
        port: int,
        longest_body: int,
    ) -> None:
        app = web.Application(client_max_size=longest_body)
        app.router.add_route("*", "/{path:.*}", handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            shutdown_timeout=_LAST_S,
            handler_cancellation=True,
        )
        self._context = context
        self.port = port
        self._listening: socket.socket | None = None  # None while it does not run
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._runner.setup()
        self._listening = socket.create_server((_HOST, self.port), backlog=128)
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    async def stop(self) -> None:
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        await self._end_handshakes()
        server = self._runner.server
        for connection in server.connections if server else []:
            if connection.transport:
                connection.transport.abort()
        await self._runner.cleanup()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the turn after

    def _accept(self, listening: socket.socket) -> None:
        """asyncio's own server forgets whom it accepts in the turn in which it is closed."""
        with suppress(BlockingIOError, ConnectionAbortedError):  # the client has gone again
            connection, _peer = listening.accept()
            handshake = asyncio.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        server = self._runner.server
        assert server is not None
        with suppress(OSError):  # ssl.SSLError is one: the peer's affair
            await asyncio.get_running_loop().connect_accepted_socket(
                server, connection, ssl=self._context
            )

    async def _end_handshakes(self) -> None:
        """aiohttp knows of a connection only when TLS is agreed on, and cannot end it before."""
        # so that each has begun, and closes its connection when it is cancelled
        await asyncio.sleep(0)
        handshakes = tuple(self._handshakes)
        for handshake in handshakes:
            handshake.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)


_LONGEST_BODY = 4 * 1024**2
_PIECE = 1 << 16  # bytes of a list that are sent at once
_BOOKMARK_S = 60.0
_WATCH_S = 1800.0  # of a watch that does not say how long it wants to last


class ApiServer:
    """cluster: outlives a server that is stopped and started. port 0: the kernel chooses one, which
    is kept."""

    def __init__(
        self, cluster: SimulatedCluster, *, port: int = 0, bookmark_s: float = _BOOKMARK_S
    ) -> None:
        self.cluster = cluster
        self.port = port
        self.token = secrets.token_urlsafe(16)
        self._bookmark_s = bookmark_s
        self._shown = new_certificate()
        self._server: SuddenServer | None = None  # None while it is stopped

    async def start(self) -> None:
        self._server = SuddenServer(self._handle, self._shown.context, self.port, _LONGEST_BODY)
        await self._server.start()
        self.port = self._server.port
        self.cluster.start()

    async def stop(self) -> None:
        """What is stored stays."""
        if self._server is None:
            return
        await self._server.stop()
        await self.cluster.stop()
        self._server = None

    def kubeconfig(self) -> str:
        named = {"name": "simulated"}
        cluster = {
            "server": f"https://{_HOST}:{self.port}",
            "certificate-authority-data": base64.b64encode(self._shown.authority).decode(),
        }
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "simulated",
                "clusters": [named | {"cluster": cluster}],
                "users": [named | {"user": {"token": self.token}}],
                "contexts": [named | {"context": {"cluster": "simulated", "user": "simulated"}}],
            }
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiRefusal as error:
            return _json(error.status(), error.code)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in {"/healthz", "/readyz", "/livez"}:
            return web.Response(text="ok")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise ApiRefusal(401, "Unauthorized", "Unauthorized")
        found = discovery(request.path, self.cluster.kinds) if request.method == "GET" else None
        if found is not None:
            return _json(found)
        if request.method == "POST" and request.path in REVIEWS:
            return _json(self.cluster.reviews.answer(request.path, await _body(request)), 201)
        target = read_target(request.path, self.cluster.kinds)
        if target is None:
            raise kinds.no_such_path()
        return await self._of_objects(request, target)

    async def _of_objects(self, request: web.Request, target: Target) -> web.StreamResponse:
        name = bool(target.name)
        match request.method, name, target.subresource:
            case "GET", False, _:
                options = list_options(request.query)
                return await (self._watch if options.watch else self._list)(request, target)
            case "GET", True, "" | "status":
                thing = self.cluster.objects.found(*target.place)
                return self._table(request, target, [thing], {}) or _json(
                    self._typed(target, thing)
                )
            case "GET", True, "log" if target.kind is PODS:
                return self._log(request, target)
            case "POST", False, "":
                return await self._create(request, target)
            case "POST", True, "binding" | "eviction" if target.kind is PODS:
                return self._act_on_pod(target, await _body(request))
            case "POST", True, "token":
                return _json(
                    self.cluster.reviews.give_token(
                        target.namespace, target.name, await _body(request)
                    ),
                    201,
                )
            case "PUT", True, "" | "status":
                body = await _body(request)
                return self._admitted(
                    target, await self.cluster.update(*target.at, body, target.path)
                )
            case "PATCH", True, "" | "status":
                patch = await _body(request)
                how = request.content_type
                return self._admitted(
                    target, await self.cluster.patch(*target.at, patch, how, target.path)
                )
            case "DELETE", True, "":
                options = await _body(request)
                grace = request.query.get("gracePeriodSeconds")
                options |= {"gracePeriodSeconds": int(grace)} if grace else {}
                return _json(
                    self._typed(target, self.cluster.objects.delete(*target.place, options))
                )
            case "DELETE", False, "":
                return await self._delete_all(request, target)
            case _:
                pass
        raise ApiRefusal(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )

    async def _create(self, request: web.Request, target: Target) -> web.Response:
        dry_run = request.query.get("dryRun") == "All"
        admitted = await self.cluster.create(*target.at, await _body(request), dry_run=dry_run)
        return self._admitted(target, admitted, 201)

    def _log(self, request: web.Request, target: Target) -> web.Response:
        """As `cluster.logs` has it: no kubelet is behind this server."""
        self.cluster.objects.found(*target.place)
        wanted = (target.namespace, target.name, request.query.get("previous") == "true")
        return web.Response(text=self.cluster.logs.get(wanted, ""))

    def _act_on_pod(self, target: Target, body: Object) -> web.Response:
        if target.subresource == "binding":
            self.cluster.objects.bind(target.namespace, target.name, body)
        elif body.get("apiVersion") in {"policy/v1", "policy/v1beta1"}:
            self.cluster.objects.evict(target.namespace, target.name, body)
        else:
            raise kinds.bad_request(
                f"no kind Eviction is registered for version {body.get('apiVersion')!r}"
            )
        return _json(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            },
            201,
        )

    async def _delete_all(self, request: web.Request, target: Target) -> web.Response:
        test = list_options(request.query).test(target.kind)
        options = await _body(request)
        for key, thing in self.cluster.store.all(target.kind, target.namespace):
            if test(thing):
                self.cluster.objects.delete(target.kind, key.namespace, key.name, options)
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        options = list_options(request.query)
        store = self.cluster.store
        if options.version is not None and options.version > store.version:
            raise kinds.too_new(str(options.version))
        test = options.test(target.kind)
        if options.is_exact and options.version is not None:
            every = store.all_at(options.version, target.kind, target.namespace)
        else:
            every = store.all(target.kind, target.namespace)
        found = [(key, thing) for key, thing in every if test(thing)]
        rest = [
            (key, thing) for key, thing in found if options.after is None or key > options.after
        ]
        page = rest[: options.limit] if options.limit else rest
        version = (
            options.first_version
            or (options.version if options.is_exact else None)
            or store.version
        )
        metadata = {"resourceVersion": str(version)}
        if len(page) < len(rest):
            metadata["continue"] = options.token(version, page[-1][0])
        things = [thing for _key, thing in page]
        if shown := self._table(request, target, things, metadata):
            return shown
        typed = {"kind": f"{target.kind.name}List", "apiVersion": target.kind.api(target.version)}
        return await _streamed(request, {**typed, "metadata": metadata}, things)

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        options = list_options(request.query)
        store = self.cluster.store
        if options.version is not None and options.version > store.version:
            raise kinds.too_new(str(options.version))
        watched = Watched(
            kind=target.kind,
            version=target.version,
            namespace=target.namespace,
            test=options.test(target.kind),
            since=options.version or None,
            lasting_s=options.timeout_s or _WATCH_S,
            bookmark_s=self._bookmark_s if options.bookmarks else None,
        )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for line in changes(store, watched):
            await self._sent(response, msgspec.json.encode(line) + b"\n")
        return response

    async def _sent(self, response: web.StreamResponse, line: bytes) -> None:
        """One line of a watch."""
        await response.write(line)

    def _table(
        self, request: web.Request, target: Target, things: list[Object], metadata: Object
    ) -> web.Response | None:
        """None where objects are wanted, or there are no columns for this kind."""
        shown = (
            table(target.kind, things, metadata)
            if is_wanted(request.headers.get("Accept", ""))
            else None
        )
        return _json(shown) if shown else None

    def _typed(self, target: Target, thing: Object) -> Object:
        return {**thing, "kind": target.kind.name, "apiVersion": target.kind.api(target.version)}

    def _admitted(self, target: Target, admitted: Admitted, code: int = 200) -> web.Response:
        answer = _json(self._typed(target, admitted.thing), code)
        for warning in admitted.warnings:
            answer.headers.add("Warning", f"299 - {json.dumps(warning)}")
        return answer


async def _streamed(
    request: web.Request, head: Object, things: Iterable[Object]
) -> web.StreamResponse:
    """A list, which is not in memory at once."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    said = msgspec.json.encode(head).removesuffix(b"}") + b',"items":['
    between = b""
    for thing in things:
        said += between + msgspec.json.encode(thing)
        between = b","
        if len(said) > _PIECE:
            if request.transport is None or request.transport.is_closing():
                break  # the client has read enough
            await response.write(said)
            said = b""
    await response.write(said + b"]}")
    return response


def _json(value: Any, code: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=code, content_type="application/json"
    )


async def _body(request: web.Request) -> Any:
    """What was sent, {} for nothing. YAML too, which is what kubectl may send."""
    sent = await request.read()
    # some of kubectl's own commands; `kubectl apply -f` sends JSON
    if "protobuf" in request.content_type:
        raise ApiRefusal(
            415,
            "UnsupportedMediaType",
            "the simulated API server reads JSON and YAML, not protobuf",
        )
    try:
        return (
            yaml.safe_load(sent)
            if "yaml" in request.content_type
            else msgspec.json.decode(sent or b"{}")
        )
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise kinds.bad_request(f"the body cannot be read: {error}") from None


def write_kubeconfig(server: ApiServer, folder: Path) -> Path:
    """DIR/kubeconfig, all at once, so that no reader sees half of it."""
    path = folder / "kubeconfig"
    part = folder / "kubeconfig.part"
    part.touch(mode=0o600)
    part.write_text(server.kubeconfig())
    part.rename(path)
    return path


async def serve(folder: Path, port: int) -> None:
    server = ApiServer(SimulatedCluster(), port=port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    path = write_kubeconfig(server, folder)
    print(f"simulated Kubernetes on 127.0.0.1:{server.port}, kubeconfig: {path}", flush=True)
    await stop.wait()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A simulated Kubernetes API server, for tests and demonstrations."
    )
    parser.add_argument("--dir", type=Path, required=True, help="where the kubeconfig is written")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0: any that is free")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(given.dir, given.port))


if __name__ == "__main__":
    main()
