"""Two GPUs: one daemon for both, and one daemon for each."""

import signal

import pytest

from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, MEMORY_LIMIT
from tests.contract.processes import eventually
from tests.contract.results import ILLEGAL_ADDRESS, SERVER_GONE
from tests.contract.world import Daemon, World

# What a client may see of two GPUs, by the order it names them in.
FIRST, SECOND, BOTH, TURNED = (0,), (1,), (0, 1), (1, 0)


@pytest.fixture(autouse=True, scope="class")
def _needs_two(world: World) -> None:
    if len(world.gpus) < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture(scope="class")
def daemon(world: World) -> Daemon:
    return world.daemon(gpus=world.gpus)


@pytest.fixture
def server(daemon: Daemon) -> int:
    """Without limits, whatever the test before did."""
    server = daemon.start_server()
    daemon.command("\n".join(f"set_device_pinned_mem_limit {server} {key} 0" for key in (0, 1)))
    return server


class TestAClientOfADaemonForBoth:
    @pytest.mark.parametrize("visible", [FIRST, SECOND, BOTH, TURNED])
    @pytest.mark.parametrize(
        "value",
        [
            *("0=1G", "1=1G", "0=1G,1=2G", "0=1G,2=2G"),
            *("{first}=1G", "{second}=1G", "{first}=1G,{second}=2G", "{second}=1G,{first}=2G"),
        ],
    )
    def test_a_clients_limit_counts_the_gpus_that_it_sees(
        self, daemon: Daemon, world: World, value: str, visible: tuple[int, ...]
    ) -> None:
        value = value.format(first=world.gpus[0].uuid, second=world.gpus[1].uuid)
        uuids = [world.gpus[n].uuid for n in visible]
        assert daemon.shows(
            world.gpus[visible[0]].seen(memory=value, visible=uuids),
            environment={MEMORY_LIMIT: value, CUDA_VISIBLE_DEVICES: ",".join(uuids)},
        )


class TestOneDaemonForBoth:
    @pytest.mark.parametrize(
        ("key", "limits_mib"),
        [("0", 3072), ("1", None), ("{first}", 3072), ("{second}", None)],
    )
    def test_a_servers_key_counts_the_gpus_that_the_client_sees(
        self, daemon: Daemon, server: int, world: World, key: str, limits_mib: int | None
    ) -> None:
        key = key.format(first=world.gpus[0].uuid, second=world.gpus[1].uuid)
        daemon.command(f"set_device_pinned_mem_limit {server} {key} 3G")
        for visible in (FIRST, SECOND, BOTH):
            uuids = ",".join(world.gpus[n].uuid for n in visible)
            assert daemon.shows(
                world.gpus[visible[0]].seen(server_mib=limits_mib),
                environment={CUDA_VISIBLE_DEVICES: uuids},
            )

    @pytest.mark.parametrize("value", [None, "0=1G", "1=2G", "0=1G,1=2G"])
    def test_each_device_has_the_smaller_of_the_servers_limit_and_the_clients(
        self, daemon: Daemon, server: int, world: World, value: str | None
    ) -> None:
        daemon.command(
            f"set_device_pinned_mem_limit {server} 0 3G\nset_device_pinned_mem_limit {server} 1 4G"
        )
        uuids = [gpu.uuid for gpu in world.gpus[:2]]
        both = {MEMORY_LIMIT: value, CUDA_VISIBLE_DEVICES: ",".join(uuids)}
        for ordinal, server_mib in ((0, 3072), (1, 4096)):
            client = daemon.client(f"device={ordinal}", environment=both).finished()
            gpu = world.gpus[ordinal]
            assert client.saw(
                gpu.seen(memory=value, visible=uuids, ordinal=ordinal, server_mib=server_mib)
            )
        assert daemon.shows(
            world.gpus[1].seen(memory=value, server_mib=3072),
            environment={MEMORY_LIMIT: value, CUDA_VISIBLE_DEVICES: uuids[1]},
        )

    def test_a_fault_on_one_leaves_the_clients_of_the_other_alone(
        self, daemon: Daemon, world: World
    ) -> None:
        on_first = daemon.ready_client("hold", environment=world.gpus[0].alone)
        on_second = daemon.ready_client("step", "launch=0.01", environment=world.gpus[1].alone)
        culprit = daemon.client("fault", environment=world.gpus[0].alone).finished()
        assert culprit.line("bad")["bad"] == ILLEGAL_ADDRESS
        assert on_first.broke(ILLEGAL_ADDRESS)
        on_second.launches()
        assert on_second.ended_well()
        eventually(lambda: daemon.status == "ACTIVE")

    def test_nvml_lists_a_client_on_its_own_gpu_and_the_server_on_both(
        self, daemon: Daemon, world: World
    ) -> None:
        client = daemon.ready_client("hold", environment=world.gpus[1].alone)
        daemon.client(environment=world.gpus[0].alone).finished()
        assert client.pid not in world.mib_on(world.gpus[0])
        assert client.pid in world.mib_on_mps(world.gpus[1])
        for gpu in world.gpus[:2]:
            assert daemon.server in world.mib_on(gpu)


@pytest.fixture(scope="class")
def daemons(world: World) -> tuple[Daemon, Daemon]:
    return world.daemon(gpus=world.gpus[:1]), world.daemon(gpus=world.gpus[1:2])


class TestADaemonForEach:
    def test_its_client_sees_that_gpu_alone_as_device_0_and_key_0_holds_it(
        self, daemons: tuple[Daemon, Daemon], world: World
    ) -> None:
        for daemon, gpu, gib in zip(daemons, world.gpus, (3, 4), strict=False):
            daemon.command(f"set_device_pinned_mem_limit {daemon.start_server()} 0 {gib}G")
            client = daemon.client(environment={CUDA_VISIBLE_DEVICES: None}).finished()
            assert (client.line("pid")["devices"], client.line("pid")["uuid"]) == (1, gpu.uuid)
            assert client.saw(gpu.seen(server_mib=gib * 1024))

    def test_the_death_of_one_is_not_noticed_on_the_other(
        self, daemons: tuple[Daemon, Daemon], world: World
    ) -> None:
        first, second = (
            daemon.ready_client("step", "launch=0.01", environment=gpu.alone)
            for daemon, gpu in zip(daemons, world.gpus, strict=False)
        )
        daemons[0].send(signal.SIGKILL)
        assert first.broke(SERVER_GONE)
        second.launches()
        assert second.ended_well()
