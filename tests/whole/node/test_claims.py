"""Resource claims on a node: whatever is killed or lost, a claim has one grant, and what has ended
leaves nothing.

The test is the scheduler, and the kubelet that has claims prepared.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.error import HTTPError

import pytest

from mpsd.kubelet.api import dra_pb2 as wire
from mpsd.kubelet.api import pluginregistration_pb2 as registration
from mpsd.kubelet.api.dra_pb2_grpc import DRAPluginStub
from mpsd.kubelet.api.pluginregistration_pb2_grpc import RegistrationStub
from mpsd.kubelet.client import dial
from tests.platform.pod_cgroup import PodCgroupHere, needs_cgroups, pod_cgroup
from tests.whole.machine.machine import MPSD, Program, Service, eventually
from tests.whole.node.cluster import NODE, Cluster, Object, pod

DRIVER = "gpu.mpsd.io"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_ANSWER_S = 40.0


class ClaimCluster(Cluster):
    """Its agent serves claims."""

    @property
    def cdi(self) -> Path:
        return self._folder / "cdi"

    @property
    def journal(self) -> Path:
        return self.run_directory / "agent" / "claims.json"

    @property
    def socket(self) -> Path:
        return self.kubelet_folder / "plugins_registry" / f"{DRIVER}-reg.sock"

    @property
    def agent_words(self) -> list[str]:
        return [*super().agent_words, "--dra", DRIVER, "--cdi-dir", str(self.cdi)]

    def start_agent_without_claims(self) -> Any:
        words = super().agent_words
        return self._started(Service([str(MPSD), *words], self.environment, self._said))

    @property
    def kubelet_words(self) -> list[str]:
        return ["--cdi-dir", str(self.cdi)]

    def start_agent(self) -> Any:
        """Registered, as kubelet says."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        agent = self.launch_agent()
        eventually(lambda: self.socket.exists() or not agent.running, "the agent's socket")
        asyncio.run(self.register(registration.RegistrationStatus(plugin_registered=True)))
        return agent

    async def register(self, status: registration.RegistrationStatus) -> None:
        async with dial(self.socket) as channel:
            stub = RegistrationStub(channel)
            info = await stub.GetInfo(registration.InfoRequest())
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(self.socket))
            await stub.NotifyRegistrationStatus(status)

    def until_offered(self) -> None:
        eventually(lambda: len(self.devices()) == 1, "a slice with the GPU")

    def devices(self) -> list[Object]:
        found = self.ask("GET", _SLICES)["items"]
        return [device for one in found for device in one["spec"]["devices"]]

    def offered_mib(self) -> int:
        (device,) = self.devices()
        return int(device["capacity"]["memory"]["value"].removesuffix("Mi"))

    # -- what the scheduler does

    def allocate(self, name: str, gib: int, threads: int = 0, pods: Sequence[str] = ()) -> str:
        """A claim that is allocated and reserved for the pods with these uids, or for one of its
        name; its uid."""
        metadata = {"namespace": "default", "name": name}
        made = self.ask(
            "POST", _CLAIMS, {"kind": "ResourceClaim", "metadata": metadata, "spec": {}}
        )
        (device,) = self.devices()
        amounts = {"memory": f"{gib}Gi", "threads": str(threads), "clients": "2"}
        result = {
            "request": "gpu",
            "driver": DRIVER,
            "pool": NODE,
            "device": device["name"],
            "shareID": f"of-{name}",
        }
        results = [result | {"consumedCapacity": amounts}]
        uids = pods or [f"uid-of-{name}"]
        reserved = [
            {"resource": "pods", "name": f"{name}-{n}" if n else name, "uid": uid}
            for n, uid in enumerate(uids)
        ]
        made["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        self.ask("PUT", f"{_CLAIMS}/{name}/status", made)
        return made["metadata"]["uid"]

    def change_capacity(self, name: str, memory: str) -> None:
        claim = self.ask("GET", f"{_CLAIMS}/{name}")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        result["consumedCapacity"]["memory"] = memory
        self.ask("PUT", f"{_CLAIMS}/{name}/status", claim)

    def free(self, name: str) -> None:
        with suppress(HTTPError):
            self.ask("DELETE", f"{_CLAIMS}/{name}")

    # -- what kubelet does

    def prepare(self, name: str, uid: str) -> wire.NodePrepareResourceResponse:
        claims = [wire.Claim(namespace="default", name=name, uid=uid)]

        async def ask() -> wire.NodePrepareResourcesResponse:
            async with dial(self.socket) as channel:
                asked = wire.NodePrepareResourcesRequest(claims=claims)
                answer: wire.NodePrepareResourcesResponse
                answer = await DRAPluginStub(channel).NodePrepareResources(
                    asked, timeout=_ANSWER_S, wait_for_ready=True
                )
                return answer

        return asyncio.run(ask()).claims[uid]

    def prepared(self, name: str, uid: str) -> list[str]:
        """The CDI devices of the claim, once it has them: kubelet asks again and again."""

        def look() -> list[str]:
            answer = self.prepare(name, uid)
            assert not answer.error, answer.error
            return list(answer.devices[0].cdi_device_ids)

        def asked() -> list[str]:
            with suppress(AssertionError):
                return look()
            return []

        return eventually(asked, f"{name} is prepared")

    def unprepare(self, name: str, uid: str) -> str:
        claims = [wire.Claim(namespace="default", name=name, uid=uid)]

        async def ask() -> str:
            async with dial(self.socket) as channel:
                asked = wire.NodeUnprepareResourcesRequest(claims=claims)
                answer = await DRAPluginStub(channel).NodeUnprepareResources(
                    asked, timeout=_ANSWER_S, wait_for_ready=True
                )
                return str(answer.claims[uid].error)

        return asyncio.run(ask())

    # -- what containers do

    def client_in(
        self, pod: PodCgroupHere, uid: str, *actions: str, until: str = "ready"
    ) -> Program:
        """sim-cuda as a container of this pod runs it with the claim, once it has said so much."""
        (made,) = json.loads((self.cdi / f"{DRIVER}-claim-{uid}.json").read_text())["devices"]
        edits = made["containerEdits"]
        given = dict(text.split("=", 1) for text in edits["env"])
        folders = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
        given["CUDA_MPS_PIPE_DIRECTORY"] = folders[given["CUDA_MPS_PIPE_DIRECTORY"]]
        client = [sys.executable, "-m", "mpsd.simulator.cuda_client", *actions, "hold"]
        enter = f'echo $$ > {pod.members} && exec "$@"'
        program = self.start(["sh", "-c", enter, "sh", *client], given)
        program.heard(until)
        return program

    # -- what is left

    def files(self) -> set[str]:
        return {path.name for path in self.cdi.glob("*")}

    def granted(self) -> dict[str, int]:
        """MiB by the id of each grant."""
        return {grant.id: grant.memory_mib for grant in self.node().grants}

    def empty(self) -> None:
        for claim in self.ask("GET", _CLAIMS)["items"]:
            name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
            assert self.unprepare(name, uid) == ""
            self.free(name)
        self.until_denied()
        assert not self.files()


def _pod_with(
    name: str, claim: str, annotations: Mapping[str, str] = MappingProxyType({})
) -> Object:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
    containers = [{"name": "main", "image": "none", "command": ["sleep", "600"]}]
    metadata = {"name": name, "namespace": "default", "annotations": dict(annotations)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, **spec},
    }


CLUSTER = ClaimCluster
WAITS = {"mpsd.kubelet.device_plugins._START_S": 3.0, "mpsd.kubelet.dra.driver._LOOK_S": 0.5}


@pytest.fixture
def claims(running_cluster: ClaimCluster) -> Iterator[ClaimCluster]:
    yield running_cluster
    running_cluster.empty()


def test_a_prepared_claim_is_a_grant_and_a_cdi_device(claims: ClaimCluster) -> None:
    uid = claims.allocate("share", 7, 30)
    answer = claims.prepare("share", uid)
    (device,) = answer.devices
    assert (answer.error, device.pool_name, device.share_id) == ("", NODE, "of-share")
    assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={uid}-{device.device_name}"]
    (file,) = claims.cdi.glob("*.json")
    for made in json.loads(file.read_text())["devices"]:
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" in made["containerEdits"]["env"]
    eventually(lambda: claims.granted() == {uid: 7168}, "its grant")
    assert claims.limit_mib() == 7168
    assert claims.unprepare("share", uid) == claims.unprepare("share", uid) == ""
    eventually(lambda: not claims.granted(), "no grant")
    assert not claims.files()
    assert (claims.node().claim_driver, claims.node().claims_trouble) == (DRIVER, "")
    no = registration.RegistrationStatus(plugin_registered=False, error="unknown version")
    asyncio.run(claims.register(no))
    assert claims.node().claims_trouble == "kubelet refuses the driver: unknown version"
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=True)))
    assert claims.node().claims_trouble == ""


@contextmanager
def pod_here(claims: ClaimCluster, number: int = 0) -> Iterator[PodCgroupHere]:
    """The cgroup of a pod whose programs have ended afterwards."""
    with pod_cgroup(number) as pod:
        try:
            yield pod
        finally:
            claims.end_programs()


@needs_cgroups
def test_what_kubelet_gives_up_is_held_while_a_process_lives(claims: ClaimCluster) -> None:
    """As of a pod that was deleted by force, whose processes went on."""
    whole = claims.offered_mib()
    with pod_here(claims) as home:
        left = claims.allocate("left", 10, pods=[home.uid])
        claims.prepared("left", left)
        program = claims.client_in(home, left, "alloc=1000")
        assert claims.unprepare("left", left) == ""
        claims.free("left")
        eventually(lambda: claims.agent.logged("grant kept"), "that it is kept is said")
        new = claims.allocate("new", 20)
        assert "no room beside the other grants" in claims.prepare("new", new).error
        eventually(lambda: claims.offered_mib() == whole - 10240, "the scheduler is not offered it")
        claims.restart_agent()
        eventually(lambda: claims.granted() == {left: 10240}, "the grant of what was left")
        assert claims.node().grants[0].ended
        program.kill()
        claims.prepared("new", new)
        eventually(lambda: claims.granted() == {new: 20480}, "the room is back")
        eventually(lambda: claims.offered_mib() == whole, "the scheduler is offered it again")


def test_a_journal_that_cannot_be_read_is_made_again_from_the_api(claims: ClaimCluster) -> None:
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply(_pod_with("share", "share"))
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.agent = claims.start_agent()
    eventually(lambda: claims.granted() == {uid: 7168}, "the grant is known again")
    assert claims.files()
    claims.ended("share")


def _left_unreadable(claims: ClaimCluster, start_agent: Callable[[], Service]) -> str:
    """The uid of a claim that a pod holds, where neither the journal nor the API tells the next
    agent what it has."""
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply(_pod_with("share", "share"))
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.change_capacity("share", "unknown")
    claims.agent = start_agent()
    eventually(
        lambda: claims.agent.logged("claims not looked at"), "what stands in the way is said"
    )
    return uid


def test_kubelet_can_give_up_a_claim_that_nobody_can_read(claims: ClaimCluster) -> None:
    uid = _left_unreadable(claims, claims.start_agent)
    eventually(lambda: claims.unprepare("share", uid) == "", "it is given up")
    assert not claims.granted()
    claims.ended("share")


def test_no_pod_starts_in_the_place_of_unreadable_claims(claims: ClaimCluster) -> None:
    uid = _left_unreadable(claims, claims.start_agent_without_claims)
    Cluster.until_offered(claims)
    claims.apply(pod("late", 2))
    said, *_again = eventually(
        lambda: claims.agent.logged("start deferred"), "its start is deferred"
    )
    assert "journal of claims" in str(said["reason"])
    claims.change_capacity("share", "7Gi")
    claims.program_of("late")
    assert claims.granted()[uid] == 7168
    claims.ended("late", "share")
    claims.restart_agent()
