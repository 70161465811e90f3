"""The Kubernetes API over real TLS: what comes back, and what each failure is called."""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, TypedDict

import pytest
import yaml

from mpsd.model.times import DAY_S, HOUR_S
from mpsd.platform.certificates import issue, load_into, new_authority
from mpsd.platform.kube import (
    ANY_VERSION,
    Conflict,
    Forbidden,
    Kube,
    KubeError,
    NotFound,
    PatchKind,
    Resource,
    TooLarge,
    Unavailable,
    decoded,
)
from mpsd.platform.kube_access import open_kube
from mpsd.platform.listener import tls_context
from tests.simulated_api import simulated_api
from tests.whole.webhook.api_server import ApiServer, api_server
from tests.world.asking import answers

MAPS = Resource("v1", "configmaps")
LEASES = Resource("coordination.k8s.io/v1", "leases")
AT = "/api/v1/namespaces/a/configmaps"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as running:
        yield running


@pytest.fixture
def ask(server: ApiServer, tmp_path: Path) -> Callable[[Callable[[Kube], Awaitable[Any]]], Any]:
    """Runs questions against the server and closes what they opened."""

    def run(questions: Callable[[Kube], Awaitable[Any]]) -> Any:
        return answers(server.kubeconfig(tmp_path), questions)

    return run


Ask = Callable[[Callable[[Kube], Awaitable[Any]]], Any]


def named(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def test_a_path_is_that_of_the_group_and_the_namespace() -> None:
    assert MAPS.path("b", "a") == "/api/v1/namespaces/a/configmaps/b"
    assert LEASES.path("b/c?", "") == "/apis/coordination.k8s.io/v1/leases/b%2Fc%3F"


def test_an_object_is_created_read_replaced_and_patched(server: ApiServer, ask: Ask) -> None:
    async def questions(kube: Kube) -> None:
        created = await kube.create(MAPS, named("b", key="1"), "a")
        assert (await kube.get(MAPS, "b", "a")) == created
        replaced = await kube.replace(MAPS, created | {"data": {"key": "2"}}, "a")
        assert replaced["data"] == {"key": "2"}
        patched = await kube.patch(MAPS, "b", {"data": {"other": "3"}}, PatchKind.MERGE, "a")
        assert patched["data"] == {"key": "2", "other": "3"}

    ask(questions)


def test_a_list_is_whole_however_many_pages_it_has(server: ApiServer, ask: Ask) -> None:
    for number in range(1203):
        server.put(f"{AT}/m{number:04}", named(f"m{number:04}"))

    async def questions(kube: Kube) -> None:
        assert len(await kube.list(MAPS, "a")) == 1203

    ask(questions)
    assert [asked.verb for asked in server.asked] == ["list"] * 3


@pytest.mark.parametrize("version", [None, ANY_VERSION])
def test_a_list_whose_objects_are_large_comes_in_smaller_pages(
    tmp_path: Path, version: str | None
) -> None:
    """Of version 0 a server takes no limit."""
    large = "x" * 700_000
    with simulated_api() as api:
        kind = next(one for one in api.cluster.kinds if one.plural == MAPS.plural)
        for number in range(8):
            thing = named(f"m{number}", key=large)
            api.do(lambda it=thing: api.cluster.objects.create(kind, "default", it))  # type: ignore[misc]

        async def listed(kube: Kube) -> None:
            query = {} if version is None else {"resourceVersion": version}
            pages = [
                len([*page.items]) async for page in kube.pages(MAPS, "default", query, _MapFields)
            ]
            assert sum(pages) == 8
            assert max(pages) < 3, "of 2 MiB at most"

        answers(api.kubeconfig(tmp_path), listed)


def test_an_answer_that_is_larger_than_any_object_is_not_read(
    server: ApiServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(f"{AT}/m", named("m", key="x" * 300_000))
    monkeypatch.setattr("mpsd.platform.kube.LARGEST", 200_000)
    monkeypatch.setattr("mpsd.platform.kube._PAGE_BYTES", 100_000)

    async def listed(kube: Kube) -> None:
        with pytest.raises(TooLarge):
            await kube.list(MAPS, "a")

    ask(listed)


@pytest.mark.parametrize("depth", [500, 2_000, 10_000])
def test_an_object_that_is_nested_as_deep_as_servers_allow_is_read(depth: int) -> None:
    usual = sys.getrecursionlimit()
    deep = b'{"f:a":' * depth + b"1" + b"}" * depth
    body = b'{"metadata":{"name":"m","managedFields":[{"fieldsV1":' + deep + b"}]}}"
    assert decoded(body, _MapFields) == {"metadata": {"name": "m"}}
    assert sys.getrecursionlimit() == usual


class _Named(TypedDict):
    name: str


class _MapFields(TypedDict, total=False):
    metadata: _Named
    data: dict[str, str] | None


def test_of_a_list_only_the_fields_that_are_wanted_come_unless_an_object_does_not_fit(
    server: ApiServer, ask: Ask
) -> None:
    server.put(f"{AT}/m", named("m", key="1"))
    server.put(f"{AT}/n", named("n") | {"data": 1})

    async def listed(kube: Kube) -> None:
        fits, other = [one async for one in kube.each(MAPS, "a", fields=_MapFields)]
        assert fits == {"metadata": {"name": "m"}, "data": {"key": "1"}}
        assert other["data"] == 1
        assert len(other["metadata"]) > 1

    ask(listed)


SECOND: dict[str, Callable[[Kube, dict[str, Any]], Awaitable[object]]] = {
    "created twice": lambda kube, _stale: kube.create(MAPS, named("b"), "a"),
    "replaced when it had changed": lambda kube, stale: kube.replace(MAPS, stale, "a"),
    "patched when it had changed": lambda kube, stale: kube.patch(
        MAPS, "b", stale, PatchKind.MERGE, "a"
    ),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND.keys())
def test_who_comes_second_hears_of_a_conflict(
    ask: Ask, second: Callable[[Kube, dict[str, Any]], Awaitable[object]]
) -> None:
    async def questions(kube: Kube) -> None:
        first = await kube.create(MAPS, named("b"), "a")
        await kube.patch(MAPS, "b", {"data": {"x": "y"}}, PatchKind.MERGE, "a")
        stale = {"metadata": {"name": "b", "resourceVersion": first["metadata"]["resourceVersion"]}}
        with pytest.raises(Conflict):
            await second(kube, stale)

    ask(questions)


def test_what_is_absent_forbidden_or_away_is_told_apart(server: ApiServer, ask: Ask) -> None:
    server.put(f"{AT}/b", named("b"))
    server.forbidden = {("update", "configmaps")}

    async def questions(kube: Kube) -> None:
        with pytest.raises(NotFound, match="get configmaps c in a"):
            await kube.get(MAPS, "c", "a")
        with pytest.raises(Forbidden, match="lacks the right to update configmaps b in a"):
            await kube.replace(MAPS, named("b"), "a")
        server.away = True
        with pytest.raises(Unavailable, match="unable to handle"):
            await kube.get(MAPS, "b", "a")

    ask(questions)


def test_a_slow_server_is_away_at_the_deadline_and_holds_no_other_call_up(
    server: ApiServer, ask: Ask
) -> None:
    server.delay_s = 2.0
    server.put(f"{AT}/b", named("b"))

    async def questions(kube: Kube) -> None:
        slow = asyncio.create_task(kube.get(MAPS, "b", "a"))
        with pytest.raises(Unavailable, match=r"in 0\.1 s"):
            await kube.get(MAPS, "b", "a", deadline_s=0.1)
        assert not slow.done()
        assert (await slow)["metadata"]["name"] == "b"

    ask(questions)


@pytest.mark.parametrize(
    ("what", "instead", "error", "said"),
    [
        ("127.0.0.1:PORT", "127.0.0.1:1", Unavailable, "does not answer"),
        ("127.0.0.1:PORT", "127.0.0.1:OTHER", Unavailable, "CERTIFICATE_VERIFY_FAILED"),
        ("a-token", "no-token", Forbidden, "does not know mpsd's credentials"),
    ],
)
def test_who_is_not_the_server_or_not_known_to_it_is_said(
    server: ApiServer, tmp_path: Path, what: str, instead: str, error: type[KubeError], said: str
) -> None:
    file = server.kubeconfig(tmp_path)
    with api_server() as other:
        what = what.replace("PORT", str(server.port))
        instead = instead.replace("OTHER", str(other.port))
        file.write_text(file.read_text().replace(what, instead))
        with pytest.raises(error, match=said):
            answers(file, lambda kube: kube.get(MAPS, "b", "a"))
        assert not other.asked


each_way = pytest.mark.parametrize("ahead_s", [-2 * DAY_S, -HOUR_S, HOUR_S, 2 * DAY_S])


@each_way
def test_now_is_by_the_clock_of_the_server(
    server: ApiServer, ask: Ask, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpsd.platform.clock.wall_s", lambda: time.time() + ahead_s)
    server.put(f"{AT}/b", named("b"))

    async def questions(kube: Kube) -> None:
        assert kube.now == pytest.approx(time.time() + ahead_s, abs=60), "nothing is known yet"
        await kube.get(MAPS, "b", "a")
        assert kube.now == pytest.approx(time.time(), abs=60)

    ask(questions)


@each_way
def test_who_is_not_known_to_the_server_is_told_of_clocks_that_differ(
    server: ApiServer, tmp_path: Path, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.kubeconfig(tmp_path)
    file.write_text(file.read_text().replace("a-token", "no-token"))
    with pytest.raises(Forbidden) as by_one_clock:
        answers(file, lambda kube: kube.get(MAPS, "b", "a"))
    assert "clock" not in str(by_one_clock.value)
    monkeypatch.setattr("mpsd.platform.clock.wall_s", lambda: time.time() + ahead_s)
    way = "ahead" if ahead_s > 0 else "behind"
    with pytest.raises(Forbidden, match=f"which is .* {way}"):
        answers(file, lambda kube: kube.get(MAPS, "b", "a"))


@pytest.mark.parametrize("begins_s", [4 * DAY_S, -3 * DAY_S])
def test_a_certificate_of_another_time_is_refused_with_the_clock_of_here(
    server: ApiServer, tmp_path: Path, begins_s: float
) -> None:
    """As one is that was made by a clock that is off."""
    authority = new_authority("an authority", time.time() - 4 * DAY_S, 30 * DAY_S)
    pair = issue(authority, ["127.0.0.1", "localhost"], time.time() + begins_s, DAY_S)
    context = tls_context()
    load_into(context, pair)
    with of_certificate(context) as port:
        file = server.kubeconfig(tmp_path)
        trusted = tmp_path / "authority.pem"
        trusted.write_bytes(authority.certificate)
        config = yaml.safe_load(file.read_text())
        config["clusters"][0]["cluster"] = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority": str(trusted),
        }
        file.write_text(yaml.safe_dump(config))
        with pytest.raises(Unavailable, match="the clock of this machine says 20"):
            answers(file, lambda kube: kube.get(MAPS, "b", "a"))


@contextmanager
def of_certificate(context: ssl.SSLContext) -> Iterator[int]:
    """A server that shows it to one client, and no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def shake_hands() -> None:
            with suppress(OSError):
                peer, _address = server.accept()
                with peer, suppress(OSError):
                    context.wrap_socket(peer, server_side=True).close()

        thread = Thread(target=shake_hands)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("text", [None, "", "{]", "a: 1"])
def test_a_kubeconfig_that_cannot_be_used_says_so(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Unavailable, match="cannot be reached"):
        open_kube(file)
