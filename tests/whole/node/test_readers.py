"""What an agent of a cluster tells readers on its ports, and whom."""

import json

from tests.served import Answer
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster
from tests.world.asking import answers
from tests.world.readers import over_tls, reader


class Read(Cluster):
    """One whose agent serves readers as the manifests have it, on ports of the kernel's choice."""

    @property
    def agent_words(self) -> list[str]:
        return [*super().agent_words, "--listen", "127.0.0.1:0,0.0.0.0:0"]


CLUSTER = Read


def told(cluster: Cluster, path: str, token: str = "") -> Answer:
    (line,) = cluster.agent.logged("serving readers", tls=True)
    return over_tls(line["port"], path, token)


def foreign_processes(page: str) -> list[str]:
    slices = [one for gpu in json.loads(page)["gpus"] for one in gpu["slices"]]
    return [one["name"] for one in slices if one["holder"] == "foreign"]


def test_a_reader_reads_pods_by_name_and_no_arguments(cluster: Cluster) -> None:
    token = answers(cluster.kubeconfig, reader)
    cluster.running("read", 2)
    eventually(lambda: 'pod="read"' in told(cluster, "/metrics", token).text, "its pod is told")
    assert told(cluster, "/metrics").status == 401
    eventually(
        lambda: any("hold" in one.command for one in cluster.node().clients or ()),
        "the machine's own see the arguments",
    )
    environment = {
        "MPSD_SIMULATION": str(cluster.simulation.folder),
        "CUDA_MPS_PIPE_DIRECTORY": str(cluster.folder_of().client),
    }
    foreign = cluster.start([cluster.program("sim-cuda"), "hold"], environment)
    try:
        foreign.heard("ready")
        names = eventually(
            lambda: foreign_processes(told(cluster, "/v1/page", token).text), "it is seen"
        )
        node = json.loads(told(cluster, "/v1/node", token).text)
    finally:
        foreign.kill()
    assert [grant["pod"] for grant in node["grants"]] == ["default/read"]
    commands = [*names, *(one["command"] for one in node["clients"])]
    assert {one.partition(" ")[2] for one in commands} == {"[arguments redacted]"}
