"""Whatever is stopped or restarted beside the daemons, or loses its power, no client notices, and
no limit is lifted or lost."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import MEMORY, PERCENT, Cluster, pod


@pytest.fixture
def leaving(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose agent the test stops."""
    yield cluster
    cluster.agent = cluster.start_agent()
    cluster.until_offered()


def test_an_agent_that_goes_says_first_that_nothing_is_free(leaving: Cluster) -> None:
    leaving.agent.send(signal.SIGTERM)
    assert leaving.agent.exit_code() == 0
    assert (leaving.offered()[MEMORY], leaving.offered()[PERCENT]) == ("0", "0")


def test_after_a_reboot_a_container_waits_and_is_limited_again(cluster: Cluster) -> None:
    asked = pod("sample", 3)
    asked["spec"]["restartPolicy"] = "Always"
    cluster.apply(asked)
    program = cluster.program_of("sample")
    cut_the_power(cluster)
    cluster.kubelet = cluster.start_kubelet()
    eventually(
        lambda: "gate" in json.dumps(cluster.pod("sample")["status"]), "kubelet misses the gate"
    )
    assert len(program.runs) == 1, "it has not run again"
    cluster.control = cluster.service("control")
    cluster.agent = cluster.start_agent()
    eventually(
        lambda: len(program.runs) > 1 and program.heard("ready"), "it runs again", within_s=40
    )
    info = next(line for line in program.lines if "meminfo_free_MiB" in line)
    assert info["meminfo_free_MiB"] < 3 * 1024
    assert all(client.on_mps for client in cluster.node().clients or ())
    eventually(
        lambda: [one.memory_mib for one in cluster.node().grants] == [3 * 1024],
        "its grant is known again",
    )


def cut_the_power(cluster: Cluster) -> None:
    clients = {client.pid for client in cluster.node().clients or ()}
    daemons = [cluster.daemon(domain.name) for domain in cluster.node().domains]
    for service in (cluster.kubelet, cluster.agent, cluster.control):
        service.kill()
    for pid in (*daemons, *clients):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cluster.lose_run_directory()
