"""Resource claims on a node: whatever is killed or lost, a claim has one grant, and what has ended leaves nothing.

The test is the scheduler, which allocates claims, and the kubelet that has them prepared.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.error import HTTPError

import pytest

from mpsd.kubelet.api import dra_health_pb2 as health_wire
from mpsd.kubelet.api import dra_pb2 as wire
from mpsd.kubelet.api import pluginregistration_pb2 as registration
from mpsd.kubelet.api.dra_health_pb2_grpc import DRAResourceHealthStub
from mpsd.kubelet.api.dra_pb2_grpc import DRAPluginStub
from mpsd.kubelet.api.pluginregistration_pb2_grpc import RegistrationStub
from mpsd.kubelet.client import dial
from mpsd.platform import local_api
from tests.platform.pod_cgroup import PodCgroupHere, needs_cgroups, pod_cgroup
from tests.whole.machine.machine import MPSD, Program, Service, eventually
from tests.whole.node.cluster import NODE, Cluster, Object, pod
from tests.whole.node.conftest import begun

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

    # -- what the scheduler does -----------------------------------------------------------------------------------

    def allocate(
        self, name: str, gib: int, threads: int = 0, pods: Sequence[str] = (), cap: int | None = None, **more: str
    ) -> str:
        """A claim that is allocated and reserved for the pods with these uids, or for one of its name; its uid. cap,
        more: its parameters."""
        metadata = {"namespace": "default", "name": name}
        made = self.ask("POST", _CLAIMS, {"kind": "ResourceClaim", "metadata": metadata, "spec": {}})
        (device,) = self.devices()
        amounts = {"memory": f"{gib}Gi", "threads": str(threads), "clients": "2"}
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device["name"], "shareID": f"of-{name}"}
        results = [result | {"consumedCapacity": amounts}]
        uids = pods or [f"uid-of-{name}"]
        reserved = [
            {"resource": "pods", "name": f"{name}-{n}" if n else name, "uid": uid} for n, uid in enumerate(uids)
        ]
        own = more if cap is None else {"threadCap": cap, **more}
        parameters = {"apiVersion": "mpsd.io/v1alpha1", "kind": "MPSConfig", **own}
        opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
        devices = {"results": results, **({"config": [opaque]} if own else {})}
        made["status"] = {"allocation": {"devices": devices}, "reservedFor": reserved}
        self.ask("PUT", f"{_CLAIMS}/{name}/status", made)
        return str(made["metadata"]["uid"])

    def is_reserved(self, name: str) -> bool:
        """For the pod of the claim's name, which the API server knows."""
        reserved = self.ask("GET", f"{_CLAIMS}/{name}")["status"]["reservedFor"]
        return self.pod(name)["metadata"]["uid"] in {one["uid"] for one in reserved}

    def change_capacity(self, name: str, memory: str) -> None:
        claim = self.ask("GET", f"{_CLAIMS}/{name}")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        result["consumedCapacity"]["memory"] = memory
        self.ask("PUT", f"{_CLAIMS}/{name}/status", claim)

    def free(self, name: str) -> None:
        with suppress(HTTPError):
            self.ask("DELETE", f"{_CLAIMS}/{name}")

    # -- what kubelet does -----------------------------------------------------------------------------------------

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

    def health(self) -> list[tuple[int, str]]:
        """Of each GPU, with the message."""

        async def ask() -> list[tuple[int, str]]:
            async with dial(self.socket) as channel:
                stream = DRAResourceHealthStub(channel).NodeWatchResources(health_wire.NodeWatchResourcesRequest())
                async for answer in stream:
                    return [(device.health, device.message) for device in answer.devices]
                return []

        return asyncio.run(ask())

    # -- what containers do ----------------------------------------------------------------------------------------

    def client_in(self, pod: PodCgroupHere, uid: str, *actions: str, until: str = "ready") -> Program:
        """sim-cuda as a container of this pod runs it with the claim, once it has said so much."""
        (_of_before, made) = json.loads((self.cdi / f"{DRIVER}-claim-{uid}.json").read_text())["devices"]
        edits = made["containerEdits"]
        given = dict(text.split("=", 1) for text in edits["env"])
        folders = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
        given["CUDA_MPS_PIPE_DIRECTORY"] = folders[given["CUDA_MPS_PIPE_DIRECTORY"]]
        client = [sys.executable, "-m", "mpsd.simulator.cuda_client", *actions, "hold"]
        program = self.started_in(pod, client, given)
        program.heard(until)
        return program

    def started_in(
        self, pod: PodCgroupHere, argv: Sequence[str], given: Mapping[str, str] = MappingProxyType({})
    ) -> Program:
        return self.start(["sh", "-c", f'echo $$ > {pod.members} && exec "$@"', "sh", *argv], given)

    # -- what is left ----------------------------------------------------------------------------------------------

    def devices_of(self, uid: str) -> set[str]:
        """The CDI devices in the file of a claim."""
        found = json.loads((self.cdi / f"{DRIVER}-claim-{uid}.json").read_text())["devices"]
        return {one["name"] for one in found}

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


def _pod_with(name: str, claim: str, annotations: Mapping[str, str] = MappingProxyType({})) -> Object:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
    containers = [{"name": "main", "image": "none", "command": ["sleep", "600"]}]
    metadata = {"name": name, "namespace": "default", "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[ClaimCluster]:
    yield from begun(ClaimCluster())


@pytest.fixture
def claims(running_cluster: ClaimCluster) -> Iterator[ClaimCluster]:
    yield running_cluster
    running_cluster.empty()


def test_a_prepared_claim_is_a_grant_and_a_device_of_the_container_runtime(claims: ClaimCluster) -> None:
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


def test_a_claim_that_was_deleted_and_made_again_is_refused_and_the_old_one_can_go(claims: ClaimCluster) -> None:
    first = claims.allocate("share", 7)
    claims.prepared("share", first)
    claims.free("share")
    second = claims.allocate("share", 4)
    assert "deleted" in claims.prepare("share", "a-uid-of-before").error
    assert claims.unprepare("share", first) == ""
    claims.prepared("share", second)
    eventually(lambda: claims.granted() == {second: 4096}, "the grant of the second")


def test_a_claim_that_kubelet_forgot_gives_way_to_a_new_one_of_its_name(claims: ClaimCluster) -> None:
    claims.prepared("share", claims.allocate("share", 20))
    claims.apply(_pod_with("share", "share"))
    joined = claims.pod("share")["metadata"]["uid"]
    eventually(lambda: joined in claims.journal.read_text(), "its pod counts for the old one")
    claims.free("share")
    second = claims.allocate("share", 10, pods=[joined])
    claims.prepared("share", second)
    eventually(lambda: claims.granted() == {second: 10240}, "the grant of the second")
    assert claims.files() == {f"{DRIVER}-claim-{second}.json"}
    claims.delete("share")
    eventually(lambda: claims.is_gone("share"), "the pod is gone")


@contextmanager
def pod_here(claims: ClaimCluster, number: int = 0) -> Iterator[PodCgroupHere]:
    """The cgroup of a pod whose programs have ended afterwards."""
    with pod_cgroup(number) as pod:
        try:
            yield pod
        finally:
            claims.end_programs()


@needs_cgroups
def test_what_kubelet_gives_up_is_held_while_a_process_of_it_lives(claims: ClaimCluster) -> None:
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
        assert "left beside the other grants" in claims.prepare("new", new).error
        eventually(lambda: claims.offered_mib() == whole - 10240, "the scheduler is not offered it")
        claims.agent.kill()
        claims.agent = claims.start_agent()
        eventually(lambda: claims.granted() == {left: 10240}, "the grant of what was left")
        assert claims.node().grants[0].ended
        program.kill()
        claims.prepared("new", new)
        eventually(lambda: claims.granted() == {new: 20480}, "the room is back")
        eventually(lambda: claims.offered_mib() == whole, "the scheduler is offered it again")


@needs_cgroups
def test_what_kubelet_gives_up_is_held_while_a_process_may_still_take_memory(claims: ClaimCluster) -> None:
    with pod_here(claims) as home:
        left = claims.allocate("left", 10, pods=[home.uid])
        claims.prepared("left", left)
        program = claims.started_in(home, ["sleep", "600"])
        eventually(lambda: str(program.pid) in home.members.read_text().split(), "it is in the pod")
        assert claims.unprepare("left", left) == ""
        assert claims.granted() == {left: 10240}
        assert claims.prepare("left", left).error == ""  # again, as for the next pod of the same claim
        assert not claims.node().grants[0].ended
        assert claims.unprepare("left", left) == ""
        program.kill()
        eventually(lambda: not claims.granted(), "the room is back")


def test_a_pod_that_joins_a_claim_is_in_the_journal(claims: ClaimCluster) -> None:
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply(_pod_with("late", "share"))
    joined = claims.pod("late")["metadata"]["uid"]
    eventually(lambda: joined in claims.journal.read_text(), "the pod is written down")
    assert "uid-of-share" in claims.journal.read_text()
    claims.delete("late")
    eventually(lambda: claims.is_gone("late"), "the pod is gone")


@needs_cgroups
def test_of_pods_that_share_a_claim_the_one_that_takes_too_much_is_reported(claims: ClaimCluster) -> None:
    with pod_here(claims) as first, pod_here(claims, 1) as second:
        uid = claims.allocate("share", 2, pods=[first.uid, second.uid])
        claims.prepared("share", uid)
        kept = claims.client_in(first, uid, "alloc=500")
        crowding = [claims.client_in(second, uid, "alloc=500") for _ in range(3)]
        found = eventually(lambda: claims.agent.logged("violation", pod="default/share-1"), "its violation")
        assert not claims.agent.logged("violation", pod="default/share"), found
        for program in (kept, *crowding):
            program.kill()


def test_claims_never_hold_more_than_the_gpu_whoever_allocated_them(claims: ClaimCluster) -> None:
    uids = {name: claims.allocate(name, 10) for name in ("one", "two", "three")}
    claims.prepared("one", uids["one"])
    claims.prepared("two", uids["two"])
    assert "left beside the other grants" in claims.prepare("three", uids["three"]).error
    assert claims.unprepare("one", uids["one"]) == ""
    claims.prepared("three", uids["three"])
    eventually(lambda: set(claims.granted()) == {uids["two"], uids["three"]}, "two grants")


def test_while_the_api_server_is_away_what_was_prepared_is_prepared_again(claims: ClaimCluster) -> None:
    old, new = claims.allocate("old", 2), claims.allocate("new", 2)
    names = claims.prepared("old", old)
    claims.api.send(signal.SIGSTOP)
    try:
        assert claims.prepared("old", old) == names
        assert "API" in claims.prepare("new", new).error
    finally:
        claims.api.send(signal.SIGCONT)
    claims.prepared("new", new)


def test_a_journal_that_cannot_be_read_is_made_again_from_the_api(claims: ClaimCluster) -> None:
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply(_pod_with("share", "share"))
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.agent = claims.start_agent()
    eventually(lambda: claims.granted() == {uid: 7168}, "the grant is known again")
    assert claims.files()
    claims.delete("share")
    eventually(lambda: claims.is_gone("share"), "the pod is gone")


def test_a_journal_that_is_made_again_gives_room_to_no_claim_that_waits_for_it(claims: ClaimCluster) -> None:
    held, late = claims.allocate("held", 20), claims.allocate("late", 10)
    claims.prepared("held", held)
    for name in ("held", "late"):
        claims.apply(_pod_with(name, name))
    eventually(lambda: all("nodeName" in claims.pod(name)["spec"] for name in ("held", "late")), "both are bound")
    assert "left beside the other grants" in claims.prepare("late", late).error
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.agent = claims.start_agent()
    eventually(lambda: claims.agent.logged("journal written again"), "the journal is made again")
    assert "left beside the other grants" in claims.prepare("late", late).error
    assert claims.granted() == {held: 20480}
    for name in ("held", "late"):
        claims.delete(name)
    eventually(lambda: claims.is_gone("held") and claims.is_gone("late"), "the pods are gone")


def _priority_in_file(claims: ClaimCluster, uid: str) -> list[str]:
    (_of_before, made) = json.loads((claims.cdi / f"{DRIVER}-claim-{uid}.json").read_text())["devices"]
    return [text for text in made["containerEdits"]["env"] if text.startswith("CUDA_MPS_CLIENT_PRIORITY=")]


def test_a_claim_has_the_priority_of_its_parameters_and_without_a_policy_no_other(claims: ClaimCluster) -> None:
    low, plain = claims.allocate("low", 4, priority="below-normal"), claims.allocate("plain", 4)
    for name, uid in (("low", low), ("plain", plain)):
        claims.prepared(name, uid)
    assert _priority_in_file(claims, low) == ["CUDA_MPS_CLIENT_PRIORITY=1"]
    assert _priority_in_file(claims, plain) == []
    eventually(lambda: len(claims.granted()) == 2, "both have their grants")
    assert {grant.id: grant.priority for grant in claims.node().grants} == {low: 1, plain: 0}
    assert "write normal or below-normal" in claims.prepare("odd", claims.allocate("odd", 4, priority="low")).error


def test_a_claim_is_below_normal_for_its_pods_and_stays_so_without_its_journal(claims: ClaimCluster) -> None:
    claims.agent.kill()
    claims.set_policy(gpu_priority={"by": "annotation"})
    claims.agent = claims.start_agent()
    below = {"mpsd.io/gpu-priority": "below-normal"}
    uids = {}
    for name, annotations in (("batch", below), ("serve", {})):
        uids[name] = claims.allocate(name, 4, priority="normal")
        claims.apply(_pod_with(name, name, annotations))
        eventually(lambda name=name: claims.is_reserved(name), "the claim is reserved for its pod")
        claims.prepared(name, uids[name])
    assert _priority_in_file(claims, uids["batch"]) == ["CUDA_MPS_CLIENT_PRIORITY=1"], "its parameters do not raise it"
    assert _priority_in_file(claims, uids["serve"]) == ["CUDA_MPS_CLIENT_PRIORITY=0"]
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.set_policy()
    claims.agent = claims.start_agent()
    eventually(lambda: len(claims.granted()) == 2, "the grants are known again")
    assert {grant.id: grant.priority for grant in claims.node().grants} == {uids["batch"]: 1, uids["serve"]: 0}
    for name in uids:
        claims.delete(name)
    eventually(lambda: all(map(claims.is_gone, uids)), "the pods are gone")


def _left_unreadable(claims: ClaimCluster, start_agent: Callable[[], Service]) -> str:
    """The uid of a claim that a pod holds, where neither the journal nor the API tells the next agent what it has."""
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply(_pod_with("share", "share"))
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.change_capacity("share", "unknown")
    claims.agent = start_agent()
    eventually(lambda: claims.agent.logged("claims not looked at"), "what stands in the way is said")
    return uid


def test_kubelet_can_give_up_a_claim_that_nobody_can_read(claims: ClaimCluster) -> None:
    uid = _left_unreadable(claims, claims.start_agent)
    eventually(lambda: claims.unprepare("share", uid) == "", "it is given up")
    assert not claims.granted()
    claims.delete("share")
    eventually(lambda: claims.is_gone("share"), "the pod is gone")


def test_a_journal_that_is_made_again_keeps_what_todays_policy_would_refuse(claims: ClaimCluster) -> None:
    uid = claims.allocate("share", 7, cap=30)
    claims.prepared("share", uid)
    claims.apply(_pod_with("share", "share"))
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.set_policy(requests={"minimum_thread_percent": 50})
    claims.agent = claims.start_agent()
    (said,) = eventually(lambda: claims.agent.logged("claim kept"), "that it is kept is said")
    assert "threadCap" in str(said["reason"])
    eventually(lambda: claims.granted() == {uid: 7168}, "the grant is known again")
    assert claims.node().grants[0].thread_percent == 30
    claims.set_policy()
    claims.delete("share")
    eventually(lambda: claims.is_gone("share"), "the pod is gone")


@pytest.mark.parametrize("damage", ["", '{"claims": ['])
def test_claims_that_are_served_no_longer_hold_their_room_and_that_is_said(claims: ClaimCluster, damage: str) -> None:
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply(_pod_with("share", "share"))
    claims.agent.kill()
    if damage:
        claims.journal.write_text(damage)
    claims.agent = claims.start_agent_without_claims()
    (said,) = eventually(lambda: claims.agent.logged("claims not served"), "that they are left is said")
    assert "default/share" in str(said["claims"])
    eventually(lambda: claims.granted() == {uid: 7168}, "its grant")
    claims.delete("share")
    eventually(lambda: claims.is_gone("share"), "the pod is gone")
    claims.agent.kill()
    claims.agent = claims.start_agent()


def test_no_pod_starts_in_the_place_of_claims_that_nobody_can_read(claims: ClaimCluster) -> None:
    uid = _left_unreadable(claims, claims.start_agent_without_claims)
    Cluster.until_offered(claims)
    claims.apply(pod("late", 2))
    (said, *_again) = eventually(lambda: claims.agent.logged("start deferred"), "its start is deferred")
    assert "journal of claims" in str(said["reason"])
    claims.change_capacity("share", "7Gi")
    claims.program_of("late")
    assert claims.granted()[uid] == 7168
    claims.delete("late")
    claims.delete("share")
    eventually(lambda: claims.is_gone("late") and claims.is_gone("share"), "the pods are gone")
    claims.agent.kill()
    claims.agent = claims.start_agent()


def test_a_journal_that_cannot_be_written_defers_claims_and_loses_nothing(claims: ClaimCluster) -> None:
    held, late = claims.allocate("held", 2), claims.allocate("late", 2)
    claims.prepared("held", held)
    in_the_way = claims.journal.with_name(f".{claims.journal.name}.new")
    in_the_way.mkdir()
    try:
        assert str(in_the_way) in claims.prepare("late", late).error
        assert str(in_the_way) in claims.unprepare("held", held)
        assert claims.granted() == {held: 2048}
    finally:
        in_the_way.rmdir()
    claims.prepared("late", late)
    eventually(lambda: claims.granted() == {held: 2048, late: 2048}, "both grants")


@contextmanager
def small(claims: ClaimCluster, folder: Path) -> Iterator[Path]:
    """The folder is a full disk, of a file that is given; the agent does not run while it is mounted."""

    def changed(*command: str) -> None:
        claims.agent.kill()
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
        claims.agent = claims.start_agent()
        if done.returncode:
            pytest.skip(f"needs the right to mount: {done.stderr}")

    folder.mkdir(exist_ok=True)
    changed("mount", "-t", "tmpfs", "-o", "size=64k", "none")
    try:
        filler = folder / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        yield filler
    finally:
        changed("umount")


@pytest.mark.parametrize("place", ["journal", "CDI folder"])
def test_a_full_disk_defers_claims_with_the_reason_and_loses_nothing(claims: ClaimCluster, place: str) -> None:
    with small(claims, claims.journal.parent if place == "journal" else claims.cdi) as filler:
        uid = claims.allocate("share", 2)
        assert "No space left on device" in claims.prepare("share", uid).error
        assert not any(path.name.endswith(".new") for path in filler.parent.iterdir())
        filler.unlink()
        claims.prepared("share", uid)
        eventually(lambda: claims.granted() == {uid: 2048}, "its grant")
        claims.empty()


def test_a_kubelet_that_refuses_the_driver_is_logged_with_its_reason(claims: ClaimCluster) -> None:
    why = "no version of it is known here"
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=False, error=why)))
    eventually(lambda: claims.agent.logged("not registered", reason=why), "why it is not registered")
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=True)))


def test_a_slice_that_somebody_deletes_is_written_again(claims: ClaimCluster) -> None:
    (before,) = claims.ask("GET", _SLICES)["items"]
    claims.ask("DELETE", f"{_SLICES}/{before['metadata']['name']}")
    claims.until_offered()


def test_a_cordoned_gpu_is_tainted_until_it_is_not_and_stays_healthy(claims: ClaimCluster) -> None:
    assert claims.health() == [(health_wire.HEALTHY, "")]
    claims.cordon(claims.devices()[0]["attributes"]["uuid"]["string"])
    eventually(lambda: [one["value"] for one in claims.devices()[0].get("taints", ())] == ["drained"], "a taint")
    assert claims.health() == [(health_wire.HEALTHY, "")]
    claims.cordon()
    eventually(lambda: "taints" not in claims.devices()[0], "no taint")


@needs_cgroups
def test_a_gpu_in_fault_is_unhealthy_by_its_name_until_it_is_healed(claims: ClaimCluster) -> None:
    uuid = claims.devices()[0]["attributes"]["uuid"]["string"]
    with pod_here(claims) as home:
        uid = claims.allocate("share", 4, pods=[home.uid])
        claims.prepared("share", uid)
        claims.client_in(home, uid, "fault", "linger", until="lingering")
        ((_sick, message),) = eventually(
            lambda: [one for one in claims.health() if one[0] == health_wire.UNHEALTHY], "it is sick"
        )
        assert f"gpu0 ({uuid})" in message
        assert message.endswith("fault")
        eventually(lambda: claims.health() == [(health_wire.HEALTHY, "")], "it is healed")


def test_a_claim_is_named_with_its_pods_wherever_its_grant_is_seen(claims: ClaimCluster) -> None:
    uid = claims.allocate("share", 7, pods=["uid-of-a", "uid-of-b"])
    claims.prepared("share", uid)
    (grant,) = eventually(lambda: [one for one in claims.node().grants if one.id == uid], "its grant")
    assert (grant.claim, grant.pod) == ("default/share", "default/share")
    assert grant.names[1:] == ("default/share-1",)

    def told() -> list[Object]:
        found = claims.mpsnode().get("status", {}).get("grants", ())
        return [one for one in found if one["id"] == uid]

    (reported,) = eventually(told, "the MPSNode names the claim")
    assert reported["claim"] == "default/share"
    assert reported["sharedWith"] == [{"pod": "default/share-1", "uid": "uid-of-b"}]
    _code, body = local_api.ask(claims.run_directory / "mpsd.sock", "GET", "/metrics")
    info = [line for line in body.decode().splitlines() if line.startswith("mpsd_grant_claim_info{")]
    assert info == [
        f'mpsd_grant_claim_info{{namespace="default",pod="{pod}",claim="share"}} 1' for pod in ("share", "share-1")
    ]


def test_the_node_says_that_it_serves_claims_and_why_kubelet_gets_none(claims: ClaimCluster) -> None:
    assert (claims.node().claim_driver, claims.node().claims_trouble) == (DRIVER, "")
    why = "no version of it is known here"
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=False, error=why)))
    assert claims.node().claims_trouble == f"kubelet refuses the driver: {why}"
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=True)))
    assert claims.node().claims_trouble == ""
