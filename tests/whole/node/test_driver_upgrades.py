"""NVIDIA's GPU operator upgrades the driver of a node that has pods on its GPUs: its label plays
the states.

Control and agent run where the node affinity of their DaemonSets lets them.
"""

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mpsd.model.fields import FieldReader
from mpsd.model.pod import read_pod
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.status.rules.mpsnode import UPGRADE_LABEL
from tests.manifests.rendering import PLAIN, named
from tests.whole.machine.machine import Service, eventually
from tests.whole.node.cluster import MEMORY, Cluster, pod

_DAEMON_SETS = {"control": "mps-control-daemon", "agent": "mpsd-agent"}
_LABEL = "nvidia.com/gpu-driver-upgrade-state"


class UpgradedNode(Cluster):
    def set_state(self, state: str | None) -> None:
        """None: the operator has removed its label, as where its upgrades are switched off."""
        self.patch_node({"metadata": {"labels": {_LABEL: state}}})

    def reach(self, state: str) -> None:
        """The state, once the Node's condition names it."""
        self.set_state(state)
        eventually(lambda: f"{_LABEL}={state}" in self.message, f"the condition says {state}")
        assert [one["reason"] for one in self.conditions()] == ["DriverUpgrade"]
        assert [one["status"] for one in self.conditions()] == ["False"]

    @property
    def message(self) -> str:
        return "".join(one["message"] for one in self.conditions())

    @property
    def is_labelled(self) -> bool:
        return UPGRADE_LABEL in self.node_object()["metadata"].get("labels", {})

    def place_pods(self) -> None:
        """Ends the parts of mpsd whose affinity forbids this node, and starts those that it
        allows."""
        if self._is_wanted("control") and not self.control.running:
            self.control = self.service("control")
        if self._is_wanted("agent") and not self.agent.running:
            self.agent = self.launch_agent()
        for name, part in (("control", self.control), ("agent", self.agent)):
            if not self._is_wanted(name) and part.running:
                _end(part)

    def _is_wanted(self, name: str) -> bool:
        spec = named(PLAIN, "DaemonSet", _DAEMON_SETS[name])["spec"]["template"]["spec"]
        node = read_kubernetes_node(self.node_object())
        return any(map(node.meets, read_pod(FieldReader(), {"spec": spec}).spec.wishes.terms))

    def users_of_the_driver(self) -> dict[int, str]:
        """The command line, by pid, of each process that has a device node of the simulated GPUs
        open."""
        cards = str(self.simulation.folder / "card")
        found = set()
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):  # it ended meanwhile
                if str(link.readlink()).startswith(cards):
                    found.add(int(link.parts[2]))
        return {pid: command for pid, command in self.processes_left().items() if pid in found}


def _end(part: Service) -> None:
    part.send(signal.SIGTERM)
    assert part.exit_code() == 0, part


CLUSTER, GPUS = UpgradedNode, "A30x2"


@pytest.fixture
def upgraded(cluster: UpgradedNode) -> Iterator[UpgradedNode]:
    yield cluster
    cluster.set_state("upgrade-done")
    eventually(lambda: not cluster.is_labelled, "the agent has removed its label")
    cluster.place_pods()
    cluster.until_ready()
    cluster.until_offered()


def _play_the_end(upgraded: UpgradedNode) -> None:
    """From the Node's label on: the driver is replaced, and the GPUs serve again."""
    upgraded.place_pods()
    assert not upgraded.control.running
    assert upgraded.agent.running, "somebody has to see how the upgrade goes on"
    upgraded.set_state("pod-restart-required")
    upgraded.place_pods()
    assert upgraded.users_of_the_driver() == {}
    upgraded.set_state("validation-required")
    upgraded.place_pods()
    upgraded.reach("validation-required")
    assert upgraded.is_labelled, "no daemon runs before the new driver is validated"
    upgraded.set_state("uncordon-required")
    eventually(lambda: not upgraded.is_labelled, "the agent has removed its label")
    upgraded.place_pods()
    upgraded.until_ready()
    upgraded.set_state("upgrade-done")


def test_pods_are_waited_for_and_then_nothing_has_the_driver_open(upgraded: UpgradedNode) -> None:
    upgraded.set_state("upgrade-required")
    old = upgraded.running("first", 3), upgraded.running("second", 20)
    upgraded.reach("cordon-required")
    eventually(lambda: "default/first, default/second" in upgraded.message, "the pods are named")
    eventually(lambda: upgraded.offered()[MEMORY] == "0", "nothing is offered")
    upgraded.apply(pod("late", 3))
    for state in (
        "wait-for-jobs-required",
        "state-of-a-later-operator",
        "cordon-required",
        "drain-required",
    ):
        upgraded.reach(state)
        upgraded.place_pods()
        assert upgraded.users_of_the_driver()
        assert not upgraded.is_labelled
    assert all(one.heard("ready") for one in old)
    assert [upgraded.phase(name) for name in ("first", "second", "late")] == [
        "Running",
        "Running",
        "Pending",
    ]
    upgraded.delete("first")
    eventually(
        lambda: "default/first" not in upgraded.message, "the first is not waited for any more"
    )
    assert not upgraded.is_labelled
    upgraded.delete("second")
    eventually(lambda: upgraded.is_labelled, "the node is let go")
    _play_the_end(upgraded)
    assert upgraded.program_of("late").heard("ready")
