"""What watching the GPUs costs mpsd itself: 8 simulated H200 with 40 clients each, every one under
a grant of its own.

The watchdog, its eyes and its ledger is those of `mpsd up`, alone in this process; the clients are
processes that sleep and are written down as holding memory. Simulated NVML costs something else
than the driver's, so what is spent in it is a row of its own.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpsd.grants.ledger import LocalGrants
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.domain import State
from mpsd.model.grants import Gpu, Grant, evenly
from mpsd.model.node_view import RECORD_VERSION, DomainRecord
from mpsd.mps.node_gpus import Node, NodeGpus
from mpsd.mps.records import DomainRecords
from mpsd.platform import processes, records
from mpsd.platform.event_loop import until
from mpsd.platform.limits_files import load_limits
from mpsd.platform.logs import be_silent, logger
from mpsd.platform.nvml import Nvml
from mpsd.platform.nvml_readers import GpuReaders
from mpsd.platform.settings import GRANT, Settings, settings
from mpsd.simulator.card import MPS_CLIENT, ContextClaim
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from mpsd.watchdog.watchdog import Watchdog
from tests.bench.rows import Row

GPUS, CLIENTS_A_GPU, GRANTED_MIB = 8, 40, 3072
CHANGING = 32  # clients that take or give back memory between two looks
MANAGING_OF, MANAGED_MIB, MAPPINGS = CLIENTS_A_GPU, 256, 500
LOOKS_TIMED = 500
WINDOW_S = 12.0
MOST_CORES, MOST_CORES_MANAGED = 0.03, 0.02
LEAST_LOOKS = 4.0  # a second


def watchdog() -> Iterator[tuple[str, Row]]:
    """The watchdog's share of a core: nothing changes, then what a tenth of the clients holds, then
    managed memory."""
    be_silent()
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder, ExitStack() as stack:
        world = _World(Path(folder), stack)
        yield from asyncio.run(world.measured()).items()


class _TimedLibrary:
    """Simulated NVML, with the processor time that its functions take."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._timed: dict[str, Callable[..., Any]] = {}
        self.spent_s = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not name.startswith("nvmlDeviceGet"):
            return found
        if name not in self._timed:
            self._timed[name] = self._timing(found)
        return self._timed[name]

    def _timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self.spent_s += time.thread_time() - began

        return timed


class _World:
    """320 processes on 8 GPUs, each with a domain that serves."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        limits = load_limits(None)
        self._policy = limits.policy
        self._settings = settings(run_directory=str(folder), environment={})
        cards = cards_asked(f"H200x{GPUS}", limits.facts)
        self._machine = create_node(folder / "simulation", cards, limits.facts.capabilities)
        self._library = _TimedLibrary(SimulatedNvml(self._machine.folder))
        nvml = Nvml(self._library)
        nvml.open()
        stack.callback(nvml.close)
        self._node = Node(nvml, NodeGpus(nvml, limits.facts).now.gpus, {}, (), {}, "")
        for gpu in self._node.gpus:
            _write_record(self._settings, gpu)
        self._stack = stack

    async def measured(self) -> dict[str, Row]:
        ledger = LocalGrants(self._settings.grants, lambda: None, logger())
        ledger.load()
        for gpu in self._node.gpus:
            _fill(self._machine, gpu, ledger, self._stack)
        domains = DomainRecords(self._settings.run_directory, logger())
        watching = Watchdog(self._settings, self._node, lambda: self._policy, ledger, domains)
        stop = asyncio.Event()
        running = asyncio.create_task(watching.run(stop))
        await until(
            lambda: len(watching.scan().clients) == GPUS * CLIENTS_A_GPU,
            30,
            "every client is seen",
            0.1,
        )
        still = await self._cost(watching)
        changing = self._start([sys.executable, "-c", _CHANGES, str(self._machine.folder)])
        busy = await self._cost(watching)
        changing.kill()
        (self._machine.folder / "managed").touch()
        managed = await self._cost(watching)
        stop.set()
        await running
        ledger.close()
        seen = watching.violations().node
        assert not seen.counts, f"nobody is over: {seen.last}"
        about = f"the watchdog alone, {GPUS} GPUs × {CLIENTS_A_GPU} clients"
        busy_about = f"the same, {busy.looks:.1f} looks/s, a tenth of them changes memory"
        managed_about = (
            f"the same, {managed.looks:.1f} looks/s, one on each takes or gives back managed memory"
            " every 0.5 s"
        )
        here_ms, read_ms = self._a_look_ms()
        slowest = min(still.looks, busy.looks, managed.looks)
        return {
            "watchdog_cpu": Row(
                still.own,
                "of a core",
                MOST_CORES,
                None,
                f"{about}, {still.looks:.1f} looks/s, nothing changes",
            ),
            "watchdog_nvml": Row(
                still.nvml,
                "of a core",
                None,
                None,
                "the same, in simulated NVML: not in the row above",
            ),
            "watchdog_cpu_changing": Row(busy.own, "of a core", MOST_CORES, still.own, busy_about),
            "watchdog_cpu_managed": Row(
                managed.own, "of a core", MOST_CORES_MANAGED, still.own, managed_about
            ),
            "watchdog_nvml_changing": Row(
                busy.nvml, "of a core", None, still.nvml, "the same, in simulated NVML"
            ),
            "watchdog_reader": Row(
                read_ms,
                "ms",
                here_ms + 0.3,
                here_ms,
                "one GPU and look by its reader, and by simulated NVML in this process",
            ),
            "watchdog_looks": Row(
                LEAST_LOOKS / slowest, "", 1.0, None, "4 looks a second, of those that there were"
            ),
        }

    def _a_look_ms(self) -> tuple[float, float]:
        """One GPU and look in this process, and by its reader: medians of processor time."""
        program = (sys.executable, "-P", "-m", "mpsd.simulator.nvml", str(self._machine.folder))
        read = Nvml(None, readers=GpuReaders(program))
        read.open()
        self._stack.callback(read.close)
        uuid = read.at(0).uuid
        here, by_reader = [], []
        for _turn in range(LOOKS_TIMED):
            here.append(_spent_ms(self._node.nvml, uuid))
            by_reader.append(_spent_ms(read, uuid))
        return statistics.median(here), statistics.median(by_reader)

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        """A process that ends with the world."""
        started = subprocess.Popen(command)
        self._stack.callback(started.wait)
        self._stack.callback(started.kill)
        return started

    async def _cost(self, watching: Watchdog) -> "_Cost":
        await asyncio.sleep(1)
        cpu, nvml, looks, began = (
            time.process_time(),
            self._library.spent_s,
            watching.violations().node.looks,
            time.monotonic(),
        )
        await asyncio.sleep(WINDOW_S)
        took_s = time.monotonic() - began
        in_nvml = self._library.spent_s - nvml
        own = time.process_time() - cpu - in_nvml
        return _Cost(
            own / took_s, in_nvml / took_s, (watching.violations().node.looks - looks) / took_s
        )


def _spent_ms(nvml: Nvml, uuid: str) -> float:
    """Of processor time, in this process and its readers."""
    began = time.process_time()
    elsewhere_s = 0.0 if nvml.readers is None else -nvml.spent_s
    nvml.in_use(uuid)
    elsewhere_s += 0.0 if nvml.readers is None else nvml.spent_s
    return (time.process_time() - began + elsewhere_s) * 1000


@dataclass(frozen=True, slots=True)
class _Cost:
    """own, nvml: shares of a core. looks: a second."""

    own: float
    nvml: float
    looks: float


def _write_record(chosen: Settings, gpu: Gpu) -> None:
    daemon = processes.identity_of(1)
    record = DomainRecord(
        version=RECORD_VERSION,
        domain=gpu.label,
        gpus=(gpu.uuid,),
        state=State.READY,
        since=0.0,
        reason="",
        daemon=daemon,
        servers=(),
        restarts=0,
        restarts_total=0,
        started_s=0.0,
        compute_modes={},
        boot_id=processes.boot_id(),
    )
    path = chosen.domain(gpu.label).record
    path.parent.mkdir(parents=True)
    records.write(path, record)


def _fill(machine: SimulatedNode, gpu: Gpu, ledger: LocalGrants, stack: ExitStack) -> None:
    """40 clients on the GPU."""
    card = machine.card(gpu.ordinal)
    stack.callback(card.close)
    for number in range(CLIENTS_A_GPU):
        name = f"{gpu.label}-{number}"
        manages = [sys.executable, "-c", _MANAGES, str(machine.folder), str(gpu.ordinal)]
        command = manages if number % MANAGING_OF == 0 else ["/bin/sleep", "600"]
        variables = environment(ClientLimit(GRANTED_MIB, 100), str(machine.folder)) | {GRANT: name}
        process = subprocess.Popen(command, env=variables)
        holder = processes.identity_of(process.pid)
        assert holder is not None, name
        parts = evenly((gpu.uuid,), GRANTED_MIB, 0)
        grant = Grant(name, gpu.label, parts, 100, 8, holder, "sleep 600")
        ledger.add(grant)
        stack.callback(ledger.end, grant)  # last, with the cgroup that was made for it
        stack.callback(process.wait)
        stack.callback(process.kill)
        card.claim(ContextClaim(process.pid, MPS_CLIENT, 1024 * MIB))


# As many mappings as a PyTorch program has, and managed memory that comes and goes from the moment
# at which it may.
_MANAGES = f"""
import mmap, os, sys, time
from pathlib import Path
from mpsd.simulator.gpus import uvm_path
from mpsd.simulator.node import open_node
node = open_node(Path(sys.argv[1]))
card, uvm = node.card(int(sys.argv[2])), uvm_path(node.folder).open("r+b")
prots = (mmap.PROT_WRITE, mmap.PROT_READ)
apart = [mmap.mmap(-1, 8192, prot=prots[n % 2]) for n in range({MAPPINGS})]
while not (node.folder / "managed").exists():
    time.sleep(0.1)
(slot,) = [one.slot for one in card.holdings() if one.pid == os.getpid()]
uvm.truncate({MANAGED_MIB * MIB})
while True:
    mapped = mmap.mmap(uvm.fileno(), {MANAGED_MIB * MIB}, prot=mmap.PROT_READ)
    card.add_managed(slot, {MANAGED_MIB})
    time.sleep(0.5)
    mapped.close()
    card.add_managed(slot, -{MANAGED_MIB})
    time.sleep(0.5)
"""

_CHANGES = f"""
import random, sys, time
from pathlib import Path
from mpsd.simulator.node import open_node
node = open_node(Path(sys.argv[1]))
cards = [node.card(gpu.ordinal) for gpu in node.gpus]
while True:
    for _ in range({CHANGING}):
        card, slot = random.choice(cards), random.randrange({CLIENTS_A_GPU})
        card.add(slot, {MIB} * (64 if card.held_bytes(slot) < {1500 * MIB} else -64))
    time.sleep(0.1)
"""
