"""A webhook that is told to go: not ready at once, served to the last request, and gone in time."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.served import Served
from tests.whole.machine.machine import eventually
from tests.whole.webhook.api_server import ApiServer
from tests.whole.webhook.world import (
    DEADLINE_S,
    HOST,
    NAMESPACE,
    bundles,
    gpu_pod,
    is_registered,
    review_of,
    webhook,
)
from tests.world.unread import Place, unread, without_reader

REVIEW = review_of(gpu_pod())
_MANY = 40  # reviews, of all clients
_BREATH_S = 0.005


def test_a_signal_says_not_ready_at_once_and_drops_nothing(api: ApiServer, tmp_path: Path) -> None:
    flags = {"kubeconfig": str(api.kubeconfig(tmp_path)), "drain": "2s"}
    with webhook(tmp_path, **flags) as one:
        eventually(lambda: is_registered(api), "registered")
        (bundle,) = set(bundles(api))
        answers: list[str] = []
        failed: list[str] = []

        def ask_on_until_sent_away() -> None:
            """As an API server: a kept connection, a new one when it is asked to go, until it has
            been told twice."""
            told = 0
            while told < 2:
                with one.connect(bundle) as client:
                    while True:
                        answer = client.review("/validate", REVIEW)
                        answers.append(answer.text)
                        if answer.status != 200:
                            failed.append(answer.text)
                        if answer.headers.get("Connection") == "close":
                            told += 1
                            break
                        time.sleep(_BREATH_S)

        threads = [threading.Thread(target=ask_on_until_sent_away) for _thread in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answers) > _MANY, "all are asking")
        one.process.send_signal(signal.SIGTERM)
        eventually(lambda: one.public("/readyz").status == 503, "not ready", 1.0)
        assert one.public("/readyz").text == "going\n"
        assert one.public("/healthz").status == 200
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert not failed
        assert one.process.wait(DEADLINE_S) == 0


def test_a_second_signal_ends_the_drain(api: ApiServer, tmp_path: Path) -> None:
    with webhook(tmp_path, kubeconfig=str(api.kubeconfig(tmp_path)), drain="1h") as one:
        one.wait_until_ready()
        one.process.send_signal(signal.SIGTERM)
        eventually(lambda: one.log("going"), "it goes")
        assert one.process.poll() is None
        assert one.stop() == 0


def test_a_webhook_without_a_certificate_yet_stops_at_once(api: ApiServer, tmp_path: Path) -> None:
    api.away = True
    with webhook(tmp_path, kubeconfig=str(api.kubeconfig(tmp_path))) as one:
        eventually(lambda: one.log("not yet as it must be"), "it waits")
        assert one.stop() == 0


def test_a_killed_webhook_comes_back_with_the_same_certificate(
    api: ApiServer, tmp_path: Path
) -> None:
    flags = {"kubeconfig": str(api.kubeconfig(tmp_path))}
    with webhook(tmp_path, **flags) as one:
        eventually(lambda: is_registered(api), "registered")
        (bundle,) = set(bundles(api))
        before = one.serial_number(bundle)
        one.kill()
    assert is_registered(api), "nobody passes unseen meanwhile"
    with webhook(tmp_path, **flags) as two:
        two.wait_until_ready()
        assert two.serial_number(bundle) == before


@pytest.mark.parametrize("place", [unread, without_reader])
def test_nobody_has_to_read_the_log_of_a_webhook(
    place: Place, api: ApiServer, tmp_path: Path
) -> None:
    flags = {"kubeconfig": str(api.kubeconfig(tmp_path)), "namespace": NAMESPACE, "drain": "0s"}
    with place() as stderr:
        one = Served("webhook", tmp_path, flags, stderr)
        try:
            one.wait_until_ready()
            eventually(lambda: is_registered(api), "registered")
            dropped = one.metric('mpsd_log_lines_dropped_total{process="webhook"}')
            assert (dropped > 0) == (place is without_reader)
            assert one.stop() == 0
        finally:
            one.kill()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "there is no API server to keep certificates in"),
        (["--port", "x"], "write a port number"),
        (
            ["--kubeconfig", "/x", "--serving-life", "2d", "--authority-life", "3d"],
            "three times as long",
        ),
        (["--kubeconfig", "/x", "--url", "http://a"], "https://host:port"),
        (["--kubeconfig", "/x", "--drain", "soon"], "write a time"),
        (["--kubeconfig", "/x", "--failure-policy", "Maybe"], "write Fail or Ignore"),
    ],
)
def test_wrong_settings_are_said_with_what_to_write(flags: list[str], words: str) -> None:
    command = [sys.executable, "-m", "mpsd", "webhook", *flags]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert found.returncode == 2
    assert words in found.stderr
    assert HOST not in found.stderr
