"""How fast kube-scheduler binds 1 000 pods with mpsd as its extender, beside kube-scheduler alone
on the same machine.

A real API server and a real kube-scheduler, without kubelets: 100 Nodes and MPSNodes of 8 GPUs are
objects. The pods are there before their scheduler starts; it is timed from the first that is bound
to the last. kube-scheduler's limit of API requests (`clientConnection.qps`, 50 as shipped) is
raised alike for both, unless --qps says otherwise; with mpsd the bindings are not its requests. Run
it beside a control plane of its own:

    flock /tmp/mpsd-e2e.lock tests/e2e/kube/with-cluster.sh --control-plane .venv/bin/python -m
    tests.bench.binding
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import yaml

from mpsd.platform.event_loop import until
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, Object, PatchKind
from mpsd.platform.kube_access import open_kube
from mpsd.platform.kube_mirror import Mirror, Selection, following
from tests.bench.cluster import MEMORY, pod
from tests.bench.many_nodes import NodeObjects, name
from tests.bench.rows import Row, show
from tests.kube_contract.conftest import define
from tests.served import Served

MACHINES, COUNT, ROUNDS, GIB = 100, 1000, 3, 7
_MPSNODE = Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml"
_NAMESPACE, _AT_ONCE, _DEADLINE_S = "default", 8, 200.0
_ALONE, _OURS = "kube-scheduler alone", "with mpsd"


def binding(programs: Path, kubeconfig: Path, qps: int) -> Iterator[tuple[str, Row]]:
    """Nothing is judged: both rates are times of machines that others use."""
    rates: dict[str, list[float]] = {_ALONE: [], _OURS: []}
    cpu_ms: list[float] = []

    def ask(questions: Callable[[Kube], Awaitable[object]]) -> None:
        asyncio.run(_ask(kubeconfig, questions))

    ask(_prepare)
    for number in range(ROUNDS):
        for which in (_ALONE, _OURS) if number % 2 == 0 else (_OURS, _ALONE):
            with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder, ExitStack() as stack:
                ask(_report)
                ask(_create)
                ours = (
                    stack.enter_context(_extender(kubeconfig, Path(folder)))
                    if which == _OURS
                    else None
                )
                config = _configuration(kubeconfig, qps, ours.port if ours else None)
                began_s = _cpu_s(ours)
                stack.enter_context(_kube_scheduler(programs, config, Path(folder)))
                rates[which].append((COUNT - 1) / asyncio.run(_bound(kubeconfig)))
                if ours:
                    cpu_ms.append((_cpu_s(ours) - began_s) / COUNT * 1e3)
            print(f"{which}: {rates[which][-1]:.1f} pods/s", file=sys.stderr, flush=True)
            ask(_delete)
    alone, with_mpsd = statistics.median(rates[_ALONE]), statistics.median(rates[_OURS])
    about = (
        f"{COUNT} pods bound to {MACHINES} nodes × 8 GPUs, kube-scheduler at {qps} requests/s,"
        f" median of {ROUNDS}"
    )
    yield "binding_rate", Row(with_mpsd, "pods/s", None, alone, f"{about}; baseline: {_ALONE}")
    yield (
        "binding_ratio",
        Row(alone / with_mpsd, "×", None, None, f"the time of that, by that of {_ALONE}"),
    )
    yield (
        "binding_cpu",
        Row(statistics.median(cpu_ms), "ms", None, None, "CPU of mpsd scheduler for a pod"),
    )


async def _ask(kubeconfig: Path, questions: Callable[[Kube], Awaitable[object]]) -> None:
    kube = open_kube(kubeconfig)
    try:
        await questions(kube)
    finally:
        kube.close()


async def _prepare(kube: Kube) -> None:
    await define(kube, yaml.safe_load(_MPSNODE.read_text()))
    await _each(MACHINES, lambda number: _make_node(kube, number))


async def _make_node(kube: Kube, number: int) -> None:
    objects = NodeObjects(number, 0)
    node = objects.node()
    made = await kube.create(
        NODES, {"metadata": {"name": name(number), "labels": node["metadata"]["labels"]}}
    )
    ready = [{"type": "Ready", "status": "True"}]
    status = {key: node["status"][key] for key in ("capacity", "allocatable")} | {
        "conditions": ready
    }
    await kube.patch(
        NODES, name(number), {"status": status}, PatchKind.STRATEGIC, subresource="status"
    )
    thing = objects.mpsnode(made["metadata"]["uid"])
    await kube.create(MPS_NODES, {key: value for key, value in thing.items() if key != "status"})


async def _report(kube: Kube) -> None:
    """Each node's agent reports anew, and nothing is reserved."""

    async def one(number: int) -> None:
        status = {"status": NodeObjects(number, 0).mpsnode("")["status"]}
        nothing = {"metadata": {"annotations": {"mpsd.io/reserved": None}}}
        await kube.patch(MPS_NODES, name(number), nothing, PatchKind.MERGE)
        await kube.patch(MPS_NODES, name(number), status, PatchKind.MERGE, subresource="status")

    await _each(MACHINES, one)


async def _create(kube: Kube) -> None:
    await _each(COUNT, lambda number: kube.create(PODS, _pod(number), _NAMESPACE))


def _pod(number: int) -> Object:
    thing = pod(f"job-{number}", ["python", "train.py"], {MEMORY: GIB})
    del thing["spec"]["nodeName"], thing["metadata"]["managedFields"]
    thing["metadata"]["labels"] = {"job-name": "job"}
    spec = {"schedulerName": "bench", "tolerations": [{"operator": "Exists"}]}
    thing["spec"] |= spec | {"terminationGracePeriodSeconds": 0}  # no kubelet would end it
    return thing


async def _bound(kubeconfig: Path) -> float:
    """Seconds from the first pod that is bound to the last."""
    kube, at = open_kube(kubeconfig), list[float]()

    def note(before: str | None, now: str | None) -> None:
        if now and not before:
            at.append(time.monotonic())

    mirror = Mirror(
        kube,
        Selection(PODS, _NAMESPACE),
        lambda thing: thing["spec"].get("nodeName", ""),
        each=note,
    )
    try:
        async with following(mirror):
            await until(lambda: len(at) == COUNT, _DEADLINE_S, f"{COUNT} pods are bound", 0.02)
        return at[-1] - at[0]
    finally:
        kube.close()


async def _delete(kube: Kube) -> None:
    await _each(COUNT, lambda number: kube.delete(PODS, f"job-{number}", _NAMESPACE))


async def _each(count: int, act: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await act(number)

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


# -- programs


@contextmanager
def _extender(kubeconfig: Path, folder: Path) -> Iterator[Served]:
    served = Served("scheduler", folder / "logs", {"kubeconfig": str(kubeconfig), "drain": "0s"})
    try:
        served.wait_until_ready()
        yield served
    finally:
        served.stop()


def _configuration(kubeconfig: Path, qps: int, port: int | None) -> Object:
    """port: of the extender; None for kube-scheduler alone."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 10,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
        "managedResources": [{"name": MEMORY, "ignoredByScheduler": False}],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": qps, "burst": 2 * qps},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "bench"}],
        "extenders": [extender] if port else [],
    }


@contextmanager
def _kube_scheduler(programs: Path, config: Object, folder: Path) -> Iterator[None]:
    written, log = folder / "config.yaml", folder / "kube-scheduler.log"
    written.write_text(yaml.safe_dump(config))
    command = [str(programs / "kube-scheduler"), f"--config={written}", "--secure-port=0"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
        except BaseException:
            print(log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(timeout=20)


def _cpu_s(served: Served | None) -> float:
    if served is None:
        return 0.0
    times = psutil.Process(served.process.pid).cpu_times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.binding", description=__doc__)
    parser.add_argument(
        "--qps", type=int, default=1000, metavar="N", help="kube-scheduler's limit of API requests"
    )
    chosen = parser.parse_args()
    if "MPSD_E2E_PROGRAMS" not in os.environ:
        sys.exit(
            "binding: no cluster of its own; run it below tests/e2e/kube/with-cluster.sh"
            " --control-plane"
        )
    programs, kubeconfig = Path(os.environ["MPSD_E2E_PROGRAMS"]), Path(os.environ["KUBECONFIG"])
    show(dict(binding(programs, kubeconfig, chosen.qps)))


if __name__ == "__main__":
    main()
