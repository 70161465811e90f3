"""The same promises through the engines that people have: containerd's ctr, docker, podman.

The published commands are for images and a driver that are not here; their variables and their
numbers are used.
"""

from collections.abc import Iterator

import pytest

from tests.host.engines import Containerd, Docker, Engine, Podman, PodmanOnCrun
from tests.host.host import Host, host_of
from tests.host.published import CARDS, OUT_OF_MEMORY, SUCCESS, results

ENGINES = [Containerd, Docker, Podman, PodmanOnCrun]
T4_MIB = 15109
SIX = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
EIGHT = {"ALIYUN_COM_GPU_MEM_CONTAINER": "8", "ALIYUN_COM_GPU_MEM_DEV": "15"}


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    yield from host_of("T4-15109", cards=CARDS)


@pytest.fixture(scope="module", params=ENGINES, ids=lambda kind: kind.__name__)
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


def test_b1_six_of_fifteen_gib_are_a_limit_that_holds(engine: Engine, host: Host) -> None:
    done = engine.run(SIX, "sim-cuda", "alloc=5800", "free", "alloc=7000", name="gpu_test1")
    assert done.code == 0, done
    assert results(done) == [SUCCESS, OUT_OF_MEMORY]
    host.until_nothing_reserved()


def test_b1_two_containers_share_the_card_and_what_is_removed_is_free_by_then(
    engine: Engine, host: Host
) -> None:
    for name, asks in (("gpu_test1", SIX), ("gpu_test2", EIGHT)):
        started = engine.detach(asks, "sleep", "300", name=name)
        assert started.code == 0, started
    assert host.ledger == {0: (T4_MIB * 6 // 15 + T4_MIB * 8 // 15, 0)}
    refused = engine.detach(SIX, "sleep", "300", name="gpu_test3")
    assert refused.code != 0, refused
    assert "6043 MiB are requested" in refused.errors
    for name in ("gpu_test1", "gpu_test2", "gpu_test3"):
        engine.remove(name)
    host.nothing_reserved()


def test_what_is_started_in_a_container_later_is_held_by_its_limit_too(
    engine: Engine, host: Host
) -> None:
    started = engine.detach(SIX, "sleep", "300", name="entered")
    assert started.code == 0, started
    done = engine.exec("entered", "sim-cuda", "alloc=5800", "free", "alloc=7000")
    assert results(done) == [SUCCESS, OUT_OF_MEMORY], done
    engine.remove("entered")
    host.nothing_reserved()
