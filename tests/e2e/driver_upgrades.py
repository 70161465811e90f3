"""NVIDIA's GPU operator replaces the driver of the node: its label and its cordon play the
states."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.cluster import Cluster
from tests.e2e.installation import SYSTEM, Installation
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

_LABEL = "nvidia.com/gpu-driver-upgrade-state"
_LIMITS = ("configmap", "mpsd-limits", "-n", SYSTEM)


@dataclass(frozen=True, slots=True)
class Operator:
    """driver: what the path of each device node matches that is open in a process with the driver
    in use."""

    mpsd: Installation
    driver: str

    @property
    def cluster(self) -> Cluster:
        return self.mpsd.cluster

    def reaches(self, state: str | None) -> None:
        """None: it has removed its label."""
        patch = {"metadata": {"labels": {_LABEL: state}}}
        self.cluster.do("patch", "node", self.mpsd.node, "--type=merge", "-p", json.dumps(patch))

    def begins(self) -> None:
        """Up to where it waits for pods."""
        self.reaches("cordon-required")
        self.cluster.do("cordon", self.mpsd.node)
        self.reaches("wait-for-jobs-required")

    def is_over(self) -> None:
        self.reaches("uncordon-required")
        self.cluster.do("uncordon", self.mpsd.node)
        self.reaches("upgrade-done")
        self.mpsd.wait_until_ready()

    def condition(self) -> str:
        """The message of MPSReady."""
        said = self.cluster.get("node", self.mpsd.node)["status"]["conditions"]
        return "".join(one["message"] for one in said if one["type"] == "MPSReady")

    def users_of_the_driver(self) -> dict[int, str]:
        """As lsof finds them: the command line, by pid, of each process with one of its nodes open
        or mapped."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
                mapped = (process / "maps").read_text().split()
                if any(re.match(self.driver, path) for path in (*opened, *mapped)):
                    found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        return found

    def waits_for(self, pods: Pods, *names: str) -> None:
        """Each of these pods, whose programs hold their GPUs meanwhile, until it is deleted."""
        for number, name in enumerate(names):
            left = names[number:]
            named = [f"{pods.namespace}/{one}" for one in left]
            eventually(
                lambda named=named: all(one in self.condition() for one in named),
                f"{left} are waited for",
            )
            assert self.mpsd.pods("control"), "it stays for the pods that are left"
            for one in left:
                pods.assert_holds(one)
            pods.delete(name)

    def assert_gone_and_back(self) -> dict[int, str]:
        """From when nobody uses the GPUs: mpsd leaves the node, the driver is replaced, and they
        serve again. The users of the driver when it was replaced, which are none."""
        eventually(lambda: not self.mpsd.pods("control"), "control leaves the node", within_s=90.0)
        assert self.mpsd.is_ready("agent"), "somebody has to see how the upgrade goes on"
        self.reaches("pod-restart-required")
        eventually(lambda: not self.mpsd.pods("agent"), "so does the agent", within_s=90.0)
        eventually(
            lambda: not self.users_of_the_driver(), "nobody has the driver open", within_s=60.0
        )
        users = self.users_of_the_driver()
        self.reaches("validation-required")
        eventually(lambda: self.mpsd.is_ready("agent"), "the agent is back", within_s=90.0)
        assert not self.mpsd.pods("control"), "before the new driver is validated no daemon runs"
        self.is_over()
        return users


@contextmanager
def operator_of(mpsd: Installation, driver: str) -> Iterator[Operator]:
    operator = Operator(mpsd, driver)
    try:
        yield operator
    finally:
        mpsd.cluster.do("uncordon", mpsd.node)
        operator.reaches(None)
        mpsd.wait_until_ready()


@contextmanager
def changed_policy(mpsd: Installation, **fields: Any) -> Iterator[None]:
    """The agent is started again, so that it reads it at once; no program notices."""
    before: str = mpsd.cluster.get(*_LIMITS)["data"]["policy.yaml"]

    def put(policy: str) -> None:
        agent = mpsd.agent()
        mpsd.cluster.do(
            "patch", *_LIMITS, "--type=merge", "-p", json.dumps({"data": {"policy.yaml": policy}})
        )
        mpsd.cluster.do("delete", "pod", agent, "-n", SYSTEM)
        mpsd.wait_for_another_agent(agent)
        mpsd.wait_until_offered()

    put(yaml.safe_dump(yaml.safe_load(before) | fields, sort_keys=False))
    try:
        yield
    finally:
        put(before)
