"""What the real `mpsd scheduler` costs on a large cluster: its memory, when it is ready, and
kube-scheduler's calls.

The API server is simulated and a process of its own. Calls come one after the other over one
connection, as kube-scheduler makes them: filter with every name, then prioritize with those that
passed. Nobody binds in between. The scheduler has one core to itself; the other is for whoever
calls. `python -m tests.bench.scheduler` runs these rows alone. MPSD_NODES says how many nodes;
limits are for 5 000.
"""

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from mpsd.simulator.programs import wait_until
from tests.bench.many_nodes import name
from tests.bench.rows import Row, show
from tests.served import Served

NODES = int(os.environ.get("MPSD_NODES", "5000"))
PODS, CALLS, WARM = 4 * NODES, 600, 30
SIZES_GIB = (1, 2, 4, 7, 12, 16, 24, 40, 64)
_RECORDED = Path(__file__).parents[1] / "data/extender/1.20.2/names/filter-one.json"
_DEADLINE_S = 400.0  # for a machine that others use as well


def scheduler() -> Iterator[tuple[str, Row]]:
    """Memory has a limit; times are printed."""
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder, _api_server(Path(folder)):
        began = time.monotonic()
        served = Served(
            "scheduler",
            Path(folder) / "logs",
            {"kubeconfig": f"{folder}/kubeconfig", "drain": "0s"},
        )
        try:
            os.sched_setaffinity(served.process.pid, {min(os.sched_getaffinity(0))})
            wait_until(lambda: _is_ready(served), _DEADLINE_S, "the scheduler is ready", 0.1)
            ready_s = time.monotonic() - began
            yield from _rows(served, ready_s)
        finally:
            served.stop()


def _is_ready(served: Served) -> bool:
    try:
        return served.public("/readyz").status == 200
    except TimeoutError:  # it reads its lists
        return False


def _rows(served: Served, ready_s: float) -> Iterator[tuple[str, Row]]:
    process = psutil.Process(served.process.pid)
    about = f"mpsd scheduler, {NODES} nodes × 8 GPUs, {PODS} pods"
    waited = f"{about}: from its start until it is ready, beside the simulated API server"
    yield "scheduler_ready", Row(ready_s, "s", None, None, waited)
    yield (
        "scheduler_ready_cpu",
        Row(_cpu_s(process), "s", None, None, "what of that is the scheduler's own, of a core"),
    )
    calls = _Calls(served.port)
    calls.make(WARM)
    calls.plain_s, before_s = 0.0, _cpu_s(process)
    took = sorted(calls.make(CALLS))
    spent_s = _cpu_s(process) - before_s
    filter_and = f"filter and prioritize of a pod over {NODES} names, two calls over HTTP"
    yield "extender_p50", Row(statistics.median(took) * 1e3, "ms", None, None, filter_and)
    yield (
        "extender_p99",
        Row(took[len(took) * 99 // 100] * 1e3, "ms", None, None, f"p99 of {CALLS} of them"),
    )
    least = "reading and writing the same bodies with msgspec"
    ratio = Row(
        spent_s / calls.plain_s, "×", 2.5, None, f"CPU that the scheduler took for them, by {least}"
    )
    yield "extender_cpu_ratio", ratio
    yield (
        "extender_rate",
        Row(CALLS / spent_s, "pods/s", None, None, "the same, by the CPU that the scheduler took"),
    )
    resident = process.memory_info().rss / 1024**2
    yield "scheduler_memory", Row(resident, "MiB", 150, None, f"{about}, resident after that")
    yield (
        "scheduler_memory_peak",
        Row(_peak_mib(process.pid), "MiB", None, None, "the most that it ever had"),
    )


class _Calls:
    """As kube-scheduler makes them; what it does in between is not timed."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_S)
        self._asked: dict[str, Any] = json.loads(_RECORDED.read_text())
        self._names = [name(number) for number in range(NODES)]
        # CPU of reading and writing the bodies here, which is the least that anybody could take
        self.plain_s = 0.0

    def make(self, pods: int) -> list[float]:
        """Seconds of both calls together, for each pod."""
        return [self._pod(SIZES_GIB[number % len(SIZES_GIB)]) for number in range(pods)]

    def _pod(self, gib: int) -> float:
        resources = self._asked["Pod"]["spec"]["containers"][0]["resources"]
        resources["limits"] = resources["requests"] = {"aliyun.com/gpu-mem": str(gib)}
        filter_s, passed = self._call("/filter", self._names)
        assert len(passed["NodeNames"]) + len(passed["FailedNodes"]) == NODES
        assert passed["NodeNames"], passed["Error"]
        prioritize_s, scores = self._call("/prioritize", passed["NodeNames"])
        assert [one["Host"] for one in scores] == passed["NodeNames"]
        return filter_s + prioritize_s

    def _call(self, path: str, names: list[str]) -> tuple[float, Any]:
        body = json.dumps(self._asked | {"NodeNames": names}, separators=(",", ":")).encode()
        began = time.perf_counter()
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        said = answer.read()
        took_s = time.perf_counter() - began
        assert answer.status == 200, said
        began = time.thread_time()
        msgspec.json.decode(body)
        msgspec.json.encode(found := msgspec.json.decode(said))
        self.plain_s += time.thread_time() - began
        return took_s, found


@contextmanager
def _api_server(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.many_nodes", str(folder), str(NODES), str(PODS)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout
    try:
        assert server.stdout.readline() == b"ready\n"
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        server.stdout.close()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    show(dict(scheduler()))
