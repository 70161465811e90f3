"""Looking at the processes on the GPUs: whose they are, by the mark they carry."""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Generic, Self, TypeVar

import pytest

from mpsd.model.grants import Gpu
from mpsd.mps.node_gpus import NodeGpus
from mpsd.platform import processes
from mpsd.platform.containers import ContainerProcesses, PodProcesses
from mpsd.platform.limits_files import load_limits
from mpsd.platform.nvml import Nvml, NvmlFailed, NvmlLate
from mpsd.platform.process_environment import environment_of
from mpsd.simulator.card import (
    GRAPHICS,
    MPS_CLIENT,
    MPS_SERVER,
    OUTSIDE_MPS,
    CardView,
    ContextClaim,
)
from mpsd.simulator.cuda_driver import AddressRange
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import Handle, ProcessInfo, SimulatedNvml
from mpsd.watchdog.rules.escapes import RESERVED_APART_S
from mpsd.watchdog.scanner import GpuProcessScanner, Owners, Scan
from tests.platform.pod_cgroup import PodCgroupHere, needs_cgroups, pod_cgroup
from tests.whole.machine.machine import eventually

MARK = "MPSD_GRANT"


class CountingNvml(SimulatedNvml):
    """Simulated NVML that knows how often it was asked for processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked = Counter[str]()

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:  # noqa: N802
        self.asked["all"] += 1
        return super().nvmlDeviceGetComputeRunningProcesses(handle)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:  # noqa: N802
        self.asked["mps"] += 1
        return super().nvmlDeviceGetMPSComputeRunningProcesses(handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:  # noqa: N802
        self.asked["graphics"] += 1
        return super().nvmlDeviceGetGraphicsRunningProcesses(handle)


class World:
    """One GPU, and processes put on it."""

    def __init__(self, nvml: Nvml, library: CountingNvml, gpu: Gpu, card: CardView) -> None:
        self.library = library
        self.card = card
        self.scanner = partial(GpuProcessScanner, nvml, [gpu], MARK)
        self._scanner = GpuProcessScanner(nvml, [gpu], MARK)
        self._scanner_beside_kubelet = GpuProcessScanner(nvml, [gpu], None, PodProcesses())
        self.processes: list[subprocess.Popen[bytes]] = []

    def put(self, kind: int, mark: str | None = None, **variables: str) -> int:
        """The pid of a process that holds 100 MiB."""
        environment = {"PATH": "/usr/bin:/bin"} | ({MARK: mark} if mark else {}) | variables
        process = self.start(["sleep", "600"], environment)
        eventually(lambda: environment_of(process.pid, ("PATH",)), "it has its environment")
        self.card.claim(ContextClaim(process.pid, kind, 100 * MIB))
        return process.pid

    def start(
        self, command: list[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(command, env=environment)
        self.processes.append(process)
        return process

    def look(self) -> Scan:
        return self._scanner.scan(Owners(grants=frozenset({"a", "b"})))

    def asked(self) -> Mapping[str, int]:
        """How often NVML was asked since this was asked last."""
        found = dict(self.library.asked)
        self.library.asked.clear()
        return found

    def grants(
        self, *, servers: tuple[int, ...] = (), holders: dict[int, str] | None = None
    ) -> dict[int, str | None]:
        """Of every client that is seen, where `a` and `b` are the grants there are."""
        owners = Owners(frozenset(servers), frozenset({"a", "b"}), holders or {})
        return {client.pid: client.grant for client in self._scanner.scan(owners).clients}

    def beside_kubelet(self, pods: Mapping[str, str]) -> dict[int, tuple[str | None, str | None]]:
        """Pod and grant of every client, where a kubelet gives these pods their grants."""
        seen = self._scanner_beside_kubelet.scan(Owners(grants=frozenset({"a", "b"}), pods=pods))
        return {client.pid: (client.pod, client.grant) for client in seen.clients}


@pytest.fixture
def pod() -> Iterator[PodCgroupHere]:
    with pod_cgroup() as made:
        yield made


@contextmanager
def one_gpu(folder: Path) -> Iterator[World]:
    facts = load_limits(None).facts
    node = create_node(folder / "node", cards_asked("A30", facts), facts.capabilities)
    library, card = CountingNvml(node.folder), node.card(0)
    nvml = Nvml(library)
    nvml.open()
    (gpu,) = NodeGpus(nvml, facts).now.gpus
    made = World(nvml, library, gpu, card)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()
        card.close()
        nvml.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with one_gpu(tmp_path) as made:
        yield made


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
def test_beside_a_kubelet_a_client_belongs_to_the_pod_whose_cgroup_it_is_in(
    pod: PodCgroupHere, world: World
) -> None:
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


class Whose(ContainerProcesses):
    """By pid."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.of: dict[int, str] = {}

    def owner_of(self, pid: int) -> str | None:
        return self.of.get(pid)


def test_who_was_in_a_programs_cgroup_stays_under_its_grant_until_another_takes_him_in(
    world: World,
) -> None:
    whose = Whose()
    scanner = world.scanner(whose)
    client = world.put(MPS_CLIENT, "b")

    def grant(*held: str) -> str | None:
        owners = Owners(pods={one: one for one in held})
        return {one.pid: one.grant for one in scanner.scan(owners).clients}[client]

    whose.of[client] = "a"
    assert grant("a") == "a", "his mark counts for nothing"
    del whose.of[client]
    assert grant("a", "c") == "a"
    whose.of[client] = "d"
    assert grant("a", "d") == "d"


def test_a_look_that_finds_nothing_new_asks_nvml_once_and_gives_the_very_same(world: World) -> None:
    for mark in ("a", "b"):
        world.put(MPS_CLIENT, mark)
    first = world.look()
    assert world.asked() == {"all": 1, "mps": 1, "graphics": 1}
    assert world.look() is first
    assert world.asked() == {"all": 1}


def test_who_is_on_mps_is_asked_as_soon_as_a_process_comes(world: World) -> None:
    world.look()
    world.asked()
    world.put(OUTSIDE_MPS, "a")
    assert [client.on_mps for client in world.look().clients] == [False]
    assert world.asked()["mps"] == 1


def test_who_leaves_the_gpu_and_comes_back_is_asked_for_again(world: World) -> None:
    """The same process, with another program in it that may not be on MPS."""
    pid = world.put(MPS_CLIENT, "a")
    world.look()
    world.card.release(0, pid)
    assert world.look().clients == ()
    world.card.claim(ContextClaim(pid, OUTSIDE_MPS, 100 * MIB))
    assert [client.on_mps for client in world.look().clients] == [False]


def test_what_a_process_holds_twice_is_added_up(world: World) -> None:
    pid = world.put(MPS_CLIENT, "a")
    world.card.claim(ContextClaim(pid, MPS_CLIENT, 50 * MIB))
    assert [(client.pid, client.used_mib) for client in world.look().clients] == [(pid, 150)]


def test_only_a_client_that_changed_is_another(world: World) -> None:
    world.put(MPS_CLIENT, "a")
    world.put(MPS_CLIENT, "b")
    before = world.look().clients
    world.card.add(1, 50 * MIB)
    after = world.look().clients
    assert after[0] is before[0]
    assert (before[1].used_mib, after[1].used_mib) == (100, 150)


def test_of_an_environment_only_what_mps_reads_is_kept(world: World) -> None:
    world.put(
        MPS_CLIENT,
        "a",
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G",
        PASSWORD="secret",
        CUDA_VISIBLE_DEVICES="0",
    )
    (client,) = world.look().clients
    assert client.environment == {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_an_environment_that_stays_empty_is_one_that_nobody_can_read(world: World) -> None:
    """As it is in the middle of an exec, and of a process whose first thread has ended."""
    process = world.start(["/bin/sleep", "600"], {})
    eventually(lambda: processes.command_of(process.pid) == "/bin/sleep 600", "it runs")
    world.card.claim(ContextClaim(process.pid, MPS_CLIENT, 100 * MIB))
    before = [world.look() for _ in range(12)]
    assert [client.environment for client in before[-1].clients] == [None]
    assert world.look() is before[-1], "in the end it is not read again"


Library = TypeVar("Library", bound=SimulatedNvml)


class Several(Generic[Library]):
    """A node of several GPUs, on each of which this very process has a context once it was put
    there."""

    def __init__(
        self,
        folder: Path,
        cards: str,
        library: Callable[[Path], Library],
    ) -> None:
        facts = load_limits(None).facts
        node = create_node(folder, cards_asked(cards, facts), facts.capabilities)
        self.library = library(node.folder)
        self._nvml = Nvml(self.library)
        self._nvml.open()
        self.gpus = NodeGpus(self._nvml, facts).now.gpus
        shown = {gpu.uuid for gpu in self.gpus}
        self.cards = [node.card(n) for n, gpu in enumerate(node.gpus) if gpu.uuid in shown]
        self.scanner = GpuProcessScanner(self._nvml, self.gpus, MARK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for card in self.cards:
            card.close()
        self._nvml.close()

    def put_on(self, *cards: CardView) -> None:
        for card in cards:
            card.claim(ContextClaim(os.getpid(), MPS_CLIENT, 100 * MIB))

    @property
    def seen(self) -> int:
        return len(self.scanner.scan(Owners()).clients)


def test_an_instance_that_is_gone_hides_no_process_of_another(tmp_path: Path) -> None:
    with Several(tmp_path / "node", "A100:1g.10gb×2", SimulatedNvml) as here:
        here.put_on(*here.cards)
        assert here.seen == 2
        second = here.gpus[1]
        here.scanner.follow((second,))
        seen = here.scanner.scan(Owners())
        assert [client.gpu for client in seen.clients] == [second.uuid]
        assert seen.unseen == {}
        here.scanner.follow(here.gpus)
        assert here.seen == 2


def test_a_gpu_that_is_lost_hides_no_process_of_another(tmp_path: Path) -> None:
    with Several(tmp_path / "node", "A30x2", SimulatedNvml) as here:
        here.put_on(*here.cards)
        assert here.seen == 2
        here.cards[0].lost = True
        seen = here.scanner.scan(Owners())
        assert [client.gpu for client in seen.clients] == [here.gpus[1].uuid]
        assert [*seen.unseen] == [here.gpus[0].uuid]
        assert "GPU is lost" in seen.unseen[here.gpus[0].uuid]
        here.cards[0].lost = False
        assert (here.seen, here.scanner.scan(Owners()).unseen) == (2, {})


class LateNvml(SimulatedNvml):
    """Simulated NVML whose calls of these names fail for the first GPU."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failing: dict[str, Exception] = {}

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:  # noqa: N802
        self._fail("all", handle)
        return super().nvmlDeviceGetComputeRunningProcesses(handle)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:  # noqa: N802
        self._fail("mps", handle)
        return super().nvmlDeviceGetMPSComputeRunningProcesses(handle)

    def _fail(self, function: str, handle: Handle) -> None:
        if handle.ordinal == 0 and function in self.failing:
            raise self.failing[function]


LATE = NvmlLate("it has not answered in 1 s")


def test_a_gpu_whose_nvml_is_late_keeps_its_last_scan_until_it_is_not_read(
    tmp_path: Path,
) -> None:
    with Several(tmp_path / "node", "A30x2", LateNvml) as here:
        first = here.gpus[0].uuid
        here.put_on(here.cards[0])
        slot = here.cards[1].claim(ContextClaim(os.getpid(), MPS_CLIENT, 100 * MIB))
        assert here.seen == 2
        here.library.failing["all"] = LATE
        assert (here.seen, here.scanner.last.unseen) == (2, {})
        here.cards[1].release(slot, os.getpid())
        assert [client.gpu for client in here.scanner.scan(Owners()).clients] == [first]
        unread = NvmlFailed("NVML does not answer")
        here.library.failing["all"] = unread
        before = dict(here.scanner.scanned_s)
        seen = here.scanner.scan(Owners())
        assert (seen.clients, seen.unseen) == ((), {first: str(unread)})
        scanned = {gpu for gpu, at_s in here.scanner.scanned_s.items() if at_s != before[gpu]}
        assert scanned == {here.gpus[1].uuid}
        here.library.failing.clear()
        assert (here.seen, here.scanner.last.unseen) == (1, {})
        here.library.failing["all"] = NvmlFailed("NVML: GPU is lost")
        assert [*here.scanner.scan(Owners()).unseen] == [first], "it is so at once"
        here.library.failing["all"] = LATE
        assert [*here.scanner.scan(Owners()).unseen] == [first], "and stays so"


def test_who_comes_while_nvml_is_late_is_seen_as_soon_as_it_answers(tmp_path: Path) -> None:
    with Several(tmp_path / "node", "A30", LateNvml) as here:
        assert here.seen == 0
        here.put_on(*here.cards)
        here.library.failing["mps"] = LATE
        assert here.seen == 0
        here.library.failing.clear()
        assert here.seen == 1


def test_memory_taken_through_a_graphics_interface_counts_and_that_of_who_computes_too_counts_once(
    world: World,
) -> None:
    client, draws = world.put(MPS_CLIENT, "a"), world.put(GRAPHICS, "b")
    # NVML has all that it uses in both lists
    world.card.claim(ContextClaim(client, GRAPHICS, 100 * MIB))
    found = {
        one.pid: (one.grant, one.used_mib, one.on_mps, one.only_draws)
        for one in world.look().clients
    }
    assert found == {client: ("a", 100, True, False), draws: ("b", 100, False, True)}
    world.asked()
    for _ in range(5):
        world.look()
    assert world.asked() == {"all": 5}  # who draws is asked for as seldom as who is on MPS
    grown = world.card.claim(ContextClaim(draws, GRAPHICS, 50 * MIB))
    eventually(
        lambda: {one.pid: one.used_mib for one in world.look().clients}[draws] == 150,
        "its use grows",
    )
    world.card.release(grown, draws)
    eventually(
        lambda: {one.pid: one.used_mib for one in world.look().clients}[draws] == 100, "and shrinks"
    )


class Reserving:
    """This very process, as a client of grant `a` that may have a context."""

    def __init__(self, world: World, device: Path) -> None:
        self._world, self._device = world, device
        device.touch()
        self.slot = world.card.claim(ContextClaim(os.getpid(), MPS_CLIENT, 100 * MIB))
        self._scanner, self._range = world.scanner(), None

    def reserve(self, mib: int) -> None:
        self.give_up()
        self._range: AddressRange | None = AddressRange(mib * MIB, self._device)

    def give_up(self) -> None:
        if self._range:
            self._range.unmap()
        self._range = None

    def scan(self, *capped: str) -> Scan:
        holders = {os.getpid(): "a"}
        return self._scanner.scan(
            Owners(grants=frozenset({"a"}), holders=holders, capped=frozenset(capped))
        )

    def kib(self, *capped: str) -> int:
        (client,) = self.scan(*capped).clients
        return client.reserved_kib


@pytest.fixture
def reserving(world: World, tmp_path: Path) -> Iterator[Reserving]:
    made = Reserving(world, tmp_path / "nvidia0")
    yield made
    made.give_up()


def test_what_a_context_reserves_is_read_until_it_was_the_same_for_a_tenth_of_a_second(
    reserving: Reserving,
) -> None:
    reserving.reserve(6)
    assert reserving.kib("a") == 6144
    reserving.reserve(2)
    assert reserving.kib("a") == 2048, "it was read again"
    time.sleep(RESERVED_APART_S)
    assert reserving.kib("a") == 2048
    reserving.reserve(6)
    before = reserving.scan("a")
    assert [client.reserved_kib for client in before.clients] == [2048], (
        "and now it stays for the life of the process"
    )
    assert reserving.scan("a") is before


def test_of_a_client_that_may_use_all_threads_nothing_is_read(reserving: Reserving) -> None:
    reserving.reserve(6)
    assert reserving.kib() == 0
    assert reserving.scan() is reserving.scan()


def test_a_process_without_a_context_is_read_again_once_its_memory_has_changed(
    world: World, reserving: Reserving
) -> None:
    """It is on the GPU from cuInit on."""
    found = [reserving.scan("a") for _ in range(12)]
    assert found[-1] is found[-2], "in the end it is left alone"
    reserving.reserve(4)
    assert reserving.kib("a") == 0
    world.card.add(reserving.slot, 66 * MIB)
    assert reserving.kib("a") == 4096


@pytest.mark.parametrize("apart_s", [0.0, 60.0])
def test_of_a_process_on_two_gpus_nobody_can_say_whose_reservation_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart_s: float
) -> None:
    monkeypatch.setattr("mpsd.watchdog.scanner.RESERVED_APART_S", apart_s)
    owners = Owners(grants=frozenset({"a"}), holders={os.getpid(): "a"}, capped=frozenset({"a"}))
    with Several(tmp_path / "node", "H200x2", SimulatedNvml) as here:
        held = AddressRange(6 * MIB, tmp_path / "node" / "nvidia0")
        try:
            for card, expected in zip(here.cards, ([6144], [0, 0]), strict=True):
                here.put_on(card)
                here.scanner.scan(owners)
                found = here.scanner.scan(owners).clients
                assert [client.reserved_kib for client in found] == expected
        finally:
            held.unmap()
