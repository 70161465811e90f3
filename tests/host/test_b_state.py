"""seeds.md B3 and B4 on two A10, the second of which has cGPU's policy 3: what is read and set
while containers run."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.host.container import Container, Ended, ended
from tests.host.engines import Docker
from tests.host.host import Host, host_of
from tests.host.published import CARDS
from tests.whole.machine.machine import MPSD

A10_MIB = 23028
MAX_INST = 20
LIMIT, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    yield from host_of(
        "A10-23028x2", cards=CARDS, compute={"cards": {"1": {"policy": 3, "max_inst": MAX_INST}}}
    )


def cgpu(gib: int, card: int = 0, weight: int | None = None) -> dict[str, str]:
    asked = {"ALIYUN_COM_GPU_MEM_CONTAINER": str(gib), "ALIYUN_COM_GPU_MEM_DEV": "23"}
    asked["NVIDIA_VISIBLE_DEVICES"] = str(card)
    return asked if weight is None else asked | {"ALIYUN_COM_GPU_SCHD_WEIGHT": str(weight)}


def share_mib(gib: int) -> int:
    return A10_MIB * gib // 23


def use(host: Host) -> Mapping[str, Any]:
    done = host.asked("smi", "-o", "json")
    assert done.code == 0, done
    found: Mapping[str, Any] = json.loads(done.output)
    return found


def set_to(host: Host, container: Container, *words: str) -> Mapping[str, Any]:
    """What `mpsd set` says, which must be yes."""
    done = host.asked("set", container.name, "-o", "json", *words)
    assert done.code == 0, done
    found: Mapping[str, Any] = json.loads(done.output)
    return found


def variables(done: Ended) -> dict[str, str]:
    assert done.code == 0, done
    return dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)


def test_b3_a_weight_is_set_while_the_container_runs_up_to_what_is_free(host: Host) -> None:
    first, second = host.holding(cgpu(2, 1, weight=6)), host.holding(cgpu(2, 1, weight=4))
    changed = set_to(host, first, "--weight", "10")
    assert [card["weight"] for card in changed["after"]["cards"]] == [10]
    assert changed["after"]["thread_percent"] == 50
    assert use(host)["gpus"][1]["freeWeight"] == MAX_INST - 14
    refused = host.asked("set", second.name, "--weight", "11")
    assert refused.code == 1
    assert f"{MAX_INST - 10} are free for this grant" in refused.errors
    assert use(host)["gpus"][1]["freeWeight"] == MAX_INST - 14


@pytest.fixture
def docker(host: Host) -> Iterator[Docker]:
    made = Docker(host)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()


def test_b3_docker_exec_gives_the_new_values_and_docker_restart_what_the_containers_variables_say(
    host: Host, docker: Docker
) -> None:
    started = docker.detach(cgpu(6), "sleep", "300", name="train")
    assert started.code == 0, started
    changed = host.asked("set", started.output[:8], "--mem", "9GiB", "--percent", "50")
    assert changed.code == 0, changed
    now = variables(docker.exec("train", "env"))
    assert (now[LIMIT], now[THREADS]) == ("0=9216M", "50")
    assert host.ledger == {0: (9216, 50), 1: (0, 0)}
    again = docker.docker("restart", "--time", "0", "train")
    assert again.code == 0, again
    assert host.ledger == {0: (share_mib(6), 0), 1: (0, 0)}
    assert variables(docker.exec("train", "env"))[LIMIT] == f"0={share_mib(6)}M"
    docker.remove("train")


def test_b4_a_container_of_docker_is_known_by_the_name_that_docker_gave_it(
    host: Host, docker: Docker
) -> None:
    started = docker.detach(cgpu(6), "sleep", "300", name="train")
    assert started.code == 0, started
    there = host.environment | {"DOCKER_HOST": docker.address}
    shown = ended([MPSD, "smi", "train", "-o", "json"], there)
    (found,) = json.loads(shown.output)["grants"]
    assert (found["container"], found["containerName"]) == (started.output.strip(), "train")
    changed = ended([MPSD, "set", "train", "--mem", "9GiB"], there)
    assert (changed.code, host.ledger) == (0, {0: (9216, 0), 1: (0, 0)}), changed
    docker.remove("train")
