"""NVIDIA's GPU operator replaces the driver of the node: its label plays the states."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually
from tests.e2e_gpu.cards import Cards
from tests.e2e_gpu.installation import GpuInstallation

_LABEL = "nvidia.com/gpu-driver-upgrade-state"


class Operator:
    def __init__(self, cluster: Cluster, node: str) -> None:
        self.cluster, self.node = cluster, node

    def reaches(self, state: str | None) -> None:
        """None: it has removed its label."""
        patch = {"metadata": {"labels": {_LABEL: state}}}
        self.cluster.do("patch", "node", self.node, "--type=merge", "-p", json.dumps(patch))

    def condition(self) -> str:
        """The message of MPSReady."""
        said = self.cluster.get("node", self.node)["status"]["conditions"]
        return "".join(one["message"] for one in said if one["type"] == "MPSReady")


@pytest.fixture
def operator(cluster: Cluster, mpsd: GpuInstallation) -> Iterator[Operator]:
    plays = Operator(cluster, mpsd.node)
    yield plays
    plays.reaches(None)
    mpsd.wait_until_ready()


def _users_of_the_driver() -> dict[int, str]:
    """As lsof finds them: the command line, by pid, of each process with a device node of NVIDIA's open or mapped."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
            mapped = (process / "maps").read_text().split()
            if any(path.startswith("/dev/nvidia") for path in (*opened, *mapped)):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


def test_an_upgrade_waits_for_programs_and_then_nobody_has_the_driver_open(
    mpsd: GpuInstallation, pods: Pods, operator: Operator, machine: Machine, cards: Cards
) -> None:
    pods.start("working", 3, "alloc=1000")
    operator.reaches("wait-for-jobs-required")
    eventually(lambda: f"{pods.namespace}/working" in operator.condition(), "the node says who is waited for")
    pods.assert_holds("working")
    print(f"\n{operator.condition()}\n{_users_of_the_driver()}")
    assert _users_of_the_driver() or not cards.settings, "cards that are simulated have none"
    pods.delete("working")
    eventually(lambda: not mpsd.pods("control"), "control leaves the node", within_s=90.0)
    operator.reaches("pod-restart-required")
    eventually(lambda: not mpsd.pods("agent"), "so does the agent", within_s=90.0)
    eventually(lambda: not _users_of_the_driver(), "nobody has the driver open", within_s=30.0)
    print(f"/dev/nvidia* is open in: {_users_of_the_driver()}")
    operator.reaches("validation-required")
    eventually(lambda: mpsd.is_ready("agent"), "the agent is back", within_s=90.0)
    operator.reaches("uncordon-required")
    mpsd.wait_until_ready()
    operator.reaches("upgrade-done")
    pods.start("after-upgrade", 2, "alloc=500")
