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

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.mps.node_gpus import Node
from mpsd.platform import processes
from mpsd.platform.containers import PodProcesses
from mpsd.platform.limits_files import load_limits
from mpsd.platform.nvml import Nvml
from mpsd.platform.settings import settings
from mpsd.simulator.card import GRAPHICS, MPS_CLIENT, OUTSIDE_MPS, CardView, ContextClaim
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from mpsd.watchdog.ending import ClientEnd, NotEnded
from tests.platform.pod_cgroup import needs_cgroups, pod_cgroup
from tests.whole.machine.machine import SOON_S

FACTS = load_limits(None).facts


class World:
    """One GPU, one process that may be on it, and whoever is to end it."""

    def __init__(self, folder: Path) -> None:
        machine = create_node(folder / "simulation", cards_asked("A30", FACTS), FACTS.capabilities)
        self.nvml = Nvml(SimulatedNvml(machine.folder))
        self.nvml.open()
        self.node = Node(self.nvml, self.nvml.gpus(FACTS), {}, (), {}, "")
        self.card: CardView = machine.card(0)
        self.settings = settings(run_directory=str(folder), environment={})
        self.process = subprocess.Popen(["sleep", "600"])
        found = processes.identity_of(self.process.pid)
        assert found
        self.identity: ProcessIdentity = found

    def put_on_gpu(self, kind: int = MPS_CLIENT) -> None:
        self.card.claim(ContextClaim(self.process.pid, kind, 100 * MIB))

    def violation(
        self, kind: ViolationKind = ViolationKind.MEMORY_OVER_GRANT, pod: str | None = None, **identity: int
    ) -> Violation:
        who = replace(self.identity, **identity)  # type: ignore[arg-type]
        seen = Client(who, self.node.gpus[0].uuid, 100, on_mps=False, command="sleep", grant="a", pod=pod)
        return Violation(kind, Response.KILL, seen.gpu, "a", None, seen, "takes too much")

    def end(self, violation: Violation, pods: PodProcesses | None = None) -> float:
        """The seconds until its memory was back."""

        async def ending() -> float:
            end = ClientEnd(self.settings, self.node, pods)
            await end.signal(violation, None)
            return await end.until_gone(violation.client, time.monotonic())

        return asyncio.run(ending())

    @property
    def lives(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="mpsd-") as folder:  # short: a socket's path ends at 107 characters
        made = World(Path(folder))
        yield made
        made.process.kill()
        made.process.wait()
        made.card.close()
        made.nvml.close()


def test_what_was_meant_is_ended_and_its_memory_is_back(world: World) -> None:
    world.put_on_gpu()
    world.end(world.violation())
    assert world.process.wait(SOON_S) == -signal.SIGKILL
    assert world.nvml.uses(world.node.gpus[0].uuid) == ()


def test_another_process_with_the_same_pid_is_left_alone(world: World) -> None:
    world.put_on_gpu()
    with pytest.raises(NotEnded, match="it had ended by itself"):
        world.end(world.violation(start_ticks=world.identity.start_ticks - 1))
    assert world.lives


def test_a_process_that_nvml_does_not_list_any_more_is_left_alone(world: World) -> None:
    with pytest.raises(NotEnded, match="it had left the GPU by itself"):
        world.end(world.violation())
    assert world.lives


def test_a_gpu_that_is_lost_proves_nothing(world: World) -> None:
    world.put_on_gpu()
    world.card.lost = True
    with pytest.raises(NotEnded, match="GPU is lost"):
        world.end(world.violation())
    assert world.lives


def test_what_shows_something_on_a_display_is_left_alone_unless_it_has_a_grant(world: World) -> None:
    for kind in (OUTSIDE_MPS, GRAPHICS):
        world.put_on_gpu(kind)
    with pytest.raises(NotEnded, match="it shows something on a display"):
        world.end(world.violation(ViolationKind.IN_NO_POD))
    assert world.lives
    world.end(world.violation(ViolationKind.MEMORY_OVER_GRANT))
    assert not world.lives, "nobody can hide by drawing something"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_a_process_that_mpsd_may_not_signal_is_said(world: World) -> None:
    world.put_on_gpu()
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(NotEnded, match="mpsd may not signal it: it is another user's"):
            world.end(world.violation())
    finally:
        os.setresuid(0, 0, 0)
    assert world.lives


@needs_cgroups
def test_a_process_whose_cgroup_names_another_pod_is_left_alone(world: World) -> None:
    world.put_on_gpu()
    with pod_cgroup() as pod:
        pod.take_in(world.process.pid)
        with pytest.raises(NotEnded, match="its cgroup does not name its pod or container any more"):
            world.end(world.violation(pod="another"), PodProcesses())
        assert world.lives
        world.end(world.violation(pod=pod.uid), PodProcesses())
        assert not world.lives
