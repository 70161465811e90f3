"""What a program that holds memory on a GPU does not notice: every restart."""

from dataclasses import dataclass

from tests.e2e.installation import AGENT, SYSTEM, Installation
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually, never

_NOWHERE, _HERE = {"mpsd.io/e2e": "nowhere"}, {"ack.node.gpu.schedule": "mps"}


@dataclass(frozen=True, slots=True)
class Witness:
    """A pod whose kubelet would start it again. gib: its request."""

    mpsd: Installation
    pods: Pods
    gib: int = 5
    name: str = "witness"

    def begin(self, *actions: str) -> None:
        self.pods.start(self.name, self.gib, *actions, restartPolicy="Always")

    def has_noticed_nothing(self) -> None:
        """The very same process, whose context never broke (`hold` ends where its context does),
        and its grant."""
        self.pods.assert_holds(self.name)
        assert self.pods.status(self.name)["restartCount"] == 0
        granted, wanted = self.mpsd.granted_mib, self.gib * 1024
        eventually(lambda: granted(self.pods.namespace).get(self.name) == wanted, "its grant")

    def sees_the_agent_rolled(self) -> None:
        agent = self.mpsd.agent()
        self.pods.cluster.do("rollout", "restart", f"daemonset/{AGENT}", "-n", SYSTEM)
        self.mpsd.wait_for_another_agent(agent)
        self.pods.start("after-roll", 2)
        self.has_noticed_nothing()

    def sees_control_killed(self) -> None:
        """Its daemons are in no cgroup of the container, and the next one adopts them."""
        daemons = self.mpsd.daemons()
        self.mpsd.kill_control()
        self.pods.start("after-control", 2)
        assert self.mpsd.daemons() == daemons
        self.has_noticed_nothing()

    def sees_kubelet_restarted(self, machine: Machine) -> None:
        agent = self.mpsd.agent()
        self.mpsd.restart_kubelet(machine)
        self.pods.start("after-kubelet", 2)
        self.has_noticed_nothing()
        assert self.mpsd.agent() == agent

    def runs_since(self, first: str) -> bool:
        """Another container than the first."""
        status = self.pods.status(self.name)
        return "running" in status.get("state", {}) and status["containerID"] != first

    def is_held_back_after_a_reboot(self, machine: Machine) -> str:
        """Neither control nor agent is there when kubelet comes up, and kubelet has the pod's
        devices in its checkpoint. The id of the container that it had before."""
        first = self.pods.status(self.name)["containerID"]
        machine.kubelet("kill")
        self.mpsd.put_where(_NOWHERE)

        def is_held_back() -> str:
            assert not self.runs_since(first), "it runs without MPS and without a limit"
            ended = self.pods.get(self.name)["status"].get("message", "")
            waiting = self.pods.status(self.name).get("state", {}).get("waiting", {})
            return ended or waiting.get("message", "")

        try:
            machine.reboot()
            machine.kubelet("start")
            eventually(
                lambda: not self.mpsd.pods("control") and not self.mpsd.pods("agent"),
                "neither of the two",
                within_s=90.0,
            )
            eventually(is_held_back, "held back", within_s=60.0)
            never(lambda: self.runs_since(first), "it runs without a limit", for_s=3.0)
        finally:
            self.mpsd.put_where(_HERE)
        return first
