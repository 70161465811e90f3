"""What pods see of a GPU, whose size is their request's: all of them at once on one GPU."""

from collections.abc import Callable

import pytest

from tests.e2e.cluster import Object
from tests.e2e.installation import PERCENT
from tests.e2e.shares import Pods, assert_fills, refused_at, share
from tests.e2e.shares import sample as published
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import CONTEXT_MIB, GpuInstallation

# GiB, and the percentage of the threads; all of them is what is not asked for, and reserves none.
_SHARES = {"one": (1, 10), "seven": (7, 30), "sixty": (60, 100)}
_SMS_GRANULARITY = 8  # limits/gpus.yaml: fewer than this below the percentage
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def sample(pods: Pods) -> str:
    """The name of the published Job's pod."""
    return published(pods)


@pytest.fixture(scope="module")
def shares(mpsd: GpuInstallation, pods: Pods, sample: str) -> dict[str, list[Object]]:
    largest = max(gpu["memoryMiB"] for gpu in mpsd.gpus()) // 1024 - 8
    asked = {name: (gib, percent) for name, (gib, percent) in _SHARES.items() if gib <= largest - 8}
    for name, (gib, percent) in asked.items():
        asks = pods.asks(gib, f"alloc={gib * 1024}", "hold")
        if percent < 100:
            asks["resources"]["limits"][PERCENT] = str(percent)
        pods.create(share(name, asks))
    return {name: pods.wait_until_holding(name) for name in asked}


def test_the_published_sample_runs_under_its_limit(
    mpsd: GpuInstallation, pods: Pods, sample: str, record_property: Record
) -> None:
    said = pods.wait_until_holding(sample, "mps-sample")
    record_property("said", said)
    assert_fills(said, 7, CONTEXT_MIB)
    inside = pods.environment(sample, "mps-sample")
    assert inside["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"
    assert inside["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mpsd/client"
    annotations = pods.get(sample)["metadata"]["annotations"]
    assert annotations["mpsd.io/gpu"] == said[0]["uuid"]
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "7"
    eventually(
        lambda: mpsd.granted_mib(pods.namespace).get(sample) == 7168,
        "its grant in the node's MPSNode",
    )


@pytest.mark.parametrize("name", _SHARES)
def test_a_program_has_the_memory_and_the_sms_of_its_share(
    mpsd: GpuInstallation,
    pods: Pods,
    shares: dict[str, list[Object]],
    name: str,
    record_property: Record,
) -> None:
    if name not in shares:
        pytest.skip("no GPU here has so much memory")
    gib, percent = _SHARES[name]
    said = shares[name]
    record_property("said", said)
    free_mib, sms = said[0]["meminfo_free_MiB"], said[0]["sms"]
    (gpu,) = [gpu for gpu in mpsd.gpus() if gpu["uuid"] == said[0]["uuid"]]
    print(
        f"\n{gib} GiB, {percent} %: {free_mib} MiB free, {sms} of {gpu['sms']} SMs, refused at"
        f" {refused_at(said)} MiB"
    )
    assert gib * 1024 - CONTEXT_MIB < free_mib < gib * 1024
    assert_fills(said, gib, CONTEXT_MIB)
    assert (
        gpu["sms"] * percent / 100 - _SMS_GRANULARITY
        < sms
        <= max(gpu["sms"] * percent / 100, _SMS_GRANULARITY)
    )


def test_neighbours_share_one_gpu_and_each_keeps_its_memory(
    mpsd: GpuInstallation, pods: Pods, sample: str, shares: dict[str, list[Object]]
) -> None:
    """They hold all that they could get, all at once."""
    assert len({said[0]["uuid"] for said in shares.values()}) == 1, "binpack"
    for name in shares:
        pods.assert_holds(name)
    wanted = {name: _SHARES[name][0] * 1024 for name in shares}.items()
    eventually(lambda: wanted <= mpsd.granted_mib(pods.namespace).items(), "a grant for each")

    def used_mib() -> dict[str, int]:
        return {
            grant["pod"].rpartition("/")[2]: grant.get("usedMiB", 0)
            for grant in mpsd.status()["grants"]
        }

    eventually(lambda: all(used_mib().values()), "what each uses, by NVML")
    used = used_mib()
    for name in shares:
        assert used[name] <= _SHARES[name][0] * 1024 + 32, "the policy's tolerance"


def test_a_pod_sees_one_socket_and_commands_nothing(
    pods: Pods, shares: dict[str, list[Object]]
) -> None:
    """It is not root."""
    some = next(iter(shares))
    assert pods.run_in(some, "ls", "-A", "/run/mpsd/client").split() == ["control"]
    for name in shares:
        pods.assert_holds(name)
