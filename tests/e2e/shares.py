"""Pods that ask for a share of a GPU, and what became of them. They run the built image's simulated
CUDA program."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import MEMORY
from tests.e2e.objects import SAMPLE
from tests.e2e.waiting import eventually

# CUDA's own context on an A30 and the last piece that was refused: a program can hold its grant
# less this.
CONTEXT_MIB = 300
LIFTED = "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=0"  # in the container, where no webhook looks
BY_MPSD = 137  # by SIGKILL
CLIENT = ("python", "-P", "-m", "mpsd.simulator.cuda_client")


def container(
    image: str, gib: int, *actions: str, name: str = "main", client: Sequence[str] = CLIENT
) -> Object:
    return {
        "name": name,
        "image": image,
        "command": [*client, *actions],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"limits": {MEMORY: str(gib)}},
    }


def share(name: str, *containers: Object, **spec: Any) -> Object:
    fields: Object = {
        "hostIPC": True,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000},
        "containers": list(containers),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fields | spec}


@dataclass(frozen=True, slots=True)
class Pods:
    """Those of one namespace. client: the CUDA program that they run."""

    cluster: Cluster
    namespace: str
    image: str
    client: Sequence[str] = CLIENT

    def create(self, *pods: Object) -> None:
        for pod in pods:
            self.cluster.do("create", "-n", self.namespace, "-f", "-", given=pod)

    def start(self, name: str, gib: int, *actions: str, **spec: Any) -> None:
        """Once its program has done these actions and holds its context."""
        self.create(share(name, self.asks(gib, *actions, "hold"), **spec))
        self.wait_until_holding(name)

    def asks(self, gib: int, *actions: str) -> Object:
        return container(self.image, gib, *actions, client=self.client)

    def by_shell(self, gib: int, before: str, *actions: str) -> Object:
        """A container whose shell does something before it becomes the CUDA program."""
        line = f"{before}; exec {' '.join([*self.client, *actions])}"
        return self.asks(gib) | {"command": ["sh", "-c", line]}

    def event(self, name: str, reason: str) -> str:
        found = eventually(
            lambda: [event["message"] for event in self.events(name) if event["reason"] == reason],
            f"{reason} of {name}",
        )
        return str(found[0])

    def assert_holds(self, name: str) -> None:
        assert "running" in self.status(name)["state"], self.why(name)
        assert not any("broke" in line for line in self.said(name))

    def exit_code(self, name: str, *, within_s: float = 120.0) -> int:

        def ended() -> Any:
            return self.status(name).get("state", {}).get("terminated")

        return int(eventually(ended, f"{name} ended", within_s=within_s)["exitCode"])

    def get(self, name: str) -> Object:
        return self.cluster.get("pod", name, "-n", self.namespace)

    def phase(self, name: str) -> str:
        return self.get(name)["status"].get("phase", "")

    def said(self, name: str, container: str = "main") -> list[Object]:
        """None before it runs."""
        logs = self.cluster.kubectl("logs", name, "-n", self.namespace, "-c", container)
        return (
            [json.loads(line) for line in logs.out.splitlines() if line.startswith("{")]
            if logs.ok
            else []
        )

    def wait_until_holding(
        self, name: str, container: str = "main", *, within_s: float = 90.0
    ) -> list[Object]:
        def is_holding() -> list[Object]:
            said = self.said(name, container)
            assert any("ready" in line for line in said), f"{self.phase(name)}: {said}"
            return said

        try:
            return eventually(is_holding, f"{name} holds a context", within_s=within_s)
        except AssertionError as error:
            events = [f"{event['reason']}: {event['message']}" for event in self.events(name)]
            logs = self.cluster.kubectl("logs", name, "-n", self.namespace, "-c", container)
            raise AssertionError(
                "\n".join([str(error), self.why(name), *events, logs.out, logs.err])
            ) from None

    def why(self, name: str) -> str:
        status = self.get(name)["status"]
        states = [each.get("state", {}) for each in status.get("containerStatuses", ())]
        return json.dumps([status.get("reason"), status.get("message"), states])

    def status(self, name: str) -> Object:
        """Of its one container; empty where kubelet never began with it."""
        found: list[Object] = self.get(name)["status"].get("containerStatuses", [])
        return found[0] if found else {}

    def run_in(self, name: str, *command: str, container: str = "main") -> str:
        return self.cluster.do(
            "exec", name, "-n", self.namespace, "-c", container, "--", *command
        ).out

    def environment(self, name: str, container: str = "main") -> dict[str, str]:
        lines = self.run_in(name, "env", container=container).splitlines()
        return {key: value for key, _equals, value in (line.partition("=") for line in lines)}

    def delete(self, *names: str) -> None:
        self.cluster.do("delete", "pod", "-n", self.namespace, "--wait=false", *names)

    def until_gone(self, *names: str) -> None:
        there = ("get", "pods", "-n", self.namespace, "--ignore-not-found", *names)
        eventually(lambda: not self.cluster.do(*there).out, f"{names} gone", within_s=60.0)

    def events(self, name: str) -> list[Object]:
        selector = f"involvedObject.name={name}"
        return self.cluster.get("events", "-n", self.namespace, "--field-selector", selector)[
            "items"
        ]


def refused_at(said: Sequence[Object]) -> int:
    """The MiB that the program could allocate before CUDA said no."""
    (line,) = [line for line in said if "alloc_MiB" in line]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in line["rc"], line
    return line["alloc_MiB"]


def assert_fills(said: Sequence[Object], gib: int, context_mib: int = CONTEXT_MIB) -> None:
    assert gib * 1024 - context_mib < refused_at(said) <= gib * 1024, said


def sample(pods: Pods) -> str:
    """The name of the published Job's pod, whose image and program alone are other ones."""
    job: Object = yaml.safe_load(SAMPLE)
    (main,) = job["spec"]["template"]["spec"]["containers"]
    command = [*pods.client, "alloc=9000", "hold"]
    main |= {"image": pods.image, "command": command, "workingDir": "/"}
    cluster, there = pods.cluster, ("-n", pods.namespace)
    cluster.do("apply", *there, "-f", "-", given=job)
    of_job = ("pods", *there, "-l", "app=mps-sample")
    (found,) = eventually(lambda: cluster.get(*of_job)["items"], "the Job's pod")
    return found["metadata"]["name"]
