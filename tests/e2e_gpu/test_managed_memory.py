"""Managed memory, which NVML counts for no process. Never more of it than a card has free: 8 GiB at
most here."""

from collections.abc import Callable

import pytest

from tests.e2e.shares import Pods, share

_GIB = 4


@pytest.fixture(scope="module", autouse=True)
def neighbour(pods: Pods) -> str:
    pods.start("neighbour", 5, "alloc=4000")
    return "neighbour"


def test_managed_memory_within_the_grant_is_left_alone(
    pods: Pods, neighbour: str, record_property: Callable[[str, object], None]
) -> None:
    pods.create(share("honest", pods.asks(_GIB, "managed=2048", "hold=5", "info")))
    assert pods.exit_code("honest", within_s=60.0) == 0, pods.said("honest")
    record_property("said", pods.said("honest"))
    assert not [event for event in pods.events("honest") if event["reason"].startswith("GPU")]
    pods.assert_holds(neighbour)


def test_managed_memory_beyond_the_grant_is_refused_or_ended(
    pods: Pods, neighbour: str, record_property: Callable[[str, object], None]
) -> None:
    pods.create(share("dishonest", pods.asks(_GIB, "managed=8192", "hold=8")))
    code = pods.exit_code("dishonest", within_s=60.0)
    said = pods.said("dishonest")
    record_property("said", [code, said])
    refused = [
        line for line in said if line.get("managed_MiB") == 0 and "OUT_OF_MEMORY" in line["rc"]
    ]
    print(f"\nexit code {code}, {said}")
    if not refused:
        assert code == 137
        print(pods.event("dishonest", "GPUMemoryExceeded"))
    pods.assert_holds(neighbour)
