"""Certificates are renewed and their authority replaced under load: no request fails, and nobody
restarts."""

import base64
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from mpsd.model.times import DAY_S
from mpsd.platform.certificates import fingerprints
from tests.whole.machine.machine import eventually
from tests.whole.webhook.api_server import ApiServer
from tests.whole.webhook.world import SECRET, Webhook, bundles, is_registered, review_of, webhook
from tests.world.set_clocks import SetClocks

REVIEW = review_of({"kind": "ConfigMap", "apiVersion": "v1"})


class Load:
    """Asks replicas in turns, each with the authorities that the configuration names at that
    moment."""

    def __init__(self, api: ApiServer, replicas: list[Webhook]) -> None:
        self._api, self._replicas = api, replicas
        self._stop = threading.Event()
        self.answered = 0
        self.failed: list[str] = []
        self.serial_numbers: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.02):  # else it takes all of a core from those that it asks
            for replica in self._replicas:
                bundle = bundles(self._api)[0]
                try:
                    with replica.connect(bundle) as client:
                        for _request in range(3):
                            assert client.review("/validate", REVIEW).response["allowed"]
                            self.answered += 1
                        self.serial_numbers.append(client.serial_number)
                except (OSError, ssl.SSLError, AssertionError) as error:
                    self.failed.append(f"{time.time()}: {error!r}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()


def under_load(api: ApiServer, folder: Path, until: Callable[[], object], **flags: str) -> Load:
    """Two replicas under load from their registration until something is true. No request may
    fail."""
    given = {"kubeconfig": str(api.kubeconfig(folder)), **flags}
    with webhook(folder, **given) as one, webhook(folder, **given) as two:
        eventually(lambda: is_registered(api), "registered")
        one.wait_until_ready()
        two.wait_until_ready()
        with Load(api, [one, two]) as load:
            eventually(until, f"it happens:\n{one.log_text}", 90.0)
            after = load.answered
            eventually(lambda: load.answered > after + 50, "requests after it")
        assert not load.failed
        assert one.process.poll() is None
        assert two.process.poll() is None
        assert "PRIVATE" not in one.log_text + two.log_text
    return load


def named(api: ApiServer) -> frozenset[str]:
    return fingerprints(bundles(api)[0].encode())


def test_an_authority_is_replaced_under_load(api: ApiServer, tmp_path: Path) -> None:
    seen: list[frozenset[str]] = []

    def replaced() -> bool:
        now = named(api)
        if now and (not seen or seen[-1] != now):
            seen.append(now)
        return len(seen) > 2 and len(now) == 1

    under_load(api, tmp_path, replaced, serving_life="8s", authority_life="24s", settle="2s")
    assert [len(each) for each in seen[:3]] == [1, 2, 1]
    assert seen[0] < seen[1] > seen[2]
    assert not seen[0] & seen[2]


def test_a_secret_that_somebody_breaks_is_never_served(api: ApiServer, tmp_path: Path) -> None:
    flags = {
        "kubeconfig": str(api.kubeconfig(tmp_path)),
        "serving_life": "30s",
        "authority_life": "1h",
    }
    with webhook(tmp_path, **flags) as one:
        eventually(lambda: is_registered(api), "registered")
        secret = api.get(SECRET)
        secret["data"]["tls.key"] = base64.b64encode(b"broken").decode()
        api.put(SECRET, secret)
        eventually(
            lambda: api.get(SECRET)["data"]["tls.key"] != secret["data"]["tls.key"],
            "it is repaired",
        )
        eventually(lambda: api.get(SECRET)["data"].get("tls.crt"), "it is whole")
        assert one.review("/validate", REVIEW, bundles(api)[0])["allowed"]


@pytest.mark.parametrize("ahead_s", [-40 * DAY_S, 40 * DAY_S])
def test_a_certificate_is_valid_by_the_clock_of_the_api_server(
    api: ApiServer, tmp_path: Path, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = SetClocks(tmp_path)
    clocks.set(ahead_s)
    for name, value in clocks.environment.items():
        monkeypatch.setenv(name, value)
    with webhook(tmp_path, kubeconfig=str(api.kubeconfig(tmp_path))) as running:
        eventually(lambda: is_registered(api), "registered")
        assert running.review("/validate", REVIEW, bundles(api)[0])["allowed"]
