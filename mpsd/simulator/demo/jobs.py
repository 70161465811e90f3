"""The demo's Jobs and their pods; what a program saw is read from kubelet's log of its
container."""

import copy
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpsd
from mpsd.platform.yaml_files import read_yaml
from mpsd.simulator.demo.cluster import DemoCluster
from mpsd.simulator.demo.story import DemoFailed

Object = dict[str, Any]

SAMPLE = Path(mpsd.__file__).parent / "cli" / "mps-sample.yaml"
_JOBS, _PODS, _EVENTS = (
    f"{group}/namespaces/default/{kind}"
    for group, kind in (("/apis/batch/v1", "jobs"), ("/api/v1", "pods"), ("/api/v1", "events"))
)


def sample() -> Object:
    """The Job of the ACK guide, as published."""
    (document,) = read_yaml(str(SAMPLE))
    assert isinstance(document.value, dict)
    return copy.deepcopy(document.value)


def pod_spec(job: Object) -> Object:
    spec: Object = job["spec"]["template"]["spec"]
    return spec


def simulated(job: Object, *actions: str) -> Object:
    """The same Job with sim-cuda in place of the image's program, since no image is pulled here."""
    (container,) = pod_spec(job)["containers"]
    container["command"] = [sys.executable, "-P", "-m", "mpsd.simulator.cuda_client", *actions]
    return job


def like_the_sample(name: str, limits: dict[str, int], *actions: str) -> Object:
    """A Job of another name and with other amounts, whose pod is not made anew when it fails."""
    job = sample()
    job["metadata"]["name"] = name
    job["spec"]["backoffLimit"] = 0
    job["spec"]["template"]["metadata"]["labels"] = {"app": name}
    (container,) = pod_spec(job)["containers"]
    container |= {"name": name, "resources": {"limits": limits}}
    return simulated(job, *actions)


class JobPod:
    """The one pod of a Job, and the program in it."""

    def __init__(self, cluster: DemoCluster, job: str) -> None:
        """Waits until there is one."""
        self._cluster = cluster
        self.job = job
        self._read = 0
        listed = cluster.until(
            lambda: cluster.api.items(_PODS, f"job-name={job}"), f"Job {job} has a pod"
        )
        self.name: str = listed[0]["metadata"]["name"]
        self._first = listed[0]

    def object(self) -> Object:
        return self._cluster.api.get(f"{_PODS}/{self.name}")

    @property
    def restarts(self) -> int:
        return sum(
            each["restartCount"] for each in self.object()["status"].get("containerStatuses", ())
        )

    def asked(self, resource: str) -> int:
        """How much of a resource its container asks for; 0 for none."""
        (container,) = self._first["spec"]["containers"]
        return int(container["resources"]["limits"].get(resource, 0))

    def environment(self) -> Mapping[str, str]:
        """What kubelet started its container with."""
        (spec,) = self._cluster.containers(self._first).glob("*/0/spec.json")
        environment: Mapping[str, str] = json.loads(spec.read_text())["environment"]
        return environment

    def next(self, key: str) -> Object:
        """The next line of its program that has this key."""

        def look() -> Object:
            lines = self.lines()
            for number, line in enumerate(lines[self._read :], self._read):
                if key in line:
                    self._read = number + 1
                    return line
            self._check_runs(key)
            return {}

        return self._cluster.until(
            look, f"the program of {self.name} says {key!r}, after {self.lines()}"
        )

    def newer_launches(self) -> int:
        """How many kernels it has launched, by a line that it says from now on."""
        self._read = len(self.lines())
        return int(self.next("launches")["launches"])

    def launches(self) -> int:
        """As many as it said last."""
        return int([line for line in self.lines() if "launches" in line][-1]["launches"])

    def longest_silence_s(self) -> float:
        """Between two lines that say how far it is."""
        times: list[float] = [line["at"] for line in self.lines() if "launches" in line]
        return max(later - sooner for sooner, later in pairwise(times))

    def lines(self) -> Sequence[Object]:
        """Everything that its program has said, a JSON object a line; a line that is not whole yet
        is left out."""
        texts = (log.read_text() for log in self._cluster.containers(self._first).glob("*/0/log"))
        whole = (
            line
            for text in texts
            for line in text.splitlines(keepends=True)
            if line.endswith("}\n")
        )
        return [json.loads(line) for line in whole]

    def _check_runs(self, key: str) -> None:
        pod = self.object()
        if pod["status"].get("phase") in {"Succeeded", "Failed"} and not any(
            key in line for line in self.lines()
        ):
            raise DemoFailed(
                f"pod {self.name} ended without saying {key!r}: {pod['status']}; {self.lines()}"
            )

    def until_phase(self, phase: str) -> Object:
        """The pod once it is there."""

        def look() -> Object:
            pod = self.object()
            return pod if pod["status"].get("phase") == phase else {}

        return self._cluster.until(look, f"pod {self.name} is {phase}")

    def until_job_is(self, condition: str) -> None:
        """Complete or Failed."""

        def is_so() -> bool:
            status = self._cluster.api.get(f"{_JOBS}/{self.job}").get("status", {})
            return any(
                one["type"] == condition and one["status"] == "True"
                for one in status.get("conditions", ())
            )

        self._cluster.until(is_so, f"Job {self.job} is {condition}")

    def event(self, reason: str) -> str:
        """The message of the event of this reason on the pod, once there is one."""

        def look() -> list[str]:
            events = self._cluster.api.items(_EVENTS)
            ours = (event for event in events if event["involvedObject"].get("name") == self.name)
            return [event["message"] for event in ours if event["reason"] == reason]

        return self._cluster.until(look, f"an event {reason} on pod {self.name}")[0]

    def finish(self) -> None:
        """Lets its program come to its end."""
        pid = next(line["pid"] for line in self.lines() if "pid" in line)
        os.kill(pid, signal.SIGTERM)
