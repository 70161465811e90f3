"""Whatever befalls a node while claims come and go: no GPU is given twice, and what has ended
leaves nothing.

Scheduler, controllers and kubelet are the simulator's. MPSD_SOAK_SEED=N plays the sequence N
instead of the first.
"""

import json
import os
import random
import signal
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from mpsd.platform import local_api
from mpsd.platform.kube import Object
from mpsd.simulator.kubelet.claims import CHECKPOINT
from tests.manifests.rendering import of_kind
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.chaos import BREATHS_S, IN_THE_END_S, until_quiet
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import container
from tests.whole.node.test_claims import DRIVER, ClaimCluster
from tests.whole.node.test_restarts import cut_the_power

pytestmark = needs_cgroups

_API = "/apis/resource.k8s.io/v1"
_NAMESPACED = f"{_API}/namespaces/default"
_CLAIMS = 44  # of one sequence
_MOST_PODS = 8


class ScheduledCluster(ClaimCluster):
    """Kubelet finds the driver by itself."""

    def begin(self) -> None:
        super().begin()
        for one in of_kind("dra", "DeviceClass"):
            self.ask("POST", f"{_API}/deviceclasses", one)

    def start_agent(self) -> Any:
        agent = self.launch_agent()
        eventually(
            lambda: agent.logged("registered") or not agent.running, "kubelet registers the driver"
        )
        return agent

    def until_offered(self) -> None:
        eventually(
            lambda: len(self.devices()) == len(self.simulation.gpus), "a slice with every GPU"
        )

    def claim(self, name: str, **exactly: Any) -> None:
        """A claim, and a pod of its name that has it."""
        requests = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claim = {"metadata": {"name": name}, "spec": requests}
        self.ask("POST", f"{_NAMESPACED}/resourceclaims", claim)
        self.start_with(name, {"resourceClaimName": name})

    def start_with(self, name: str, claim: Object) -> None:
        main = container("main", 0) | {"resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "restartPolicy": "Always",
            "containers": [main],
            "resourceClaims": [{"name": "gpu", **claim}],
        }
        metadata = {"name": name, "namespace": "default"}
        self.apply({"kind": "Pod", "metadata": metadata, "spec": spec})

    def claims(self) -> list[Object]:
        return self.ask("GET", f"{_NAMESPACED}/resourceclaims")["items"]

    def empty(self) -> None:
        """As people do; kubelet is what ends claims."""
        for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
            path = "/api/v1/namespaces/default" if kind == "pods" else _NAMESPACED
            for one in self.ask("GET", f"{path}/{kind}")["items"]:
                with suppress(urllib.error.HTTPError):
                    self.ask(
                        "DELETE", f"{path}/{kind}/{one['metadata']['name']}?gracePeriodSeconds=1"
                    )
        eventually(lambda: not self.pods(), "every pod is gone", IN_THE_END_S)
        eventually(lambda: not self.claims(), "every claim is gone")


class ClaimsChaos:
    """Plays one sequence. made: the claims so far. overdone: each time that a GPU was given twice,
    in words."""

    def __init__(self, cluster: ScheduledCluster, seed: int) -> None:
        self._cluster, self._seed, self._chance = cluster, seed, random.Random(seed)
        self._api_is_away = False
        self._pods = self._shared = 0
        self._gpus = {gpu.uuid.lower(): gpu.memory_mib for gpu in cluster.simulation.gpus}
        self.made = 0
        self.overdone: list[str] = []

    def play(self) -> None:
        deeds: list[Callable[[], None]] = [
            *[self.start_pod] * 6,
            *[self.start_pair] * 2,
            *[self.end_pods] * 3,
            self.kill_agent,
            self.kill_agent,
            self.kill_kubelet,
            self.kill_kubelet,
            self.kill_control,
            self.api_goes,
            self.api_comes,
        ]
        while self.made < _CLAIMS:
            deed = self._chance.choice(deeds)
            print(deed.__name__)
            deed()
            time.sleep(self._chance.choice(BREATHS_S))
            self.overdone += self.given_twice()

    # -- deeds

    def start_pod(self) -> None:
        """With a claim of its own, from a template."""
        if self._has_room():
            name = f"single{self._seed}-{self._pods}"
            template = {"metadata": {"name": name}, "spec": {"spec": self._spec()}}
            self._cluster.ask("POST", f"{_NAMESPACED}/resourceclaimtemplates", template)
            self._start(name, {"resourceClaimTemplateName": name})

    def start_pair(self) -> None:
        """Two pods that share a claim."""
        if self._has_room():
            name, self._shared = f"shared{self._seed}-{self._shared}", self._shared + 1
            claim = {"metadata": {"name": name}, "spec": self._spec()}
            self._cluster.ask("POST", f"{_NAMESPACED}/resourceclaims", claim)
            for side in ("left", "right"):
                self._start(f"{name}-{side}", {"resourceClaimName": name})

    def _has_room(self) -> bool:
        self.api_comes()
        if len(self._cluster.pods()) >= _MOST_PODS:
            self.end_pods()
        return len(self._cluster.pods()) < _MOST_PODS

    def _spec(self) -> Object:
        self.made += 1
        amounts = {
            "memory": f"{self._chance.randint(1, 20)}Gi",
            "threads": str(self._chance.choice([0, 30])),
        }
        exactly = {"deviceClassName": "mps.mpsd.io", "capacity": {"requests": amounts}}
        return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}

    def _start(self, name: str, claim: Object) -> None:
        self._pods += 1
        self._cluster.start_with(name, claim)

    def end_pods(self) -> None:
        """Some pods, and the claims that people made, which then go with the last of their pods."""
        self.api_comes()
        names = sorted(one["metadata"]["name"] for one in self._cluster.pods())
        for name in self._chance.sample(names, min(len(names), self._chance.randint(1, 5))):
            with suppress(urllib.error.HTTPError):  # it has just gone
                self._cluster.delete(name, grace_s=1)
        held = {name.rpartition("-")[0] for name in names if name.startswith("shared")}
        for claim in self._cluster.claims():
            name = claim["metadata"]["name"]
            if name.startswith("shared") and name not in held:
                with suppress(urllib.error.HTTPError):
                    self._cluster.ask("DELETE", f"{_NAMESPACED}/resourceclaims/{name}")

    def kill_agent(self) -> None:
        self._cluster.agent.kill()
        self._cluster.agent = self._cluster.launch_agent()

    def kill_kubelet(self) -> None:
        self._cluster.kubelet.kill()
        self._cluster.kubelet = self._cluster.start_kubelet()

    def kill_control(self) -> None:
        self._cluster.control.kill()
        self._cluster.control = self._cluster.service("control")

    def api_goes(self) -> None:
        """It does not answer; the simulated one keeps its objects in memory alone."""
        self._cluster.api.send(signal.SIGSTOP)
        self._api_is_away = True

    def api_comes(self) -> None:
        if self._api_is_away:
            self._cluster.api.send(signal.SIGCONT)
            self._api_is_away = False

    # -- what must hold

    def given_twice(self) -> list[str]:
        """Of each GPU that more is given of than it has, by whom; and files of claims that the
        journal does not have."""
        before = self._journal()
        files = self.files()
        journal = self._journal()
        found = {"journal": journal, "ledger": self._ledger()}
        if not self._api_is_away:
            found["scheduler"] = self._scheduled()
        wrong = [
            f"{where} gives {mib} MiB of {gpu}"
            for where, held in found.items()
            for gpu, mib in _sums(held).items()
            if mib > self._gpus[gpu]
        ]
        stray = files - before.keys() - journal.keys()
        return wrong + [f"files of claims that are not in the journal: {stray}"] * bool(stray)

    def _journal(self) -> dict[str, dict[str, int]]:
        """By the uid of each claim, MiB of each GPU."""
        if not self._cluster.journal.exists():
            return {}
        claims = json.loads(self._cluster.journal.read_text())["claims"]
        return {
            one["uid"]: {each["gpu"].lower(): one["memory_mib"] for each in one["devices"]}
            for one in claims
        }

    def _ledger(self) -> dict[str, dict[str, int]]:
        with suppress(local_api.NotRunning):
            grants = self._cluster.node().grants
            return {one.id: {gpu.lower(): one.memory_mib for gpu in one.gpus} for one in grants}
        return {}

    def _scheduled(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for claim in self._cluster.claims():
            devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
            for result in devices.get("results", ()):
                memory = result["consumedCapacity"]["memory"]
                mib = int(memory[:-2]) * (1024 if memory.endswith("Gi") else 1)
                found[claim["metadata"]["uid"]] = {result["device"]: mib}
        return found

    def files(self) -> set[str]:
        start = f"{DRIVER}-claim-"
        return {path.stem.removeprefix(start) for path in self._cluster.cdi.glob(f"{start}*.json")}

    def trouble(self) -> str:
        """What is not yet as it must be in the end: pods that have a node run and hold their
        claims, and nothing else is held."""
        pods = {one["metadata"]["uid"]: one for one in self._cluster.pods()}
        held = {
            one["metadata"]["uid"]: one["status"]["reservedFor"]
            for one in self._cluster.claims()
            if one.get("status", {}).get("reservedFor")
        }
        placed = {uid for uid, one in pods.items() if one["spec"].get("nodeName")}
        scheduled, checkpoint = self._scheduled(), self._cluster.kubelet_folder / CHECKPOINT
        known = json.loads(checkpoint.read_text()) if checkpoint.exists() else {}
        slices = self._cluster.ask("GET", f"{_API}/resourceslices")["items"]
        left = {
            "not running": [
                uid for uid in placed if pods[uid].get("status", {}).get("phase") != "Running"
            ],
            "reserved": {one["uid"] for each in held.values() for one in each} ^ placed,
            "allocated": scheduled.keys() ^ held.keys(),
            "journal": {} if self._journal() == scheduled else self._journal(),
            "ledger": {} if self._ledger() == scheduled else self._ledger(),
            "files": self.files() ^ held.keys(),
            "other files": [path.name for path in self._cluster.cdi.glob("*.new")],
            "kubelet": known.keys() ^ held.keys(),
            "slices": [one["metadata"]["name"] for one in slices] if len(slices) != 1 else [],
            "devices": len(self._cluster.devices()) - len(self._gpus),
            "tainted": [one["taints"] for one in self._cluster.devices() if one.get("taints")],
        }
        wrong = {what: those for what, those in left.items() if those}
        return f"{wrong}; held: {held}" if wrong else ""


def _sums(held: dict[str, dict[str, int]]) -> Counter[str]:
    whole: Counter[str] = Counter()
    for parts in held.values():
        whole.update(parts)
    return whole


CLUSTER, GPUS = ScheduledCluster, "A30x2"


@pytest.fixture
def cluster(running_cluster: ScheduledCluster) -> ScheduledCluster:
    return running_cluster


@pytest.mark.timeout(6 * IN_THE_END_S)
@pytest.mark.parametrize("seed", [int(os.environ.get("MPSD_SOAK_SEED", "0"))])
def test_random_claims_leave_nothing_nor_overfill(cluster: ScheduledCluster, seed: int) -> None:
    chaos = ClaimsChaos(cluster, seed)
    try:
        chaos.play()
    finally:
        chaos.api_comes()
    until_quiet(chaos.trouble)
    cluster.empty()
    until_quiet(chaos.trouble)
    assert (chaos.made, chaos.overdone) == (_CLAIMS, [])
    assert not chaos.files()
    assert not cluster.granted()


def test_after_a_reboot_a_claim_is_prepared_and_limited(cluster: ScheduledCluster) -> None:
    cluster.claim("kept", deviceClassName="mps.mpsd.io", capacity={"requests": {"memory": "3Gi"}})
    program = cluster.program_of("kept")
    cut_the_power(cluster)
    for file in cluster.cdi.iterdir():
        file.unlink()
    cluster.kubelet = cluster.start_kubelet()
    cluster.control = cluster.service("control")
    cluster.agent = cluster.start_agent()
    eventually(
        lambda: len(program.runs) > 1 and program.heard("ready"), "it runs again", IN_THE_END_S
    )
    info = next(line for line in program.lines if "meminfo_free_MiB" in line)
    assert info["meminfo_free_MiB"] < 3 * 1024
    eventually(
        lambda: [one.memory_mib for one in cluster.node().grants] == [3 * 1024],
        "its grant is known again",
    )
    cluster.empty()
