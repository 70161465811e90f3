"""Faults that make alerts fire, and their ends: some of each exporter; test_rules has all."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from mpsd.model.domain import State
from tests.prometheus.meanwhile import beside, stopped
from tests.prometheus.scraped_cluster import POLICY, World
from tests.whole.node.cluster import NODE, pod
from tests.whole.node.test_watchdog import LIMIT, by_shell

LIMIT_MIB = 2048

Trial = Callable[[World], AbstractContextManager[None]]


@contextmanager
def _pod_over_limit(world: World) -> Iterator[None]:
    world.cluster.set_policy(
        **POLICY, violations={"memory_over_grant": {"action": "warn", "tolerance_mib": 32}}
    )
    # until that policy is in force
    again_and_again = f"while :; do {LIMIT}=garbage sim-cuda alloc=4000 hold; done"
    world.cluster.apply(by_shell("over", again_and_again, LIMIT_MIB // 1024))
    yield
    world.cluster.delete("over")


@contextmanager
def _pod_starts_during_a_fault(world: World) -> Iterator[None]:
    """Whoever caused the fault stays, and is let."""
    cluster = world.cluster
    where = {"mpsd.io/gpu": cluster.node().gpus[0].uuid}
    cluster.apply(pod("culprit", 2, actions=("fault", "linger"), annotations=where))
    cluster.in_state(State.FAULT)
    cluster.apply(pod("held", 2, annotations=where))
    yield
    cluster.delete("culprit")
    cluster.program_of("held")


@contextmanager
def _webhook_stopped(world: World) -> Iterator[None]:
    with stopped(world.webhook.process):
        yield


@contextmanager
def _right_taken_away(world: World) -> Iterator[None]:
    world.api.forbidden = {("get", "validatingwebhookconfigurations")}
    yield
    world.api.forbidden = set()


@contextmanager
def _api_server_away(world: World) -> Iterator[None]:
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            world.review()

    world.api.away = True
    with beside(ask, stop):
        yield
    world.api.away = False


@contextmanager
def _pod_fits_the_sum_alone(world: World) -> Iterator[None]:
    """More than one GPU has, and no more than two have together, which is all that kube-scheduler
    sees."""
    stop = threading.Event()
    asked = pod("split", 30)
    asked["metadata"] |= {"uid": "split", "creationTimestamp": "2026-11-21T08:30:00Z"}

    def ask() -> None:
        while not stop.wait(0.1):
            world.scheduler.filter(asked, NODE)

    with beside(ask, stop):
        yield


TRIALS: Mapping[str, Trial] = {
    "MPSDPodOverLimit": _pod_over_limit,
    "MPSDContainersHeldBack": _pod_starts_during_a_fault,
    "MPSDServerAbsent": _webhook_stopped,
    "MPSDWebhookNotRegistered": _right_taken_away,
    "MPSDWebhookBlind": _api_server_away,
    "MPSDPodFitsNoGPU": _pod_fits_the_sum_alone,
}
