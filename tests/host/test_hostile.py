"""Bundles and programs that mean no good, with real runc: each is refused or harmless, and nothing
stays reserved."""

from collections.abc import Iterator

import pytest

from tests.host.container import Container
from tests.host.host import Host, host_of
from tests.host.published import CARDS, OUT_OF_MEMORY, SUCCESS, results
from tests.whole.machine.machine import eventually

SIX = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
UNAVAILABLE = "46:CUDA_ERROR_DEVICE_UNAVAILABLE"  # the card is MPS's alone


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    yield from host_of("T4-15109", cards=CARDS)


def not_created(host: Host, made: Container, *why: str) -> None:
    done = made.create()
    assert done.code == 1, done
    assert made.status == ""
    assert all(word in done.errors for word in why), done
    host.nothing_reserved()


@pytest.mark.parametrize("place", ["run/mpsd", "run/mpsd/client"])
def test_a_link_in_the_root_where_mpsd_mounts_leads_nowhere_outside(host: Host, place: str) -> None:
    victim = host.folder / "victim"
    victim.mkdir(exist_ok=True)
    made = host.container(SIX, "sim-cuda", "alloc=7000")
    link = made.bundle.rootfs / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    done = made.run()
    assert list(victim.iterdir()) == []
    assert results(done) == [OUT_OF_MEMORY], done
    host.until_nothing_reserved()


def test_a_variable_with_newlines_reaches_the_program_as_it_is_and_lifts_nothing(
    host: Host,
) -> None:
    value = "a\nCUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=14000M\n"
    done = host.ran(SIX | {"INNOCENT": value}, "sim-cuda", "alloc=5800", "free", "alloc=7000")
    assert results(done) == [SUCCESS, OUT_OF_MEMORY]


def test_limits_written_into_the_bundle_are_not_those_that_hold(host: Host) -> None:
    own = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=14000M", "CUDA_MPS_PIPE_DIRECTORY": "/tmp"}
    done = host.ran(SIX | own, "sim-cuda", "alloc=5800", "free", "alloc=7000")
    assert results(done) == [SUCCESS, OUT_OF_MEMORY]


def test_a_program_that_mounts_over_the_clients_folder_gets_no_gpu(host: Host) -> None:
    """In a user namespace of its own anybody may, without any capability of the container."""
    aside = "mount -t tmpfs none /run/mpsd/client && exec sim-cuda alloc=7000 hold=20"
    gets_no_gpu(host, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", aside)


def test_a_program_that_unsets_the_clients_variable_gets_no_gpu(host: Host) -> None:
    gets_no_gpu(host, "env", "-u", "CUDA_MPS_PIPE_DIRECTORY", "sim-cuda", "alloc=7000", "hold=20")


def gets_no_gpu(host: Host, *command: str) -> None:
    """A program that is not root, beside another container, which goes on."""
    neighbour = host.holding(SIX)
    made = host.container(SIX, *command)
    config = made.bundle.config
    config["process"]["user"] = {"uid": 1000, "gid": 1000}
    made.bundle.rewrite(config)
    done = made.run()
    assert done.heard("err") == UNAVAILABLE, done
    assert neighbour.status == "running"


def test_a_container_that_could_mount_by_itself_is_not_created(host: Host) -> None:
    made = host.container(SIX, "true")
    config = made.bundle.config
    for held in config["process"]["capabilities"].values():
        held.append("CAP_SYS_ADMIN")
    made.bundle.rewrite(config)
    not_created(host, made, "SYS_ADMIN", "--cap-add")


def test_a_container_put_into_the_cgroup_of_another_is_told_from_it(host: Host) -> None:
    neighbour, made = (
        host.holding(SIX, "alloc=4000"),
        host.container(SIX, "sim-cuda", "alloc=4000", "info", "hold"),
    )
    config = made.bundle.config
    config["linux"]["cgroupsPath"] = neighbour.bundle.config["linux"]["cgroupsPath"]
    made.bundle.rewrite(config)
    made.held()
    eventually(
        lambda: [host.granted_to(one).clients for one in (neighbour, made)] == [1, 1],
        "each has its own client",
    )
    assert (made.status, neighbour.status) == ("running", "running")
