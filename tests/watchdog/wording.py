"""The sentences of the watchdog's events, as people read them: `wording.txt` has them all."""

from collections.abc import Iterator
from dataclasses import replace

from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY, MEMORY_LIMIT, PARTITIONING, THREAD_PERCENT
from mpsd.model.identity import PodName
from mpsd.watchdog.rules.judge import WatchdogVerdict
from tests.model.gpu_worlds import Watch, client, pod_grant
from tests.model.worlds import CAPABILITY, GPUS
from tests.watchdog.test_contexts import H200

A, LARGE = pod_grant("a"), pod_grant("b", 4096)
FEW = tuple(replace(gpu, capability=replace(CAPABILITY, clients=1)) for gpu in GPUS)
VARIABLES = (
    {MEMORY_LIMIT: "garbage"},
    {MEMORY_LIMIT: "0=9G"},
    {THREAD_PERCENT: "100"},
    {THREAD_PERCENT: "30"},
    {MEMORY_LIMIT: "0=1G", THREAD_PERCENT: "30", PARTITIONING: "1"},
)


def verdicts() -> Iterator[WatchdogVerdict]:
    """One of each kind of violation and notice, and of each form that has its own sentence."""
    yield Watch().look((A,), client(1, A, 1500))
    grown = Watch()
    grown.look((A,), client(1, A, 700))
    yield grown.look((A,), client(1, A, 1500))
    capped = replace(A, thread_percent=30)
    for variables in VARIABLES:
        yield Watch().look((capped, LARGE), client(1, capped, environment=variables))
    below = replace(A, priority=1)
    yield Watch().look((below,), client(1, below))
    yield Watch().look((below,), client(1, below, environment={**client(1, A).environment, CLIENT_PRIORITY: "0"}))  # type: ignore[dict-item]
    lifting = Watch()
    lifting.look((capped,), client(1, capped, 516, reserved_kib=6144), gpus=(H200,))
    yield lifting.look((capped,), client(1, capped, 516, reserved_kib=6144), gpus=(H200,))
    yield Watch().looks((A,), client(1, A, on_mps=False))
    yield Watch().looks((A,), client(1, A, on_mps=False, only_draws=True))
    yield Watch().looks((A,), client(1, A, gpu=1))
    stranger = replace(client(1, None), pod="stranger-uid")
    yield Watch().looks((), stranger, ungranted={"stranger-uid": PodName("default", "stranger", "stranger-uid")})
    drawing = replace(stranger, on_mps=False, only_draws=True)
    yield Watch().looks((), drawing, ungranted={"stranger-uid": PodName("default", "stranger", "stranger-uid")})
    yield Watch().looks((), client(1, None))
    yield Watch().looks((), client(1, None, on_mps=False), pods_known=False)
    one = replace(A, clients=1)
    yield Watch().look((one,), client(1, one), client(2, one))
    yield Watch().look((A,), client(1, A), gpus=FEW)
    yield Watch().look((A,), client(1, A, None))


def wording() -> str:
    lines = []
    for verdict in verdicts():
        lines += [f"{one.kind} {one.kind.reason}\n  {one}" for one in verdict.violations]
        lines += [f"notice {one.reason or '(in the log)'}\n  {one.message}" for one in verdict.notices]
    return "\n".join(lines) + "\n"
