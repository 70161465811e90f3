"""Resource claims on a node: whatever is killed or lost, a claim has one grant, and what has ended leaves nothing.

The test is the scheduler, which allocates claims, and the kubelet that has them prepared.
"""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
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
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster, Object
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

    # -- what the scheduler does -----------------------------------------------------------------------------------

    def allocate(self, name: str, gib: int, threads: int = 0) -> str:
        """A claim that is allocated and reserved for a pod of its name; its uid."""
        metadata = {"namespace": "default", "name": name}
        made = self.ask("POST", _CLAIMS, {"kind": "ResourceClaim", "metadata": metadata, "spec": {}})
        (device,) = self.devices()
        amounts = {"memory": f"{gib}Gi", "threads": str(threads), "clients": "2"}
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device["name"], "shareID": f"of-{name}"}
        results = [result | {"consumedCapacity": amounts}]
        reserved = [{"resource": "pods", "name": name, "uid": f"uid-of-{name}"}]
        made["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        self.ask("PUT", f"{_CLAIMS}/{name}/status", made)
        return str(made["metadata"]["uid"])

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

    def health(self) -> list[int]:
        async def ask() -> list[int]:
            async with dial(self.socket) as channel:
                stream = DRAResourceHealthStub(channel).NodeWatchResources(health_wire.NodeWatchResourcesRequest())
                async for answer in stream:
                    return [device.health for device in answer.devices]
                return []

        return asyncio.run(ask())

    # -- what is left ----------------------------------------------------------------------------------------------

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
    assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={uid}"]
    (file,) = claims.cdi.glob("*.json")
    (made,) = json.loads(file.read_text())["devices"]
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
    pod = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "share"}]}
    containers = [{"name": "main", "image": "none", "command": ["sleep", "600"]}]
    metadata = {"name": "share", "namespace": "default"}
    uid = claims.allocate("share", 7)
    claims.prepared("share", uid)
    claims.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **pod}})
    claims.agent.kill()
    claims.journal.write_text('{"claims": [')
    claims.agent = claims.start_agent()
    eventually(lambda: claims.granted() == {uid: 7168}, "the grant is known again")
    assert claims.files()
    claims.delete("share")
    eventually(lambda: claims.is_gone("share"), "the pod is gone")


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


def test_a_kubelet_that_refuses_the_driver_is_logged_with_its_reason(claims: ClaimCluster) -> None:
    why = "no version of it is known here"
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=False, error=why)))
    eventually(lambda: claims.agent.logged("not registered", reason=why), "why it is not registered")
    asyncio.run(claims.register(registration.RegistrationStatus(plugin_registered=True)))


def test_a_slice_that_somebody_deletes_is_written_again(claims: ClaimCluster) -> None:
    (before,) = claims.ask("GET", _SLICES)["items"]
    claims.ask("DELETE", f"{_SLICES}/{before['metadata']['name']}")
    claims.until_offered()


def test_a_cordoned_gpu_is_tainted_and_unhealthy_until_it_is_not(claims: ClaimCluster) -> None:
    assert claims.health() == [health_wire.HEALTHY]
    claims.cordon(claims.devices()[0]["attributes"]["uuid"]["string"])
    eventually(lambda: [one["value"] for one in claims.devices()[0].get("taints", ())] == ["drained"], "a taint")
    assert claims.health() == [health_wire.UNHEALTHY]
    claims.cordon()
    eventually(lambda: "taints" not in claims.devices()[0], "no taint")
    eventually(lambda: claims.health() == [health_wire.HEALTHY], "well again")


def test_random_claims_with_kills_in_between_leave_nothing(claims: ClaimCluster) -> None:
    """Kubelet repeats what it was not answered, as the real one does."""
    random, living = Random(0), dict[str, str]()
    for number in range(24):
        match random.randrange(5):
            case 0:
                claims.agent.kill()
                claims.agent = claims.start_agent()
            case 1 if living:
                name = random.choice(sorted(living))
                assert claims.unprepare(name, living.pop(name)) == ""
                claims.free(name)
            case 2 if living:
                name = random.choice(sorted(living))
                claims.prepared(name, living[name])
            case _ if len(living) < 4:
                name = f"claim-{number}"
                living[name] = claims.allocate(name, random.randint(1, 5), 5 * random.randint(0, 4))
                claims.prepared(name, living[name])
            case _:
                pass
        assert {path.stem.removeprefix(f"{DRIVER}-claim-") for path in claims.cdi.glob("*.json")} == {*living.values()}
    eventually(lambda: set(claims.granted()) == {*living.values()}, "a grant for each claim")
