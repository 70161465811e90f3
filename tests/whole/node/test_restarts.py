"""Whatever is stopped or restarted beside the daemons, or loses its power, no client notices, and
no limit is lifted or lost."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.domain import State
from tests.whole.machine.machine import MPSD, eventually
from tests.whole.node.cluster import MEMORY, PERCENT, Cluster, pod


def _pids(cluster: Cluster) -> set[int]:
    return {client.pid for client in cluster.node().clients or ()}


def test_a_container_does_not_start_before_its_domain_serves(cluster: Cluster) -> None:
    """Kubelet starts it again without asking for devices; the gate and PreStartContainer hold it
    back."""
    asked = pod("sample", 3)
    asked["spec"]["restartPolicy"] = "Always"
    cluster.apply(asked)
    program = cluster.program_of("sample")
    (client,) = eventually(lambda: _pids(cluster), "it is on the GPU")
    gate = cluster.folder_of().gate
    daemon = cluster.daemon()
    cluster.control.kill()  # so that nobody brings the daemon back
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not gate.exists(), "the gate is closed")
    with suppress(ProcessLookupError):
        os.kill(client, signal.SIGKILL)
    eventually(lambda: cluster.domain().state == State.DOWN, "the domain is down")
    cluster.control = cluster.service("control")
    eventually(gate.exists, "the gate is open again")
    opened_ns = gate.stat().st_ctime_ns
    eventually(
        lambda: len(program.runs) > 1 and program.heard("ready"), "it runs again", within_s=40
    )
    assert all(run.stat().st_ctime_ns > opened_ns for run in program.runs[1:] if run.read_text())
    assert all(client.on_mps for client in cluster.node().clients or ())
    info = next(line for line in program.lines if "meminfo_free_MiB" in line)
    assert info["meminfo_free_MiB"] < 3 * 1024


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


def test_an_api_server_that_hangs_is_shown_as_away_within_seconds_and_as_back_again(
    cluster: Cluster,
) -> None:
    def unheard() -> list[str]:
        return [
            what for what in cluster.node().unknown if "the API server has not answered" in what
        ]

    assert not unheard()
    cluster.api.send(signal.SIGSTOP)
    try:
        asked = cluster.start(
            [MPSD, "status", "--cluster", "--kubeconfig", str(cluster.kubeconfig)]
        )
        eventually(unheard, "the agent says so", 45)
        assert asked.exit_code(45) == 1
        assert "no answer from the Kubernetes API" in asked.errors
    finally:
        cluster.api.send(signal.SIGCONT)
    eventually(lambda: not unheard(), "the agent hears of the cluster again", 60)


def test_after_a_reboot_a_container_waits_for_its_domain_and_is_limited_again(
    cluster: Cluster,
) -> None:
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


def test_answers_of_another_boot_are_forgotten(cluster: Cluster) -> None:
    cluster.running("sample", 3)
    cluster.agent.kill()
    journal = cluster.run_directory / "agent" / "journal.json"
    entries = json.loads(journal.read_text())["entries"]
    journal.write_text(
        json.dumps([entry | {"boot_id": "another", "ids": ["GPU-gone/0"]} for entry in entries])
    )
    cluster.agent = cluster.start_agent()
    eventually(lambda: cluster.node().grants, "the ledger is kubelet's")
    assert cluster.grant("sample").memory_mib == 3 * 1024
    eventually(lambda: "GPU-gone" not in journal.read_text(), "the journal forgets them")
