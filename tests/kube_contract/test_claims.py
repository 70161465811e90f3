"""What resource claims get of devices that several share, from the scheduler and from the
controller of claims."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from mpsd.model.quantity import whole
from mpsd.platform.kube import PODS, Kube, KubeError, NotFound, Object, PatchKind, Resource
from mpsd.simulator.api_server.allocation import (
    CannotAllocate,
    ConsumedCapacity,
    allocated,
    offered,
    results_of,
)
from tests.kube_contract.conftest import NODES, World, connected, eventually, make_node, pod

_API = "resource.k8s.io/v1"
SLICES, CLASSES = Resource(_API, "resourceslices"), Resource(_API, "deviceclasses")
CLAIMS, TEMPLATES = Resource(_API, "resourceclaims"), Resource(_API, "resourceclaimtemplates")
_MINOR = 36  # from which on devices may be shared by their capacity
TAINT = {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"}

Amounts = Mapping[str, str]
Gotten = list[tuple[str, dict[str, int]]]  # of each result, its device, and what it consumes


def _capacity(value: str, default: str, least: str = "", most: str = "", step: str = "") -> Object:
    ranged = {
        name: amount for name, amount in (("min", least), ("max", most), ("step", step)) if amount
    }
    return {
        "value": value,
        "requestPolicy": {"default": default} | ({"validRange": ranged} if ranged else {}),
    }


def gpu(name: str, gib: int = 22, **more: Any) -> Object:
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"uuid": {"string": name}, "model": {"string": more.pop("model", "A30")}},
        "capacity": {
            "memory": _capacity(f"{gib}Gi", f"{gib}Gi", "1Gi", f"{gib}Gi", "1Gi"),
            "threads": _capacity("100", "0", "0", "100", "5"),
            "clients": _capacity("48", "2", "1", "48", "1"),
        },
        **more,
    }


def request(capacity: Amounts | None = None, **exactly: Any) -> Object:
    asked = {"capacity": {"requests": dict(capacity)}} if capacity else {}
    return {**asked, **exactly}


@dataclass(frozen=True)
class Claims:
    """Of one test: a driver, a class and a node that nobody else has."""

    kube: Kube
    world: World

    @property
    def driver(self) -> str:
        return f"{self.world.namespace}.example.com"

    async def offer(self, *devices: Object, generation: int = 1, slices: int = 1) -> None:
        pool = {"name": self.world.node, "generation": generation, "resourceSliceCount": slices}
        spec = {
            "driver": self.driver,
            "nodeName": self.world.node,
            "pool": pool,
            "devices": list(devices),
        }
        name = f"{self.world.node}-{generation}-{uuid4().hex[:5]}"
        await self.kube.create(SLICES, {"metadata": {"name": name}, "spec": spec})

    async def claim(self, name: str, *requests: Object, **devices: Any) -> None:
        await self.kube.create(
            CLAIMS,
            {"metadata": {"name": name}, "spec": self.spec(*requests, **devices)},
            self.space,
        )

    def spec(self, *requests: Object, **devices: Any) -> Object:
        named = [
            {"name": f"r{n}", "exactly": {"deviceClassName": self.driver} | one}
            for n, one in enumerate(requests)
        ]
        return {"devices": {"requests": named, **devices}}

    @property
    def space(self) -> str:
        return self.world.namespace

    async def start(self, name: str, claim: str = "", **entry: str) -> Object:
        """Once it is bound or was refused; as it is then."""
        made = pod(name)
        made["spec"] |= {
            "schedulerName": "default-scheduler",
            "nodeSelector": {"contract": self.world.node},
            "resourceClaims": [{"name": "gpu", **(entry or {"resourceClaimName": claim or name})}],
        }
        made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        await self.kube.create(PODS, made, self.space)

        async def decided() -> Object | None:
            found = await self.kube.get(PODS, name, self.space)
            conditions = found.get("status", {}).get("conditions") or ()
            refused = any(
                (one["type"], one["status"]) == ("PodScheduled", "False") for one in conditions
            )
            return found if refused or found["spec"].get("nodeName") else None

        return await eventually(decided, f"{name} is bound or refused")

    async def gotten(self, name: str) -> Gotten:
        """Empty where the claim is not allocated."""
        return _gotten(results_of(await self.kube.get(CLAIMS, name, self.space)))

    async def try_one(self, name: str, *requests: Object, **devices: Any) -> Gotten:
        await self.claim(name, *requests, **devices)
        await self.start(name)
        return await self.gotten(name)

    async def end(self, name: str) -> None:
        with suppress(NotFound):  # no kubelet holds it
            ended = {"status": {"phase": "Succeeded"}}
            await self.kube.patch(PODS, name, ended, PatchKind.MERGE, self.space, "status")
            await self.kube.delete(PODS, name, self.space)


def _gotten(results: Sequence[Object]) -> Gotten:
    return [
        (
            one["device"],
            {
                name: whole(amount) or 0
                for name, amount in (one.get("consumedCapacity") or {}).items()
            },
        )
        for one in results
    ]


def _amounts(memory_gib: int, threads: int = 0, clients: int = 2) -> dict[str, int]:
    return {"memory": memory_gib * 1024**3, "threads": threads, "clients": clients}


@pytest.fixture
def claims(
    kubeconfig: Path, world: AbstractAsyncContextManager[World]
) -> AbstractAsyncContextManager[Claims]:
    return _claims(kubeconfig, world)


@asynccontextmanager
async def _claims(
    kubeconfig: Path, world: AbstractAsyncContextManager[World]
) -> AsyncIterator[Claims]:
    async with world as here, connected(kubeconfig) as kube:
        if here.is_real:
            version = (await kube.read("/version"))["gitVersion"]
            if int(version.split(".")[1]) < _MINOR:
                pytest.skip(f"devices that several claims share: of Kubernetes 1.{_MINOR} on")
        claims = Claims(kube, here)
        await make_node(kube, here)
        expression = {"cel": {"expression": f"device.driver == '{claims.driver}'"}}
        metadata = {"name": claims.driver}
        await kube.create(CLASSES, {"metadata": metadata, "spec": {"selectors": [expression]}})
        try:
            yield claims
        finally:
            for one in await kube.list(SLICES):
                if one["spec"]["driver"] == claims.driver:
                    await kube.delete(SLICES, one["metadata"]["name"])
            for one in await kube.list(PODS, claims.space):
                await claims.end(one["metadata"]["name"])
            with suppress(KubeError):
                await kube.delete(CLASSES, claims.driver)


async def test_what_is_asked_is_rounded_up_and_else_the_default(claims: Claims) -> None:
    asked = {
        "whole": ({"memory": "3Gi", "threads": "30"}, _amounts(3, 30)),
        "steps": ({"memory": "2500Mi", "threads": "31"}, _amounts(3, 35)),
        "least": ({"memory": "1Mi", "clients": "0"}, _amounts(1, 0, 1)),
    }
    await claims.offer(gpu("gpu0"))
    for name, (amounts, wanted) in asked.items():
        assert await claims.try_one(name, request(amounts)) == [("gpu0", wanted)], name
    await claims.offer(gpu("gpu0"), gpu("gpu1", 10), generation=2)
    assert await claims.try_one("default", request()) == [("gpu1", _amounts(10))]


async def test_a_share_has_an_id_and_is_of_the_first_device_with_room(claims: Claims) -> None:
    await claims.offer(gpu("gpu0"), gpu("gpu1"))
    found = [await claims.try_one(f"c{n}", request({"memory": "9Gi"})) for n in range(4)]
    assert [device for one in found for device, _amounts in one] == [
        "gpu0",
        "gpu0",
        "gpu1",
        "gpu1",
    ]
    results = [
        results_of(await claims.kube.get(CLAIMS, f"c{n}", claims.space))[0] for n in range(4)
    ]
    assert len({one["shareID"] for one in results}) == 4
    assert {(one["driver"], one["pool"], one["request"]) for one in results} == {
        (claims.driver, claims.world.node, "r0")
    }


async def test_what_does_not_fit_waits_and_gets_what_is_given_back(claims: Claims) -> None:
    await claims.offer(gpu("gpu0"))
    assert await claims.try_one("first", request({"memory": "20Gi"}))
    assert await claims.try_one("second", request({"memory": "3Gi"})) == []
    refused = await claims.kube.get(PODS, "second", claims.space)
    (why,) = (one for one in refused["status"]["conditions"] if one["type"] == "PodScheduled")
    assert why["reason"] == "Unschedulable"
    assert "cannot allocate all claims" in why["message"]
    await claims.end("first")
    await eventually(lambda: claims.gotten("second"), "what was given back is given again")
    assert not await claims.gotten("first")


async def test_taints_may_be_tolerated_and_only_whole_generations_count(claims: Claims) -> None:
    tolerations = [{"key": "example.com/sick", "operator": "Exists"}]
    await claims.offer(gpu("gpu0", taints=[TAINT]))
    assert await claims.try_one("brave", request({"memory": "1Gi"}, tolerations=tolerations))
    await claims.offer(gpu("gpu1"), generation=2, slices=2)
    assert await claims.try_one("early", request({"memory": "1Gi"})) == []
    await claims.offer(gpu("gpu2"), generation=2, slices=2)
    await eventually(lambda: claims.gotten("early"), "the pool is whole")


async def test_several_devices_of_one_claim_keep_its_constraints(claims: Claims) -> None:
    await claims.offer(
        gpu("gpu0", model="A30"), gpu("gpu1", model="H200"), gpu("gpu2", model="A30")
    )
    same = [
        {"matchAttribute": f"{claims.driver}/model"},
        {"distinctAttribute": f"{claims.driver}/uuid"},
    ]
    two = request({"memory": "2Gi"}, count=2)
    found = await claims.try_one("apart", two, constraints=same)
    assert [device for device, _amounts in found] == ["gpu0", "gpu2"]
    assert (
        await claims.try_one("three", request({"memory": "2Gi"}, count=3), constraints=same) == []
    )
    expression = f'device.attributes["{claims.driver}"].model == "H200"'
    chosen = request({"memory": "2Gi"}, selectors=[{"cel": {"expression": expression}}])
    assert [device for device, _amounts in await claims.try_one("model", chosen)] == ["gpu1"]


async def test_parameters_of_class_and_claim_are_in_the_allocation(claims: Claims) -> None:
    await claims.offer(gpu("gpu0"))
    opaque = {"driver": claims.driver, "parameters": {"threadCap": 60}}
    assert await claims.try_one(
        "capped", request(), config=[{"requests": ["r0"], "opaque": opaque}]
    )
    devices = (await claims.kube.get(CLAIMS, "capped", claims.space))["status"]["allocation"][
        "devices"
    ]
    assert devices["config"] == [{"source": "FromClaim", "requests": ["r0"], "opaque": opaque}]


async def test_a_claim_is_reserved_for_its_pods_and_goes_with_the_last(claims: Claims) -> None:
    await claims.offer(gpu("gpu0"))
    await claims.claim("ours", request({"memory": "4Gi"}))
    bound = [await claims.start(name, "ours") for name in ("left", "right")]
    claim = await claims.kube.get(CLAIMS, "ours", claims.space)
    consumers = [
        (one["resource"], one["name"], one["uid"]) for one in claim["status"]["reservedFor"]
    ]
    assert sorted(consumers) == [
        ("pods", one["metadata"]["name"], one["metadata"]["uid"]) for one in bound
    ]
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    await claims.kube.delete(CLAIMS, "ours", claims.space)
    await claims.end("left")
    assert await claims.gotten("ours")
    await claims.end("right")

    async def is_gone() -> bool:
        return not await claims.kube.list(CLAIMS, claims.space)

    await eventually(is_gone, "the claim is gone")


async def test_a_claim_from_a_template_belongs_to_its_pod(claims: Claims) -> None:
    await claims.offer(gpu("gpu0"))
    template = {
        "metadata": {"name": "share"},
        "spec": {"spec": claims.spec(request({"memory": "4Gi"}))},
    }
    await claims.kube.create(TEMPLATES, template, claims.space)
    await claims.start("train", resourceClaimTemplateName="share")

    async def bound() -> bool:
        return bool((await claims.kube.get(PODS, "train", claims.space))["spec"].get("nodeName"))

    await eventually(bound, "train has a node")
    named = (await claims.kube.get(PODS, "train", claims.space))["status"]["resourceClaimStatuses"]
    (made,) = await claims.kube.list(CLAIMS, claims.space)
    assert [(one["name"], one["resourceClaimName"]) for one in named] == [
        ("gpu", made["metadata"]["name"])
    ]
    assert made["metadata"]["name"].startswith("train-gpu-")
    assert [one["name"] for one in made["metadata"]["ownerReferences"]] == ["train"]
    assert _gotten(results_of(made)) == [("gpu0", _amounts(4))]


@pytest.mark.parametrize("seed", range(2))
async def test_random_claims_are_allocated_as_the_simulator_would(
    claims: Claims, seed: int
) -> None:
    random = Random(seed)
    devices = [gpu("gpu0"), gpu("gpu1", 10), gpu("gpu2", 40, taints=[TAINT]), gpu("gpu3", 22)]
    await claims.offer(*devices)
    living: list[str] = []
    for number in range(25):
        if living and random.random() < 0.3:
            ended = living.pop(random.randrange(len(living)))
            await claims.end(ended)
            await eventually(lambda ended=ended: _is_free(claims, ended), f"{ended} is free")
        name = f"c{number}"
        await claims.claim(
            name, *(_random_request(random) for _ in range(random.choice([1, 1, 1, 2])))
        )
        wanted = await _as_simulated(claims, name)
        await claims.start(name)
        assert await claims.gotten(name) == wanted, f"step {number}"
        if wanted:
            living.append(name)
        else:
            await claims.end(name)
            await claims.kube.delete(CLAIMS, name, claims.space)


async def _is_free(claims: Claims, name: str) -> bool:
    return not await claims.gotten(name)


def _random_request(random: Random) -> Object:
    amounts = {
        "memory": random.choice([f"{random.randint(1, 25)}Gi", f"{random.randint(1, 20000)}Mi"]),
        "threads": str(random.randint(0, 60)),
        "clients": str(random.randint(1, 12)),
    }
    asked = {name: amount for name, amount in amounts.items() if random.random() < 0.8}
    tolerations = [{"key": TAINT["key"], "operator": "Exists"}] if random.random() < 0.2 else []
    return request(asked, count=random.choice([1, 1, 1, 2])) | (
        {"tolerations": tolerations} if tolerations else {}
    )


async def _as_simulated(claims: Claims, name: str) -> Gotten:
    kube, used = claims.kube, ConsumedCapacity()
    for claim in await kube.list(CLAIMS, claims.space):
        for result in results_of(claim):
            used.add(result)
    node = await kube.get(NODES, claims.world.node)
    classes = {one["metadata"]["name"]: one for one in await kube.list(CLASSES)}
    slices = [one for one in await kube.list(SLICES) if one["spec"]["driver"] == claims.driver]
    wanted = await kube.get(CLAIMS, name, claims.space)
    here = node["metadata"]["name"]
    with suppress(CannotAllocate):
        found = allocated(wanted, here, list(offered(slices, here)), classes, used)
        return _gotten(found["devices"]["results"])
    return []
