"""A pod of higher priority gets one GPU, and nobody on the other is stopped for it.

Kubernetes 1.20.2 never asks an extender about preemption: here runs its scheduler with the line
that later ones have.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.installation import SCHEDULER, SYSTEM, UNITS, Installation
from tests.e2e.scheduler.shares_waiting import placed, shared
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_CLASS = "mpsd-e2e-urgent"


@pytest.fixture(scope="module")
def urgent(mpsd: Installation, pods: Pods) -> Iterator[str]:
    """A priority class, and a scheduler that asks who is to be stopped, which stays for the files
    after this one.

    1 GiB of gpu0 is taken by a pod that is bound just before. With it the scheduler forgets its
    older promises, which the next one would count for a minute where their pods are gone.
    """
    if not mpsd.images.kube_scheduler.startswith("local/"):
        pytest.skip("needs the kube-scheduler that tests/e2e/kube/build.sh makes for this")
    eventually(mpsd.is_ledger_at_zero, "nobody else on the GPUs", within_s=60.0)
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": _CLASS},
    }
    pods.cluster.do("create", "-f", "-", given=priority | {"value": 1000})
    pods.create(shared(pods, "before", 1))
    pods.wait_until_holding("before")
    # versions.sh: extender_scheduler
    image = f"kube-scheduler={mpsd.images.kube_scheduler}-preempting"
    pods.cluster.do("set", "image", f"deployment/{SCHEDULER}", "-n", SYSTEM, image)
    pods.cluster.do("rollout", "status", f"deployment/{SCHEDULER}", "-n", SYSTEM, "--timeout=55s")
    try:
        yield _CLASS
    finally:
        pods.cluster.do("delete", "priorityclass", _CLASS)


def test_a_pod_of_higher_priority_gets_a_gpu_and_only_pods_of_one_are_stopped(
    mpsd: Installation, pods: Pods, urgent: str
) -> None:
    """3 + 3 GiB are free: kube-scheduler by itself would stop one pod for the 1 GiB that the node's
    sum lacks.

    Where the sum suffices later versions than 1.20 do not ask (docs/scheduling.md).
    """
    for name, gib in (("a", UNITS - 3 - 1 - 10), ("b", 10), ("c", UNITS - 3)):
        pods.create(shared(pods, name, gib))
        pods.wait_until_holding(name)
    eventually(lambda: {"a", "b", "c"} <= placed(mpsd, pods).keys(), "three grants")
    before = placed(mpsd, pods)
    assert before["a"] == before["b"] != before["c"], before
    pods.create(shared(pods, "urgent", 7, priorityClassName=urgent))
    pods.wait_until_holding("urgent", within_s=120.0)
    gone = [name for name in ("a", "b", "c") if _is_stopped(pods, name)]
    assert len(gone) == 1, gone
    eventually(
        lambda: placed(mpsd, pods).get("urgent") == before[gone[0]],
        "the GPU of the one that was stopped",
    )


def _is_stopped(pods: Pods, name: str) -> bool:
    """Gone, or on its way."""
    found = pods.cluster.kubectl(
        "get", "pod", name, "-n", pods.namespace, "-o", "jsonpath={.metadata.deletionTimestamp}"
    )
    return not found.ok or bool(found.out)
