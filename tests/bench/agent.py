"""What `mpsd agent` costs beside a kubelet: 8 simulated H200, 40 clients on each, 250 pods on the
node.

`mpsd control` and `mpsd agent` are processes as they always are, and 160 of the pods run two
programs that each hold a context under its limit, in a cgroup of the pod where the machine lets
cgroups be made. Simplified: the GPUs, kubelet, the API server and the containers are the
simulator's; kubelet speaks as 1.36 does, with an entry for each device.
"""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from mpsd.model.node_report import NodeReport
from mpsd.platform import local_api
from mpsd.platform.event_loop import until
from mpsd.platform.limits_files import shipped_folder
from tests.bench.api_load import after_roll, after_server, counting, steadily
from tests.bench.cluster import MEMORY, NODE, PERCENT, OneNode, one_node, pod
from tests.bench.rows import Row

GPUS, PODS_A_GPU, CLIENTS_A_POD, PODS = 8, 20, 2, 250
UNITS, SHARE = 6, 4  # GiB and percent of each pod that has a client; both leave room for guests
EMPTY_S, STEADY_S, CHURN_S = 15.0, 60.0, 40.0
_HOLDERS = GPUS * PODS_A_GPU
_CLIENTS = _HOLDERS * CLIENTS_A_POD
_SETTLE_S = 12.0  # by then what was allocated just now has been told and written down
_GUESTS = 3  # pods that come and go, at a time
_DEADLINE_S = 240.0
_RESOURCES = 2  # that the agent registers


def agent() -> Iterator[tuple[str, Row]]:
    """The agent's share of a core, its memory and what it asks of the API server, with everything
    there and nothing changing, then with changes."""
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
        yield from asyncio.run(_measured(Path(folder))).items()


async def _measured(folder: Path) -> dict[str, Row]:
    async with (
        one_node(folder) as simulated,
        counting(folder, simulated) as (cluster, server),
        _serving(folder, cluster) as node,
    ):
        await until(
            node.is_ready,
            _DEADLINE_S,
            f"every domain serves and is registered; see {folder}/*.log",
            0.2,
        )
        empty = await _cost(node, EMPTY_S)
        await _fill(cluster, node)
        await asyncio.sleep(_SETTLE_S)
        control, before, began = node.control, node.control.cpu_times(), time.monotonic()
        traffic = server.traffic.now()
        steady = await _cost(node, STEADY_S)
        at_rest = _spent_s(before, control.cpu_times()) / (took_s := time.monotonic() - began)
        of_api = steadily(server.traffic.since(traffic), took_s, PODS)
        resident_mib = control.memory_info().rss / 1024**2
        of_api |= await after_server(server)
        guests, served = (
            asyncio.create_task(_let_guests_come_and_go(cluster)),
            node.logged("allocated"),
        )
        busy = await _cost(node, CHURN_S)
        rate = (node.logged("allocated") - served) / (CHURN_S + _SETTLE_S)
        guests.cancel()
        await asyncio.gather(guests, return_exceptions=True)
        of_api |= await after_roll(server, partial(_roll, node))
    about = f"mpsd agent, {GPUS} GPUs × {_CLIENTS // GPUS} clients, {PODS} pods"
    still, changing = (
        "nothing changes; baseline: no pods",
        f"{rate:.1f} pods/s come and go; baseline: no change",
    )
    return {
        "agent_cpu": Row(steady.cores, "of a core", 0.02, empty.cores, f"{about}, {still}"),
        "agent_nvml": Row(
            steady.nvml_cores,
            "of a core",
            None,
            empty.nvml_cores,
            "the same, in simulated NVML: not in the row above",
        ),
        "agent_memory": Row(
            steady.resident_mib,
            "MiB",
            None,
            empty.resident_mib,
            f"{about}, resident; baseline: no pods",
        ),
        "agent_memory_share": Row(
            steady.share_mib, "MiB", None, empty.share_mib, "the same, shared pages by their part"
        ),
        "control_cpu": Row(
            at_rest, "of a core", 0.005, None, f"mpsd control, {GPUS} GPUs, nothing changes"
        ),
        "control_memory": Row(
            resident_mib, "MiB", 40, None, "the same, resident; without NVML's library"
        ),
        "agent_cpu_churn": Row(
            busy.cores, "of a core", None, steady.cores, f"the same, {changing}"
        ),
        "agent_memory_churn": Row(
            busy.resident_mib, "MiB", None, steady.resident_mib, "the same, resident"
        ),
        **of_api,
    }


async def _roll(node: "_Node") -> None:
    node.agent.kill()
    node.start_agent_again()
    await until(node.is_ready, _DEADLINE_S, "the next agent has registered", 0.2)


@dataclass(frozen=True, slots=True)
class _Cost:
    """cores: mean share of one, but for nvml_cores, which simulated NVML took. resident_mib,
    share_mib: at the end; in the second a page that n processes use counts 1/n."""

    cores: float
    nvml_cores: float
    resident_mib: float
    share_mib: float


async def _cost(node: "_Node", seconds: float) -> _Cost:
    await asyncio.sleep(_SETTLE_S)
    process = node.agent
    nvml_s, before, began = node.nvml_s(), process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after, took_s = process.cpu_times(), time.monotonic() - began
    in_nvml_s = node.nvml_s() - nvml_s
    spent_s = _spent_s(before, after) - in_nvml_s
    memory = process.memory_full_info()
    return _Cost(spent_s / took_s, in_nvml_s / took_s, memory.rss / 1024**2, memory.pss / 1024**2)


def _spent_s(before: Any, after: Any) -> float:
    """Of processor time, by psutil."""
    return float(after.user - before.user + after.system - before.system)


async def _fill(cluster: OneNode, node: "_Node") -> None:
    """160 pods with two clients each, and 90 that ask for no GPU."""
    await until(
        lambda: cluster.is_offered(MEMORY, PERCENT),
        _DEADLINE_S,
        "kubelet has every device to give",
        0.1,
    )
    clients = [
        "sh",
        "-c",
        " & ".join([*[node.client] * (CLIENTS_A_POD - 1), f"exec {node.client}"]),
    ]
    for number in range(_HOLDERS):
        await cluster.create(pod(f"client-{number}", clients, {MEMORY: UNITS, PERCENT: SHARE}))
    for number in range(PODS - _HOLDERS):
        await cluster.create(pod(f"other-{number}", ["sleep", "infinity"], {}))
    await until(
        lambda: set(cluster.phases().values()) == {"Running"}, _DEADLINE_S, "every pod runs", 0.5
    )

    def all_seen() -> bool:
        clients = node.status().clients or ()
        return len(clients) == _CLIENTS and all(client.grant for client in clients)

    await until(
        all_seen, _DEADLINE_S, f"{_CLIENTS} clients are seen, each under the grant of its pod", 0.5
    )


async def _let_guests_come_and_go(cluster: OneNode) -> None:
    """Each second a pod comes, and the one goes that has been there longest."""
    for number in count():
        await cluster.create(pod(f"guest-{number}", ["sleep", "infinity"], {MEMORY: 1}))
        if number >= _GUESTS:
            cluster.delete(f"guest-{number - _GUESTS}")
        await asyncio.sleep(1)


class _Node:
    """`mpsd control` and `mpsd agent`; their logs are in `folder`. client: the command of one."""

    def __init__(self, folder: Path, programs: dict[str, subprocess.Popen[bytes]]) -> None:
        self._folder = folder
        self._programs = programs
        self._before = 0  # how many resources earlier agents have registered
        self.agent, self.control = (
            psutil.Process(programs[name].pid) for name in ("agent", "control")
        )
        self.client = f"{folder}/run/simulation/bin/sim-cuda hold"

    def status(self) -> NodeReport:
        _status, body = local_api.ask(self._folder / "run" / "mpsd.sock", "GET", "/v1/node")
        return local_api.read(body, NodeReport)

    def nvml_s(self) -> float:
        """What the agent has spent in simulated NVML so far."""
        violations = self.status().violations
        assert violations is not None
        return violations.nvml_s

    def is_ready(self) -> bool:
        for verb, program in self._programs.items():
            if program.poll() is not None:
                raise EOFError(f"mpsd {verb} ended: {self._log(verb)}")
        try:
            domains = self.status().domains
        except local_api.NotRunning:
            return False
        return (
            self.logged("registered") - self._before == _RESOURCES
            and [domain.state for domain in domains] == ["ready"] * GPUS
        )

    def start_agent_again(self) -> None:
        """After its end; with the same command line."""
        earlier = self._programs["agent"]
        earlier.wait()
        self._before = self.logged("registered")
        with (self._folder / "agent.log").open("ab") as log:
            self._programs["agent"] = again = subprocess.Popen(earlier.args, stderr=log)
        self.agent = psutil.Process(again.pid)

    def logged(self, event: str) -> int:
        """How many lines of this event the agent has written."""
        return sum(json.loads(line)["event"] == event for line in self._log("agent").splitlines())

    def _log(self, verb: str) -> str:
        return (self._folder / f"{verb}.log").read_text()


@asynccontextmanager
async def _serving(folder: Path, cluster: OneNode) -> AsyncIterator[_Node]:
    """Both programs of the node."""
    limits = _limits(folder / "limits")
    common = [
        "--simulate",
        f"H200x{GPUS}",
        "--run-dir",
        str(folder / "run"),
        "--limits",
        str(limits),
    ]
    of_cluster = [
        "--node",
        NODE,
        "--kubelet-dir",
        str(cluster.kubelet_folder),
        "--kubeconfig",
        str(cluster.kubeconfig),
    ]
    probes = ["--address", "127.0.0.1", "--metrics-port", "0"]
    programs = {"control": _start("control", common, folder)}
    try:
        # Where both start at once, both make the simulated machine.
        await until(
            (folder / "run/simulation/gpus.json").exists, _DEADLINE_S, "the GPUs are there", 0.05
        )
        programs["agent"] = _start("agent", [*common, *of_cluster, *probes], folder)
        yield _Node(folder, programs)
    finally:
        for program in reversed(programs.values()):
            # from the second signal on `mpsd control` waits for no client any more
            with suppress(TimeoutError):
                await until(partial(_has_ended, program), _DEADLINE_S, "it has ended", 0.5)
            program.kill()
            program.wait()


def _has_ended(program: subprocess.Popen[bytes]) -> bool:
    program.send_signal(signal.SIGTERM)
    return program.poll() is not None


def _start(verb: str, arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{verb}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mpsd", verb, *arguments, "--log-format", "json"], stderr=log
        )


def _limits(folder: Path) -> Path:
    """The limits shipped, but for the number of clients that a pod may have, of which a GPU has 60
    in all."""
    shutil.copytree(shipped_folder(), folder)
    policy = folder / "policy.yaml"
    policy.write_text(
        re.sub(
            r"clients_per_grant: \d+", f"clients_per_grant: {60 // PODS_A_GPU}", policy.read_text()
        )
    )
    return folder
