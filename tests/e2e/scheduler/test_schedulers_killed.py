"""Both replicas are killed while pods wait, are bound and start. The last file: a scheduler that
finds promises to pods that it never saw counts them for a minute.
"""

from tests.e2e.cluster import Cluster
from tests.e2e.installation import GPUS, SYSTEM, UNITS, Installation
from tests.e2e.scheduler.jobs import WatchedJob
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_GIB = 7
_AT_ONCE = GPUS * (UNITS // _GIB)


def test_schedulers_killed_in_the_middle_give_nothing_away_twice(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    eventually(mpsd.is_ledger_at_zero, "nobody else on the GPUs", within_s=60.0)
    job = WatchedJob(mpsd, pods, "killed", _GIB, _AT_ONCE + 2)
    job.start("alloc=1000", "hold=6")
    job.wait_until_running(2)
    before = [pod["metadata"]["name"] for pod in mpsd.pods("scheduler")]
    cluster.do("delete", "pod", "-n", SYSTEM, "--grace-period=0", "--force", *before)
    took_s = job.wait_until_over()
    job.assert_none_failed()
    assert not set(before) & {pod["metadata"]["name"] for pod in mpsd.pods("scheduler")}
    print(
        f"\nboth replicas killed in the middle: {job.times} pods done after {took_s:.1f} s,"
        f" {len(job.failed)} made anew"
    )
