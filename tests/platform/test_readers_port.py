"""Ports for readers, asked over real sockets, with the simulated API server behind them."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from mpsd.platform import readers
from mpsd.platform.certificates import Pair, issue, new_authority
from mpsd.platform.event_loop import until
from mpsd.platform.kube import Kube, Object, Resource
from mpsd.platform.kube_access import open_kube
from mpsd.platform.listener import Handler
from mpsd.platform.readers import ReadersPort, TokenReviewer
from mpsd.platform.rules.readers import ReaderVerdict
from mpsd.platform.settings import CannotListen, ListenAddress
from tests.simulated_api import SimulatedApi, simulated_api
from tests.told_lines import told_lines

HOME, AWAY = ListenAddress("127.0.0.1", 0), ListenAddress("0.0.0.0", 0)
DEADLINE_S = 30.0
ACCOUNTS = Resource("v1", "serviceaccounts")
ROLES, BINDINGS = (
    Resource("rbac.authorization.k8s.io/v1", f"clusterrole{end}") for end in ("s", "bindings")
)
READER: Object = {
    "metadata": {"name": "mpsd-reader"},
    "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
}
BINDING: Object = {
    "metadata": {"name": "prometheus-reads-mpsd"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "mpsd-reader",
    },
    "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "default"}],
}


async def metrics(_request: web.Request) -> web.Response:
    return web.Response(text="mpsd_gpus 2\n")


async def node(_request: web.Request) -> web.Response:
    return web.Response(text="{}")


async def changes(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b"data: 1\n\n")
        await asyncio.sleep(0.05)


ROUTES: Mapping[str, Handler] = {
    "GET /metrics": metrics,
    "GET /v1/node": node,
    "GET /v1/page/again": changes,
}


@dataclass(frozen=True)
class Api:
    """The simulated API server, and tokens of two service accounts of which one may read
    metrics."""

    server: SimulatedApi
    kubeconfig: Path
    reader: str
    other: str


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with simulated_api() as server:
        kubeconfig = server.kubeconfig(tmp_path_factory.mktemp("api"))
        reader, other = asyncio.run(_accounts(kubeconfig))
        yield Api(server, kubeconfig, reader, other)


async def _accounts(kubeconfig: Path) -> Sequence[str]:
    kube = open_kube(kubeconfig)
    try:
        await kube.create(ROLES, READER)
        await kube.create(BINDINGS, BINDING)
        return [await _token(kube, name) for name in ("prometheus", "other")]
    finally:
        kube.close()


async def _token(kube: Kube, name: str) -> str:
    await kube.create(ACCOUNTS, {"metadata": {"name": name}}, "default")
    answer = await kube.create(
        ACCOUNTS, {"metadata": {"name": name}, "spec": {}}, "default", "token"
    )
    return str(answer["status"]["token"])


@asynccontextmanager
async def serving(
    *addresses: ListenAddress,
    reviewer: TokenReviewer | None = None,
    certificate: Path | None = None,
) -> AsyncIterator[list[int]]:
    """The ports, in the order of the addresses."""
    with told_lines() as lines:
        port = ReadersPort(ROUTES, addresses, reviewer, certificate)
        await port.start()
    try:
        yield [line["port"] for line in lines if line["event"] == "serving readers"]
    finally:
        await port.stop()


async def get(url: str, token: str = "", **headers: str) -> tuple[int, str]:
    given = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    timeout = aiohttp.ClientTimeout(DEADLINE_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, headers=given, ssl=False) as answer,
    ):
        return answer.status, await answer.text()


def test_on_a_loopback_address_this_machine_may_read_and_no_web_page() -> None:
    async def main() -> None:
        async with serving(HOME) as (port,):
            assert await get(f"http://127.0.0.1:{port}/metrics") == (200, "mpsd_gpus 2\n")
            assert (await get(f"http://localhost:{port}/v1/node"))[0] == 200
            assert (await get(f"http://127.0.0.1:{port}/v1/grants"))[0] == 404
            # a web page that lets its own name point here
            status, said = await get(f"http://127.0.0.1:{port}/metrics", Host="evil.example")
            assert status == 403
            assert "localhost alone" in said

    asyncio.run(main())


def test_over_a_network_who_has_the_right_to_a_path_reads_it_and_nobody_else(api: Api) -> None:
    async def main() -> None:
        async with serving(HOME, AWAY, reviewer=TokenReviewer(api.kubeconfig)) as (home, away):
            metrics_url = f"https://127.0.0.1:{away}/metrics"
            assert await get(metrics_url, api.reader) == (200, "mpsd_gpus 2\n")
            assert (await get(f"https://127.0.0.1:{away}/v1/node", api.reader))[0] == 403
            status, said = await get(metrics_url, api.other)
            assert status == 403
            assert "system:serviceaccount:default:other may not get /metrics" in said
            assert "mpsd-reader" in said
            assert (await get(metrics_url, "made-up"))[0] == 401
            assert (await get(metrics_url, api.reader + "x"))[0] == 401
            assert (await get(metrics_url, Authorization="Basic YTpi"))[0] == 401
            status, said = await get(metrics_url)
            assert status == 401
            assert "Authorization: Bearer TOKEN" in said
            with pytest.raises(aiohttp.ClientError):
                await get(f"http://127.0.0.1:{away}/metrics", api.reader)
            assert (await get(f"http://127.0.0.1:{home}/metrics"))[0] == 200

    asyncio.run(main())


def test_while_the_api_server_is_away_nobody_new_is_let_in_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    with simulated_api() as server:
        kubeconfig = server.kubeconfig(tmp_path)
        reader, _other = asyncio.run(_accounts(kubeconfig))

        async def main() -> None:
            async with serving(AWAY, reviewer=TokenReviewer(kubeconfig)) as (port,):
                url = f"https://127.0.0.1:{port}"
                await asyncio.to_thread(server.stop)
                with told_lines() as lines:
                    status, said = await get(f"{url}/metrics", reader)
                assert status == 503
                assert "cannot be asked" in said
                assert [line["event"] for line in lines] == ["reader refused"]
                await asyncio.to_thread(server.start)
                assert (await get(f"{url}/metrics", reader))[0] == 200
                await asyncio.to_thread(server.stop)
                # it was let in less than a minute ago
                assert (await get(f"{url}/metrics", reader))[0] == 200
                await asyncio.to_thread(server.start)

        asyncio.run(main())


@dataclass
class Counting:
    """Says yes to everybody, and notes what it was asked."""

    asked: list[str] = field(default_factory=list)

    async def review(self, token: str, path: str, /) -> ReaderVerdict:
        self.asked.append(path)
        return ReaderVerdict(200)

    def close(self) -> None:
        pass


def test_who_makes_tokens_up_by_the_dozen_keeps_no_reader_from_being_asked_about(api: Api) -> None:
    async def main() -> None:
        reviewer = TokenReviewer(api.kubeconfig)
        try:
            made_up = [reviewer.review(f"made-up-{number}", "/metrics") for number in range(40)]
            *others, verdict = await asyncio.gather(
                *made_up, reviewer.review(api.reader, "/metrics")
            )
        finally:
            reviewer.close()
        assert verdict == ReaderVerdict(200, user="system:serviceaccount:default:prometheus")
        assert {one.status for one in others} == {401}

    asyncio.run(main())


def test_no_token_is_in_any_line_of_the_log_or_any_answer(api: Api, tmp_path: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        with told_lines() as lines:
            async with serving(AWAY, reviewer=TokenReviewer(api.kubeconfig)) as (port,):
                url = f"https://127.0.0.1:{port}/metrics"
                said.extend(
                    [
                        (await get(url, token))[1]
                        for token in (api.reader, api.other, "made-up-token")
                    ]
                )
                await asyncio.to_thread(api.server.stop)
                try:
                    said.append((await get(f"https://127.0.0.1:{port}/v1/node", api.reader))[1])
                finally:
                    await asyncio.to_thread(api.server.start)
        said.extend(map(repr, lines))

    asyncio.run(main())
    assert any("reader refused" in line for line in said)
    for token in (api.reader, api.other, "made-up-token"):
        assert not any(token in line for line in said)


def test_a_stop_waits_for_no_stream() -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with serving(HOME) as (port,):
                answer = await session.get(f"http://127.0.0.1:{port}/v1/page/again")
                assert await answer.content.readline() == b"data: 1\n"
            with pytest.raises(aiohttp.ClientError):
                async with asyncio.timeout(DEADLINE_S):
                    await answer.content.read()
            answer.close()

    asyncio.run(main())


def test_a_stream_ends_so_that_who_may_read_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LONGEST_ANSWER_S", 0.2)

    async def main() -> None:
        async with serving(AWAY, reviewer=Counting()) as (port,):
            with pytest.raises(aiohttp.ClientError):
                await get(f"https://127.0.0.1:{port}/v1/page/again", "a")
            assert (await get(f"https://127.0.0.1:{port}/metrics", "a"))[0] == 200

    asyncio.run(main())


def test_an_address_that_others_reach_is_not_opened_where_nobody_can_be_asked() -> None:
    async def main() -> None:
        with pytest.raises(CannotListen, match="no API server reviews"):
            async with serving(HOME, AWAY):
                pass

    asyncio.run(main())


# -- certificates

AUTHORITY = new_authority("test", time.time(), 3600)


def write(folder: Path, pair: Pair) -> None:
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "tls.crt").write_bytes(pair.certificate)


async def shown(port: int) -> bytes:
    """The certificate that a reader sees, once it is one that our authority signed for
    localhost."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    _reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found


def _said(lines: Sequence[Mapping[str, object]], event: str) -> bool:
    return any(line["event"] == event for line in lines)


def test_a_certificate_of_a_folder_is_shown_and_shown_anew_once_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_LOOK_S", 0.05)
    write(tmp_path, issue(AUTHORITY, ["localhost"], time.time(), 600))

    async def main() -> None:
        async with serving(AWAY, reviewer=Counting(), certificate=tmp_path) as (port,):
            first = await shown(port)
            with told_lines() as lines:
                (tmp_path / "tls.key").write_text("half written")
                await until(
                    lambda: _said(lines, "certificate for readers cannot be used"),
                    DEADLINE_S,
                    "it is said",
                )
                assert await shown(port) == first
                write(tmp_path, issue(AUTHORITY, ["localhost"], time.time(), 600))
                await until(
                    lambda: _said(lines, "certificate for readers"),
                    DEADLINE_S,
                    "the new one is shown",
                )
            assert await shown(port) != first

    asyncio.run(main())


def test_a_folder_without_a_usable_certificate_is_refused_at_start(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(CannotListen, match=r"--listen-certificate: .*tls\.crt cannot be read"):
            async with serving(AWAY, reviewer=Counting(), certificate=tmp_path):
                pass

    asyncio.run(main())
