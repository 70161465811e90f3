"""A node that loses its power: kubelet has its checkpoint, /run is empty, and nobody may run unlimited meanwhile."""

import json
import os
import signal
from contextlib import suppress

from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, pod


def test_after_a_reboot_a_container_waits_for_its_domain_and_is_limited_again(cluster: Cluster) -> None:
    asked = pod("sample", 3)
    asked["spec"]["restartPolicy"] = "Always"
    cluster.apply(asked)
    program = cluster.program_of("sample")
    cut_the_power(cluster)
    cluster.kubelet = cluster.start_kubelet()
    eventually(lambda: "gate" in json.dumps(cluster.pod("sample")["status"]), "kubelet misses the gate")
    assert len(program.runs) == 1, "it has not run again"
    cluster.control = cluster.service("control")
    cluster.agent = cluster.start_agent()
    eventually(lambda: len(program.runs) > 1 and program.heard("ready"), "it runs again", within_s=40)
    info = next(line for line in program.lines if "meminfo_free_MiB" in line)
    assert info["meminfo_free_MiB"] < 3 * 1024
    assert all(client.on_mps for client in cluster.node().clients or ())
    eventually(lambda: [one.memory_mib for one in cluster.node().grants] == [3 * 1024], "its grant is known again")


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
    journal.write_text(json.dumps([entry | {"boot_id": "another", "ids": ["GPU-gone/0"]} for entry in entries]))
    cluster.agent = cluster.start_agent()
    eventually(lambda: cluster.node().grants, "the books are kubelet's")
    assert cluster.grant("sample").memory_mib == 3 * 1024
    eventually(lambda: "GPU-gone" not in journal.read_text(), "the journal forgets them")
