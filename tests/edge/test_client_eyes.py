"""Looking at the processes on the GPUs: whose they are, by the mark they carry."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mpsd.edge import processes
from mpsd.edge.client_eyes import ClientEyes, Owners
from mpsd.edge.limits_files import load_limits
from mpsd.edge.nvml import Nvml
from mpsd.edge.pod_processes import PodProcesses
from mpsd.sim.card import MPS_CLIENT, MPS_SERVER, OUTSIDE_MPS, Card, Claim
from mpsd.sim.gpus import MIB
from mpsd.sim.node import cards_asked, create_node
from mpsd.sim.nvml import SimulatedNvml
from tests.edge.pod_cgroup import PodCgroupHere, needs_cgroups, pod_cgroup
from tests.roles.machine import eventually

MARK = "MPSD_GRANT"


class World:
    """One GPU, and processes put on it."""

    def __init__(self, nvml: Nvml, uuid: str, card: Card) -> None:
        self._card = card
        self._eyes = ClientEyes(nvml, [uuid], MARK)
        self._eyes_beside_kubelet = ClientEyes(nvml, [uuid], MARK, PodProcesses())
        self.processes: list[subprocess.Popen[bytes]] = []

    def put(self, kind: int, mark: str | None = None) -> int:
        """The pid of a process that holds 100 MiB."""
        environment = {"PATH": "/usr/bin:/bin"} | ({MARK: mark} if mark else {})
        process = subprocess.Popen(["sleep", "600"], env=environment)
        self.processes.append(process)
        eventually(lambda: processes.environment_of(process.pid), "the process has its environment")
        self._card.claim(Claim(process.pid, kind, 100 * MIB))
        return process.pid

    def grants(self, *, servers: tuple[int, ...] = (), holders: dict[int, str] | None = None) -> dict[int, str | None]:
        """Of every client that is seen, where `a` and `b` are the grants there are."""
        owners = Owners(frozenset(servers), frozenset({"a", "b"}), holders or {})
        return {client.pid: client.grant for client in self._eyes.look(owners).clients}

    def beside_kubelet(self, pods: Mapping[str, str]) -> dict[int, tuple[str | None, str | None]]:
        """Pod and grant of every client, where a kubelet gives these pods their grants."""
        seen = self._eyes_beside_kubelet.look(Owners(grants=frozenset({"a", "b"}), pods=pods))
        return {client.pid: (client.pod, client.grant) for client in seen.clients}


@pytest.fixture
def pod() -> Iterator[PodCgroupHere]:
    with pod_cgroup() as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    facts = load_limits(None).facts
    node = create_node(tmp_path / "node", cards_asked("A30", facts), facts.capabilities)
    nvml, card = Nvml(SimulatedNvml(node.folder)), node.card(0)
    nvml.open()
    nvml.gpus(facts)
    made = World(nvml, node.gpus[0].uuid, card)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
    card.close()
    nvml.close()


def test_a_client_belongs_to_the_grant_whose_mark_it_carries(world: World) -> None:
    first, second = world.put(MPS_CLIENT, "a"), world.put(MPS_CLIENT, "b")
    assert world.grants() == {first: "a", second: "b"}


def test_a_mark_of_a_grant_that_is_over_counts_for_nothing(world: World) -> None:
    stranger, old = world.put(OUTSIDE_MPS), world.put(MPS_CLIENT, "ended")
    assert world.grants() == {stranger: None, old: None}


def test_a_holder_that_hides_its_mark_is_still_known(world: World) -> None:
    holder = world.put(MPS_CLIENT)
    assert world.grants(holders={holder: "a"}) == {holder: "a"}


def test_servers_and_the_dead_are_no_clients(world: World) -> None:
    server, client = world.put(MPS_SERVER), world.put(MPS_CLIENT, "a")
    assert world.grants(servers=(server,)) == {client: "a"}
    world.processes[1].kill()
    world.processes[1].wait()
    assert world.grants(servers=(server,)) == {}


@needs_cgroups
def test_beside_a_kubelet_a_client_belongs_to_the_pod_whose_cgroup_it_is_in(pod: PodCgroupHere, world: World) -> None:
    inside, outside = world.put(MPS_CLIENT), world.put(MPS_CLIENT)
    pod.take_in(inside)
    assert world.beside_kubelet({pod.uid: "a"}) == {inside: (pod.uid, "a"), outside: (None, None)}
    assert world.beside_kubelet({}) == {inside: (pod.uid, None), outside: (None, None)}


@needs_cgroups
def test_beside_a_kubelet_a_mark_counts_for_nothing(pod: PodCgroupHere, world: World) -> None:
    hides, stranger = world.put(MPS_CLIENT, "b"), world.put(MPS_CLIENT, "b")
    pod.take_in(hides)
    assert world.beside_kubelet({pod.uid: "a"}) == {hides: (pod.uid, "a"), stranger: (None, None)}


@needs_cgroups
def test_the_cgroup_is_read_once(pod: PodCgroupHere, world: World) -> None:
    client = world.put(MPS_CLIENT)
    pod.take_in(client)
    before = world.beside_kubelet({pod.uid: "a"})
    pod.let_out(client)
    assert world.beside_kubelet({pod.uid: "a"}) == before
