"""More pods at once than fit: as many run as do, the others wait, and none fails."""

from tests.e2e.installation import GPUS, UNITS, Installation
from tests.e2e.scheduler.jobs import WatchedJob
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_GIB, _TIMES = 7, 20


def test_as_many_run_as_fit_and_the_others_wait_and_then_run(
    mpsd: Installation, pods: Pods
) -> None:
    eventually(mpsd.is_ledger_at_zero, "nobody else on the GPUs", within_s=60.0)
    job = WatchedJob(mpsd, pods, "twenty", _GIB, _TIMES)
    job.start("alloc=1000", "hold=1")
    took_s = job.wait_until_over()
    job.assert_none_failed()
    assert 1 < job.running <= GPUS * (UNITS // _GIB)
    print(
        f"\n{_TIMES} pods of {_GIB} GiB in {took_s:.1f} s, at most {job.running} at once,"
        f" {len(job.failed)} made anew"
    )
