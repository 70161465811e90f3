"""A process is ended on proof that it is the one that was meant, and on nothing less."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import (
    RECORD_VERSION,
    Client,
    DomainRecord,
    EndRecord,
    Fault,
    FaultHit,
    Queue,
)
from mpsd.mps.ends import ClientEnds, EndAsked, NotEnded
from mpsd.mps.node_gpus import Node, NodeGpus
from mpsd.mps.rules.ends import begun
from mpsd.platform import processes, records
from mpsd.platform.containers import PodProcesses
from mpsd.platform.event_loop import until
from mpsd.platform.limits_files import load_limits
from mpsd.platform.logs import logger
from mpsd.platform.nvml import Nvml
from mpsd.simulator.card import (
    GRAPHICS,
    MPS_CLIENT,
    MPS_SERVER,
    OUTSIDE_MPS,
    CardView,
    ContextClaim,
)
from mpsd.simulator.gpus import MIB
from mpsd.simulator.kernel_queue import KernelQueue
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from tests.platform.pod_cgroup import needs_cgroups, pod_cgroup
from tests.whole.machine.machine import SOON_S, eventually

FACTS = load_limits(None).facts
DRAIN_S = 0.2


class World:
    """One GPU, one process that may be on it, and whoever is to end it."""

    def __init__(self, folder: Path) -> None:
        machine = create_node(folder / "simulation", cards_asked("A30", FACTS), FACTS.capabilities)
        self.nvml = Nvml(SimulatedNvml(machine.folder))
        self.nvml.open()
        self.node = Node(self.nvml, NodeGpus(self.nvml, FACTS).now.gpus, {}, (), {}, "")
        self.card: CardView = machine.card(0)
        self.folder, self.log = folder, logger(role="test")
        self.domains: tuple[DomainRecord, ...] = ()
        self.process = subprocess.Popen(["sleep", "600"])
        found = processes.identity_of(self.process.pid)
        assert found
        self.identity: ProcessIdentity = found

    def put_on_gpu(self, kind: int = MPS_CLIENT) -> int:
        """The slot that it holds there."""
        return self.card.claim(ContextClaim(self.process.pid, kind, 100 * MIB))

    def domain(self, servers: tuple[int, ...] = (), faults: tuple[Fault, ...] = ()) -> DomainRecord:
        gpus = (self.node.gpus[0].uuid,)
        served = DomainRecord(
            RECORD_VERSION, "gpu0", gpus, State.READY, 0, "", None, servers, 0, 0, 0, {}
        )
        return replace(served, faults=faults)

    def asked(self, pod: str | None = None, **identity: int) -> EndAsked:
        who = replace(self.identity, **identity)  # type: ignore[arg-type]
        uuid = self.node.gpus[0].uuid
        seen = Client(who, uuid, 100, on_mps=True, command="sleep", grant="a", pod=pod)
        return EndAsked(seen, "takes too much", DRAIN_S)

    def ends(self, pods: PodProcesses | None = None) -> ClientEnds:
        return ClientEnds(self.folder / "ends", self.node, pods, lambda: self.domains, self.log)

    def end(self, asked: EndAsked, pods: PodProcesses | None = None) -> float:
        """The seconds until its memory was back."""

        async def ending() -> float:
            ends = self.ends(pods)
            await ends.begin(asked).killed()
            return await ends.until_gone(asked.client, time.monotonic())

        return asyncio.run(ending())

    @property
    def is_stopped(self) -> bool:
        return processes.is_stopped(self.identity)

    @property
    def recorded(self) -> list[Path]:
        return [*self.folder.glob("ends/*.json")]

    @property
    def lives(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def world() -> Iterator[World]:
    # short: a socket's path ends at 107 characters
    with tempfile.TemporaryDirectory(prefix="mpsd-") as folder:
        made = World(Path(folder))
        yield made
        made.process.kill()
        made.process.wait()
        made.card.close()
        made.nvml.close()


def test_what_was_meant_is_ended_and_its_memory_is_back(world: World) -> None:
    world.put_on_gpu()
    world.end(world.asked())
    assert world.process.wait(SOON_S) == -signal.SIGKILL
    assert world.nvml.uses(world.node.gpus[0].uuid) == ()


def test_another_process_with_the_same_pid_is_left_alone(world: World) -> None:
    world.put_on_gpu()
    with pytest.raises(NotEnded, match="it had ended by itself"):
        world.end(world.asked(start_ticks=world.identity.start_ticks - 1))
    assert world.lives


def test_a_process_that_nvml_does_not_list_any_more_is_left_alone(world: World) -> None:
    with pytest.raises(NotEnded, match="it had left the GPU by itself"):
        world.end(world.asked())
    assert world.lives


async def test_who_dies_of_a_signal_in_a_moment_is_stopped_before_nvml_is_asked(
    world: World,
) -> None:
    world.card.lost = True
    ends = world.ends()
    ends.begin(replace(world.asked(), is_doomed=True))
    await until(lambda: world.is_stopped, SOON_S, "it is stopped")
    await ends.finish()


def test_a_gpu_that_is_lost_proves_nothing(world: World) -> None:
    world.put_on_gpu()
    world.card.lost = True
    with pytest.raises(NotEnded, match="GPU is lost"):
        world.end(world.asked())
    assert world.lives


def test_what_shows_something_on_a_display_is_left_alone_unless_it_has_a_grant(
    world: World,
) -> None:
    for kind in (OUTSIDE_MPS, GRAPHICS):
        world.put_on_gpu(kind)
    with pytest.raises(NotEnded, match="it shows something on a display"):
        world.end(replace(world.asked(), spares_displays=True))
    assert world.lives
    world.end(world.asked())
    assert not world.lives, "nobody can hide by drawing something"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_a_process_that_mpsd_may_not_signal_is_said(world: World) -> None:
    world.put_on_gpu()
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(NotEnded, match="mpsd may not signal it: it is another user's"):
            world.end(world.asked())
    finally:
        os.setresuid(0, 0, 0)
    assert world.lives


@needs_cgroups
def test_a_process_whose_cgroup_names_another_pod_is_left_alone(world: World) -> None:
    world.put_on_gpu()
    with pod_cgroup() as pod:
        pod.take_in(world.process.pid)
        with pytest.raises(
            NotEnded, match="its cgroup does not name its pod or container any more"
        ):
            world.end(world.asked(pod="another"), PodProcesses())
        assert world.lives
        world.end(world.asked(pod=pod.uid), PodProcesses())
        assert not world.lives


async def test_a_client_is_stopped_and_recorded_until_its_time_is_over(world: World) -> None:
    world.put_on_gpu()
    end = world.ends().begin(replace(world.asked(), drain_s=30))
    eventually(lambda: world.is_stopped, "it is stopped")
    assert [path.stat().st_mode & 0o777 for path in world.recorded] == [0o600]
    assert world.lives
    assert end._task
    end._task.cancel()
    await asyncio.gather(end._task, return_exceptions=True)
    assert world.is_stopped, "an mpsd that ends leaves it to the next"


def test_the_next_mpsd_goes_on_with_a_recorded_end(world: World) -> None:
    world.put_on_gpu()

    async def begun_only() -> None:
        world.ends().begin(world.asked())._task.cancel()

    async def resumed() -> None:
        ends = world.ends()
        ends.resume()
        await ends.finish()

    asyncio.run(begun_only())
    assert world.recorded
    assert world.lives
    asyncio.run(resumed())
    assert world.process.wait(SOON_S) == -signal.SIGKILL
    assert not (world.folder / "ends").exists()


async def test_a_record_says_that_mpsd_killed_the_client_until_that_is_seen(
    world: World,
) -> None:
    world.put_on_gpu()
    ends = world.ends()
    await ends.begin(world.asked()).killed()
    (recorded,) = world.recorded
    end = records.read(recorded, EndRecord)
    assert end
    assert (end.process, end.is_killed) == (world.identity, True)
    await ends.finish()
    assert not (world.folder / "ends").exists()


async def test_a_record_of_another_life_of_the_pid_ends_nobody(world: World) -> None:
    gone = begun(replace(world.identity, start_ticks=1), (), "earlier", 0.1, 0.0)
    (world.folder / "ends").mkdir()
    records.write(world.folder / "ends" / f"{world.process.pid}.json", gone)
    ends = world.ends()
    ends.resume()
    await ends.finish()
    assert world.lives
    assert not world.recorded


async def test_a_stop_without_a_record_is_left_alone(world: World) -> None:
    world.put_on_gpu()
    world.process.send_signal(signal.SIGSTOP)
    ends = world.ends()
    ends.resume()
    await ends.finish()
    eventually(lambda: world.is_stopped, "it is still stopped")
    assert world.lives


async def test_a_client_that_a_fault_hits_while_it_waits_is_killed_at_once(world: World) -> None:
    world.put_on_gpu()
    hit = FaultHit(world.identity, "sleep", None)
    end = world.ends().begin(replace(world.asked(), drain_s=SOON_S * 10))
    world.domains = (world.domain(faults=(Fault(0.0, (hit,)),)),)
    await end.killed()
    assert world.process.wait(SOON_S) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kernel_s", "drain_s", "expected"),
    [
        (0.01, 30.0, Queue.DRY),
        (60.0, DRAIN_S, Queue.IN_USE),
        (None, DRAIN_S, Queue.UNKNOWN),
    ],
)
async def test_an_end_says_whether_kernels_ran(
    world: World, kernel_s: float | None, drain_s: float, expected: Queue
) -> None:
    slot = world.put_on_gpu()
    world.card.claim(ContextClaim(os.getpid(), MPS_SERVER, 0))
    world.domains = (world.domain(servers=(os.getpid(),)),)
    if kernel_s is not None:
        ends_ns = time.monotonic_ns() + int(kernel_s * 1e9)
        world.card.be_busy(slot, world.process.pid, 1, KernelQueue(ends_ns, int(kernel_s * 1e6)))
    end = world.ends().begin(replace(world.asked(), drain_s=drain_s))
    await end.killed()
    assert end.queue is expected
    assert world.process.wait(SOON_S) == -signal.SIGKILL
