"""What makes each alert about pods, the webhook and the scheduler fire, and what makes it clear.

One rule: as in node_trials: an accident or a user does it, and it is undone at the end.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from mpsd.model.domain import State
from mpsd.model.metrics import Exporter
from mpsd.platform.certificates import issue, new_authority
from tests.prometheus.meanwhile import beside, stopped
from tests.prometheus.scraped_cluster import POLICY, World
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, pod
from tests.whole.node.test_watchdog import LIMIT, by_shell
from tests.whole.scheduler.process import extender
from tests.whole.scheduler.test_http import write

DAY_S = 86_400.0
LIMIT_MIB = 2048
_WAITS_FOR_VALIDATOR = {
    "nvidia.com/gpu-driver-upgrade-state": "validation-required",
    "nvidia.com/gpu.deploy.operator-validator": "false",
}

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
def _pod_near_limit(world: World) -> Iterator[None]:
    context_mib = world.cluster.simulation.gpus[0].context_mib_by_sms[-1]
    world.cluster.running(
        "near", LIMIT_MIB // 1024, actions=(f"alloc={LIMIT_MIB - context_mib - 20}", "hold")
    )
    yield
    world.cluster.delete("near")


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
def _pods_that_cannot_be_served(world: World) -> Iterator[None]:
    """Each asks for more than one GPU has, and no more than two have together, which is all that
    kubelet sees."""
    stop = threading.Event()

    def ask() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"large-{number}"
            world.cluster.apply(pod(name, 30))
            eventually(
                lambda name=name: world.cluster.phase(name) == "Failed", f"kubelet refuses {name}"
            )
            world.cluster.delete(name)

    with beside(ask, stop):
        yield


@contextmanager
def _kubelet_says_nothing(world: World) -> Iterator[None]:
    """From before the agent starts."""
    cluster = world.cluster
    cluster.kubelet.send(signal.SIGSTOP)
    cluster.agent.kill()
    cluster.agent = cluster.launch_agent()
    yield
    cluster.kubelet.send(signal.SIGCONT)
    cluster.until_offered()


@contextmanager
def _driver_upgrade_without_an_end(world: World) -> Iterator[None]:
    """NVIDIA's validator is kept away from the node, as mpsd wants it."""
    world.cluster.label(_WAITS_FOR_VALIDATOR)
    yield
    world.cluster.label({"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"})


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
def _api_server_slow(world: World) -> Iterator[None]:
    world.api.delay_s = 3.0
    with _reviews(world):
        yield
    world.api.delay_s = 0.0


@contextmanager
def _api_server_away(world: World) -> Iterator[None]:
    world.api.away = True
    with _reviews(world):
        yield
    world.api.away = False


@contextmanager
def _reviews(world: World) -> Iterator[None]:
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            world.review()

    with beside(ask, stop):
        yield


@contextmanager
def _certificate_not_renewed(world: World) -> Iterator[None]:
    """A scheduler that is shown to others by a certificate of an operator's, who is late."""
    folder = world.folder / "late"
    authority = new_authority("test", time.time(), 100 * DAY_S)

    def show(life_s: float) -> None:
        pair = issue(authority, ["127.0.0.1"], time.time(), life_s)
        write(folder / "certs" / "tls.key", pair.key)
        write(folder / "certs" / "tls.crt", pair.certificate)

    folder.mkdir()
    write(folder / "ca.crt", authority.certificate)
    show(DAY_S)
    flags = {"cert_dir": str(folder / "certs"), "client_ca": str(folder / "ca.crt")}
    with extender(folder, world.cluster.kubeconfig, **flags) as late:
        late.wait_until_ready()
        world.prometheus.scrape(Exporter.SCHEDULER, "late", late.metrics_port)
        yield
        show(30 * DAY_S)
        world.prometheus.until_quiet("MPSDCertificateEnds")
        world.prometheus.forget(Exporter.SCHEDULER, "late")


@contextmanager
def _new_scheduler_without_api_server(world: World) -> Iterator[None]:
    folder = world.folder / "blind"
    folder.mkdir()
    with stopped(world.cluster.api.process), extender(folder, world.cluster.kubeconfig) as blind:
        eventually(lambda: blind.public("/healthz").status == 200, "it answers")
        world.prometheus.scrape(Exporter.SCHEDULER, "blind", blind.metrics_port)
        yield
        world.cluster.api.send(signal.SIGCONT)
        world.prometheus.until_quiet("MPSDSchedulerBlind")
        world.prometheus.forget(Exporter.SCHEDULER, "blind")


@contextmanager
def _binding_takes_long(world: World) -> Iterator[None]:
    """The API server does not answer for a second and a half."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with stopped(world.cluster.api.process):
                asking = threading.Thread(target=world.ask_scheduler)
                asking.start()
                stop.wait(1.5)
            asking.join()

    with beside(ask, stop):
        yield


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
    "MPSDPodNearLimit": _pod_near_limit,
    "MPSDContainersHeldBack": _pod_starts_during_a_fault,
    "MPSDPluginRefuses": _pods_that_cannot_be_served,
    "MPSDDriverUpgradeWaits": _driver_upgrade_without_an_end,
    "MPSDWatchdogIdle": _kubelet_says_nothing,
    "MPSDServerAbsent": _webhook_stopped,
    "MPSDWebhookNotRegistered": _right_taken_away,
    "MPSDWebhookSlow": _api_server_slow,
    "MPSDWebhookBlind": _api_server_away,
    "MPSDCertificateEnds": _certificate_not_renewed,
    "MPSDSchedulerBlind": _new_scheduler_without_api_server,
    "MPSDSchedulerSlow": _binding_takes_long,
    "MPSDPodFitsNoGPU": _pod_fits_the_sum_alone,
}
