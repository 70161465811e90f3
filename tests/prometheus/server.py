"""A real Prometheus that scrapes every half second, and what it says.

Its targets are in a file, so that a test may add and take away some.
"""

import http.client
import json
import math
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.model.metrics import Exporter
from mpsd.simulator.programs import wait_until
from tests.manifests.rendering import named
from tests.prometheus.shipped import INSTANCE, JOB, hurried, job_of
from tests.served import free_port

READERS = "readers"  # the job that comes in by a token
INTERVAL = "500ms"
WINDOW = "8s"  # of every range: long enough for several scrapes
# far above what anything takes, however busy the machine; only a failing test waits so long
DEADLINE_S = 45.0
_REMEDY = (
    "tests/prometheus/programs.sh fetches it; put the folders that it prints on PATH, as `make"
    " check-see` does"
)


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


def program(name: str) -> str:
    """Of PATH; the test is skipped where it is not there."""
    return shutil.which(name) or pytest.skip(f"{name} is not here; {_REMEDY}")


def promtool(*words: str | Path, said: str = "") -> str:
    """What it says; AssertionError where it finds fault. said: its standard input."""
    argv = [program("promtool"), *map(str, words)]
    done = subprocess.run(argv, input=said, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """A server with the alerts of mpsd, whose waits and ranges are shortened."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._port = folder, free_port()
        self._targets: dict[tuple[Exporter, str], int] = {}
        self._write_targets()
        self.scrape_readers(None)
        (folder / "rules.yaml").write_text(yaml.safe_dump(hurried(WINDOW)))
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(_configuration()))
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stderr=log,
                env={**os.environ, "GOMAXPROCS": "1"},
            )

    def scrape(self, exporter: Exporter, instance: str, port: int) -> None:
        """From now on; honest labels are the target's own."""
        self._targets[exporter, instance] = port
        self._write_targets()

    def scrape_readers(self, port: int | None, token: str = "") -> None:
        """As the PodMonitor of the agent has it, with this token; None: no longer."""
        self._write("token", token)
        self._write(
            f"{READERS}.json", json.dumps([{"targets": [f"127.0.0.1:{port}"]}] if port else [])
        )

    def _write_targets(self) -> None:
        found = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {JOB: job_of(exporter), INSTANCE: instance},
            }
            for (exporter, instance), port in self._targets.items()
        ]
        self._write("targets.json", json.dumps(found))

    def _write(self, name: str, text: str) -> None:
        new = self._folder / f"{name}.new"
        new.write_text(text)
        new.replace(self._folder / name)

    # -- what it says

    def query(self, text: str) -> list[Sample]:
        """AssertionError with its words where it is none."""
        found = self._ask("query", query=text)["result"]
        return [Sample(one["metric"], float(one["value"][1])) for one in found]

    def alerts(self, name: str, state: str = "firing") -> list[Mapping[str, str]]:
        """The labels of those of this name that are in this state."""
        found = self._ask("alerts")["alerts"]
        return [
            one["labels"]
            for one in found
            if one["labels"]["alertname"] == name and one["state"] == state
        ]

    def told(self, name: str) -> Mapping[str, str]:
        """The annotations of the first of this name, as somebody would read them."""
        found = self._ask("alerts")["alerts"]
        return next(one["annotations"] for one in found if one["labels"]["alertname"] == name)

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    # -- until

    def until_up(self, targets: int) -> None:
        wait_until(
            lambda: self._answers(), DEADLINE_S, f"Prometheus answers: {self._folder / 'log'}", 0.05
        )
        wait_until(
            lambda: len(self.query("up == 1")) == targets,
            DEADLINE_S,
            f"{targets} targets are up",
            0.1,
        )

    def until_data(self, text: str) -> Sequence[Sample]:
        """The first samples of the query that are numbers; a quantile of nothing is none."""
        found: list[Sample] = []

        def look() -> bool:
            found[:] = [one for one in self.query(text) if not math.isnan(one.value)]
            return bool(found)

        wait_until(look, DEADLINE_S, f"data for {text}", 0.1)
        return found

    def until_firing(self, name: str) -> Mapping[str, str]:
        try:
            wait_until(lambda: self.alerts(name), DEADLINE_S, f"{name} fires", 0.1)
        except TimeoutError as error:
            raise AssertionError(f"{error}; pending: {self.alerts(name, 'pending')}") from None
        return self.alerts(name)[0]

    def until_quiet(self, name: str) -> None:
        def is_quiet() -> bool:
            return not self.alerts(name) and not self.alerts(name, "pending")

        wait_until(is_quiet, DEADLINE_S, f"{name} is quiet", 0.1)

    def _answers(self) -> bool:
        try:
            return bool(self.query("vector(1)"))
        except (OSError, http.client.HTTPException, AssertionError):
            assert self._process.poll() is None, (self._folder / "log").read_text()
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


def _configuration() -> dict[str, object]:
    scraped = {
        "job_name": "mpsd",
        "honor_labels": True,
        "file_sd_configs": _targets_in("targets.json"),
    }
    return {
        "global": {
            "scrape_interval": INTERVAL,
            "scrape_timeout": INTERVAL,
            "evaluation_interval": INTERVAL,
        },
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            scraped,
            {**_readers_port(), "file_sd_configs": _targets_in(f"{READERS}.json")},
        ],
    }


def _targets_in(file: str) -> list[dict[str, object]]:
    return [{"files": [file], "refresh_interval": "1s"}]


def _readers_port() -> dict[str, object]:
    """What the operator makes of the agent's PodMonitor, but for who is scraped."""
    agent = named("prometheus", "PodMonitor", job_of(Exporter.AGENT))
    (endpoint,) = agent["spec"]["podMetricsEndpoints"]
    return {
        "job_name": READERS,
        "scheme": endpoint["scheme"],
        "honor_labels": endpoint["honorLabels"],
        "tls_config": {"insecure_skip_verify": endpoint["tlsConfig"]["insecureSkipVerify"]},
        "authorization": {"type": endpoint["authorization"]["type"], "credentials_file": "token"},
    }


@contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    running = Prometheus(folder)
    try:
        yield running
    finally:
        running.stop()
