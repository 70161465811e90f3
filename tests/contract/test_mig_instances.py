"""A MIG instance is a GPU with a daemon of its own, and its limits hold as a whole GPU's do.

From NVIDIA's documentation (the MIG user guide, nvml.h, cuda.h): no GPU with MIG on has been tested
yet. On real GPUs it runs where somebody has made two instances of one GPU.
"""

import pytest

from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, MEMORY_LIMIT, THREAD_PERCENT
from tests.contract.conftest import on_real
from tests.contract.gpus import NVML_NEAR_MIB, OutOfMemory, near
from tests.contract.platforms import NoInstances, Real
from tests.contract.processes import eventually
from tests.contract.results import ILLEGAL_ADDRESS, TOO_MANY_CLIENTS
from tests.contract.world import Daemon, World

CARDS = "A100:1g.10gb×2"  # the smallest


@pytest.fixture(scope="class")
def real() -> Real:
    try:
        return on_real(instances=True)
    except NoInstances as reason:
        pytest.skip(str(reason))


class TestAnInstance:
    def test_cuda_sees_of_two_the_first_alone_and_of_it_what_nvml_says(self, world: World) -> None:
        both = ",".join(gpu.uuid for gpu in world.gpus)
        line = world.client(environment={CUDA_VISIBLE_DEVICES: both}).finished().line("uuid")
        assert (line["uuid"], line["devices"], line["sms"]) == (world.gpu.uuid, 1, world.gpu.sms)
        assert line["total_MiB"] == near(world.gpu.memory_mib)

    @pytest.mark.parametrize("limit", ["0=2G", "0=8M"])
    def test_a_clients_memory_limit_holds(self, daemon: Daemon, world: World, limit: str) -> None:
        assert daemon.shows(world.gpu.seen(memory=limit), environment={MEMORY_LIMIT: limit})

    @pytest.mark.parametrize("percent", ["1", "30", "50", "100"])
    def test_a_thread_percentage_is_one_of_its_own_sms(
        self, daemon: Daemon, world: World, percent: str
    ) -> None:
        assert daemon.shows(world.gpu.seen(percent=percent), environment={THREAD_PERCENT: percent})

    def test_a_tiny_limit_of_its_server_denies_every_client(self, world: World) -> None:
        daemon = world.daemon()
        daemon.command("set_default_device_pinned_mem_limit 0 8M")
        assert daemon.shows(OutOfMemory())

    def test_it_takes_clients_in_proportion_to_its_compute_slices_and_not_one_more(
        self, world: World
    ) -> None:
        """The MIG user guide: the maximum of clients, 48, is lowered proportionally to the compute
        instance's size."""
        daemon = world.daemon()
        clients = [daemon.client("linger") for _ in range(world.gpu.capability.clients)]
        for client in clients:
            client.next_line("lingering", within_s=60)
        assert daemon.client().finished().line("fail")["err"] == TOO_MANY_CLIENTS


@pytest.fixture(scope="class")
def daemons(world: World) -> tuple[Daemon, Daemon]:
    return world.daemon(gpus=world.gpus[:1]), world.daemon(gpus=world.gpus[1:])


class TestTwoInstancesOfOneGpu:
    def test_nvml_lists_a_client_on_its_own_one_alone(
        self, daemons: tuple[Daemon, Daemon], world: World
    ) -> None:
        """nvml.h: "Per-instance information can be queried by using specific MIG device
        handles"."""
        first, second = world.gpus
        client = daemons[1].ready_client("alloc=512", "hold", environment=second.alone)
        assert client.pid not in world.mib_on(first)
        expected_mib = 512 + second.context_mib(second.sms)
        assert world.mib_on_mps(second)[client.pid] == near(expected_mib, NVML_NEAR_MIB)
        assert daemons[1].server in world.mib_on(second)
        assert daemons[1].server not in world.mib_on(first)

    def test_a_fault_of_one_leaves_the_clients_of_the_other(
        self, daemons: tuple[Daemon, Daemon], world: World
    ) -> None:
        other = daemons[1].ready_client("step", "launch=0.01", environment=world.gpus[1].alone)
        assert daemons[0].client("fault").finished().line("bad")["bad"] == ILLEGAL_ADDRESS
        other.launches()
        assert other.ended_well()
        eventually(lambda: daemons[0].status == "ACTIVE")

    def test_nvml_does_not_say_how_busy_they_are(self, world: World) -> None:
        for gpu in world.gpus:
            with pytest.raises(world.nvml.NVMLError):
                world.busy_percent(gpu)
