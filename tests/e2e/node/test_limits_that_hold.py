"""What becomes of a program that lifts its own limit, and of a GPU after a fault, on a real
kubelet."""

import pytest

from tests.e2e.installation import Installation
from tests.e2e.shares import BY_MPSD, LIFTED, Pods, container, share
from tests.e2e.waiting import eventually

_OUTSIDE = "export CUDA_MPS_PIPE_DIRECTORY=/nowhere"
_GIB = 2


@pytest.fixture(scope="module")
def neighbour(pods: Pods) -> str:
    pods.start("neighbour", 5, "alloc=4000")
    return "neighbour"


def _exit_code(mpsd: Installation, pods: Pods, name: str) -> int:
    try:
        return pods.exit_code(name)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\n{pods.said(name)}\n{mpsd.status_text()}\n{mpsd.logs('agent')}"
        ) from None


def test_a_program_that_lifts_its_limit_is_ended_alone_and_its_pod_hears_why(
    mpsd: Installation, pods: Pods, neighbour: str
) -> None:
    pods.create(share("greedy", pods.by_shell(_GIB, LIFTED, "alloc=12000", "hold")))
    assert _exit_code(mpsd, pods, "greedy") == BY_MPSD
    assert pods.event("greedy", "GPUMemoryExceeded")
    pods.assert_holds(neighbour)


def test_a_program_beside_mps_gets_nothing_of_a_gpu_that_is_in_exclusive_process_mode(
    mpsd: Installation, pods: Pods, neighbour: str
) -> None:
    pods.create(share("outside", pods.by_shell(_GIB, _OUTSIDE, "alloc=12000", "hold")))
    assert _exit_code(mpsd, pods, "outside") == 3, "it got no context"
    pods.assert_holds(neighbour)


def test_a_fault_whose_victims_linger_heals_by_itself(mpsd: Installation, pods: Pods) -> None:
    """On the other GPU than the neighbour's, which must not notice."""
    pods.create(share("faulty", container(mpsd.image, 20, "alloc=100", "fault", "linger")))
    eventually(lambda: any("bad" in line for line in pods.said("faulty")), "a fault", within_s=60.0)
    eventually(lambda: pods.phase("faulty") == "Failed", "its process ended", within_s=30.0)
    assert pods.event("faulty", "MPSFault")
    pods.delete("faulty")
    pods.create(
        share("next", container(mpsd.image, 20, "alloc=100", "hold"), restartPolicy="OnFailure")
    )
    pods.wait_until_holding("next")
    pods.assert_holds("neighbour")
