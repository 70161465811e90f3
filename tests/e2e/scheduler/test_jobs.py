"""More pods at once than fit: none fails, nothing is given away twice, also while the schedulers are killed."""

import time

from tests.e2e.cluster import Cluster
from tests.e2e.installation import GPUS, SYSTEM, UNITS, Installation
from tests.e2e.scheduler.shares_waiting import job
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_GIB, _TIMES = 7, 20
_AT_ONCE = GPUS * (UNITS // _GIB)


def _counts(pods: Pods, name: str) -> dict[str, int]:
    found: dict[str, int] = pods.cluster.get("job", name, "-n", pods.namespace)["status"]
    return {"succeeded": found.get("succeeded", 0), "failed": found.get("failed", 0)}


def _phases(pods: Pods, name: str) -> list[str]:
    listed = pods.cluster.get("pods", "-n", pods.namespace, "-l", f"e2e={name}")["items"]
    return [pod["status"]["phase"] for pod in listed]


def _is_within_the_cards(mpsd: Installation) -> bool:
    return all(gpu["grantedMiB"] <= UNITS * 1024 for gpu in mpsd.told()["gpus"])


def test_as_many_run_as_fit_the_others_wait_and_then_run(mpsd: Installation, pods: Pods) -> None:
    eventually(mpsd.are_books_at_zero, "nobody else on the GPUs", within_s=60.0)
    pods.create(job(pods, "twenty", _GIB, _TIMES, "alloc=1000", "hold=2"))
    began, most = time.monotonic(), 0

    def is_done() -> bool:
        nonlocal most
        most = max(most, _phases(pods, "twenty").count("Running"))
        counts = _counts(pods, "twenty")
        assert _is_within_the_cards(mpsd)
        if counts["failed"]:
            raise RuntimeError(f"failed: {_phases(pods, 'twenty')}")
        return counts["succeeded"] == _TIMES

    eventually(is_done, "all of them done", within_s=240.0)
    assert 1 < most <= _AT_ONCE
    print(f"\n{_TIMES} pods of {_GIB} GiB in {time.monotonic() - began:.1f} s, at most {most} at once, none failed")


def test_schedulers_killed_in_the_middle_give_nothing_away_twice(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    pods.create(job(pods, "killed", _GIB, _AT_ONCE + 2, "alloc=1000", "hold=4"))
    eventually(lambda: _phases(pods, "killed").count("Running") > 1, "some of them running")
    before = [pod["metadata"]["name"] for pod in mpsd.pods("scheduler")]
    cluster.do("delete", "pod", "-n", SYSTEM, "--grace-period=0", "--force", *before)
    began = time.monotonic()

    def is_done() -> bool:
        counts = _counts(pods, "killed")
        assert _is_within_the_cards(mpsd)
        if counts["failed"]:
            raise RuntimeError(f"failed: {_phases(pods, 'killed')}")
        return counts["succeeded"] == _AT_ONCE + 2

    eventually(is_done, "all of them done", within_s=240.0)
    print(f"\nboth replicas killed in the middle: the rest ran within {time.monotonic() - began:.1f} s, none failed")
