"""A small API server over TLS: it keeps objects, counts resourceVersions, and refuses what is out
of date."""

import asyncio
import base64
import copy
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from mpsd.platform.certificates import issue, load_into, new_authority
from mpsd.platform.listener import tls_context
from mpsd.simulator.api_server.bodies import merged
from mpsd.simulator.api_server.server import SuddenServer
from tests.admission.reviews import review_of, validated
from tests.loop_thread import LoopThread

Object = dict[str, Any]
TOKEN = "a-token-of-the-test"
_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/v1(?:alpha1)?(?:/namespaces/[^/]+(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?"
)
REFUSED = "dial tcp 10.244.0.7:9443: connect: connection refused"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    verb: str
    path: str
    body: Any


class ApiServer:
    """Objects by path. Everything public may be changed by a test while it runs."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.asked: list[Asked] = []
        self.forbidden: set[tuple[str, str]] = set()  # verb and plural
        self.away = False  # answers 503
        # whether it can: an object that says that it was reviewed is a webhook's question
        self.calls_webhooks = True
        self.version = "v1.36.2"
        self.delay_s = 0.0
        self.before_write: Callable[[Asked], None] | None = None  # for losing a race
        self._version = 0
        self._authority = new_authority("test api server", time.time(), 3600)
        self._loop = LoopThread()
        context: ssl.SSLContext = tls_context()
        load_into(context, issue(self._authority, ["127.0.0.1"], time.time(), 3600))
        self._server = SuddenServer(self._handle, context, 0, 4 * 1024**2)

    def put(self, path: str, value: Object) -> None:
        """Writes an object, whoever else has it."""
        self._version += 1
        stored = copy.deepcopy(value)
        stored.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self.objects[path] = stored

    def get(self, path: str) -> Object:
        return copy.deepcopy(self.objects[path])

    def writes(self, plural: str) -> list[Asked]:
        """Without those that were a dry run."""
        asked = [
            one
            for one in list(self.asked)
            if one.verb in _VERBS.values() and f"/{plural}" in one.path
        ]
        return [one for one in asked if not one.path.endswith("/podtemplates")]

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        authority = base64.b64encode(self._authority.certificate).decode()
        cluster = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority-data": authority,
        }
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "test", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        return path

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        self._loop.do(self._server.start())

    def stop(self) -> None:
        """At once: nobody is waited for, as when a machine goes down."""
        self._loop.do(self._server.stop())
        self._loop.end()

    async def _handle(self, request: web.Request) -> web.Response:
        path = request.path
        if path == "/version":
            return web.json_response({"gitVersion": self.version})
        match = _PATH.fullmatch(path)
        assert match, path
        plural = match["plural"]
        verb = _VERBS.get(request.method) or ("get" if match["name"] else "list")
        asked = Asked(verb, path, await request.json() if request.can_read_body else None)
        self.asked.append(asked)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.away:
            return _status(503, "the server is currently unable to handle the request")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if (verb, plural) in self.forbidden:
            return _status(
                403, f'{plural} is forbidden: User "mpsd" cannot {verb} resource "{plural}"'
            )
        if verb in _VERBS.values() and self.before_write:
            hook, self.before_write = self.before_write, None
            hook(asked)
        return self._do(asked, request)

    def _do(self, asked: Asked, request: web.Request) -> web.Response:
        path, body = asked.path, asked.body
        if asked.verb == "create" and request.query.get("dryRun"):
            return self._dry(body)
        if asked.verb == "create":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return _status(409, f'"{body["metadata"]["name"]}" already exists')
            self.put(path, body)
            return web.json_response(self.objects[path], status=201)
        if asked.verb == "list":
            return self._page(path, request)
        if path not in self.objects:
            return _status(404, f'"{path.rsplit("/", 1)[-1]}" not found')
        if asked.verb == "get":
            return web.json_response(self.objects[path])
        stored = self.objects[path]
        sent = (body.get("metadata") or {}).get("resourceVersion")
        if sent is not None and sent != stored["metadata"]["resourceVersion"]:
            return _status(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        self.put(path, merged(stored, body) if asked.verb == "patch" else body)
        return web.json_response(self.objects[path])

    def _dry(self, body: Object) -> web.Response:
        """As the webhook answers that is registered, or as its failurePolicy says where it cannot
        be called."""
        (path,) = (one for one in self.objects if "/validatingwebhookconfigurations/" in one)
        (webhook,) = self.objects[path]["webhooks"]
        if self.calls_webhooks and webhook["clientConfig"].get("caBundle"):
            answer = validated(review_of(body))
            if not answer.allowed:
                return _status(
                    403,
                    f'admission webhook "{webhook["name"]}" denied the request: {answer.message}',
                )
        elif webhook["failurePolicy"] == "Fail":
            return _status(
                500,
                f'Internal error occurred: failed calling webhook "{webhook["name"]}": {REFUSED}',
            )
        return web.json_response(body, status=201)

    def _page(self, path: str, request: web.Request) -> web.Response:
        names = sorted(key for key in self.objects if key.rsplit("/", 1)[0] == path)
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        page = [self.objects[name] for name in names[start : start + limit]]
        more = {"continue": str(start + limit)} if start + limit < len(names) else {}
        return web.json_response({"items": page, "metadata": more})


def _status(code: int, message: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code
    )


@contextmanager
def api_server() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
