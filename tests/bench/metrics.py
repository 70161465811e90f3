"""What a scrape of the agent's metrics costs it: 8 GPUs with 40 clients each, every one in a pod of
its own.

From the last view, and what control has written of its questions, to the bytes of the answer, in
this process; simplified: nothing goes over a socket. What is judged is the processor time, for the
agent does nothing else meanwhile: as the share of a core that a scrape every second takes, where
0.02 are the 20 ms that one scrape may cost.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

from mpsd.model.grants import Gpu, Grant, evenly
from mpsd.model.identity import PodName
from mpsd.model.metrics import CommandTimes, PluginCalls
from mpsd.model.node_report import SeenViolations, ViolationsReport
from mpsd.model.node_view import Client, DomainView, HeldGrant, NodeView
from mpsd.mps.control_daemon import command_times
from mpsd.platform import processes, records
from mpsd.platform.settings import settings
from mpsd.status.node_api import Exposition
from mpsd.status.rules.metrics import command_samples, plugin_samples, samples
from mpsd.status.rules.node_report import node_report
from tests.bench.rows import Row
from tests.model.worlds import GPUS as SOME
from tests.model.worlds import POLICY, identity, record, view

GPUS, CLIENTS_A_GPU = 8, 40
MOST_CORES = 0.02
_GRANTED_MIB, _ROUNDS = 512, 100
_NOTHING_SEEN = SeenViolations(
    ViolationsReport(looks=0, longest_pause_s=0.0, late_looks=0, nvml_s=0.0), {}
)


def metrics() -> Iterator[tuple[str, Row]]:
    """A scrape's processor time, beside that of the status alone, which `mpsd status` asks for
    too."""
    world = _world()
    exposition, calls = Exposition(), PluginCalls(time.monotonic)
    with TemporaryDirectory(prefix="mpsd-bench-") as folder:
        chosen = settings(run_directory=folder)
        for domain in world.domains:
            chosen.domain(domain.name).make()
            records.write(chosen.domain(domain.name).commands, CommandTimes(processes.boot_id()))

        def scrape() -> bytes:
            seen = samples(node_report(world, POLICY, _NOTHING_SEEN), limits_wrong=False)
            seen += command_samples(
                command_times(chosen, [domain.name for domain in world.domains])
            )
            seen += plugin_samples(calls)
            return exposition.text(seen, "")[0]

        yield _measured(world, scrape)


def _measured(world: NodeView, scrape: Callable[[], bytes]) -> tuple[str, Row]:
    text = scrape()
    assert text.count(b"mpsd_domain_command_seconds_count{") == GPUS
    assert text.count(b"mpsd_grant_used_bytes{") == GPUS * CLIENTS_A_GPU
    whole, alone = [], []
    for _round in range(_ROUNDS):
        began = time.thread_time()
        scrape()
        between = time.thread_time()
        node_report(world, POLICY, _NOTHING_SEEN)
        whole.append(between - began)
        alone.append(time.thread_time() - between)
    about = (
        f"a scrape of metrics each second, {GPUS} GPUs × {CLIENTS_A_GPU} clients,"
        f" {len(text) // 1024} KiB"
    )
    return (
        "scrape_cpu",
        Row(
            statistics.median(whole),
            "of a core",
            MOST_CORES,
            statistics.median(alone),
            f"{about}; baseline: the status",
        ),
    )


def _world() -> NodeView:
    gpus = tuple(
        replace(SOME[0], uuid=f"GPU-{ordinal:032x}", ordinal=ordinal) for ordinal in range(GPUS)
    )
    held = [_grant(gpu, number) for gpu in gpus for number in range(CLIENTS_A_GPU)]
    clients = tuple(
        Client(identity(1000 + number), grant.gpus[0], 400, True, "train", grant.id)
        for number, grant in enumerate(held)
    )
    domains = tuple(
        DomainView(replace(record(), domain=gpu.label, gpus=(gpu.uuid,)), frozenset())
        for gpu in gpus
    )
    granted = tuple(HeldGrant(grant, True) for grant in held)
    return replace(view(grants=granted, clients=clients), gpus=gpus, domains=domains)


def _grant(gpu: Gpu, number: int) -> Grant:
    name = f"train-{gpu.ordinal}-{number}"
    pod = PodName("default", name, f"uid-of-{name}")
    return Grant(
        f"default/{name}", gpu.label, evenly((gpu.uuid,), _GRANTED_MIB, 0), 100, 1, pod, "train"
    )
