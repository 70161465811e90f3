"""The same promises through the engines that people have: containerd's ctr, docker, podman."""

from collections.abc import Iterator

import pytest

from tests.host.engines import Containerd, Docker, Engine, Podman
from tests.host.host import Host


@pytest.fixture(scope="module", params=[Containerd, Docker, Podman], ids=lambda kind: kind.__name__.lower())
def running_engine(serving_host: Host, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine = request.param(serving_host)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()


@pytest.fixture
def engine(host: Host, running_engine: Engine) -> Engine:
    return running_engine


def test_a_container_that_asks_nothing_is_started_as_by_runc(engine: Engine) -> None:
    done = engine.run({"LANG": "C"}, "sh", "-c", "echo $LANG; exit 7", name="plain")
    assert (done.code, done.output.strip()) == (7, "C")
