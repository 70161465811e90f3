"""Claims as the scheduler of Kubernetes 1.36.2 allocated them, for tests of the DRA driver."""

from copy import deepcopy
from typing import Any

from mpsd.kubelet.dra.rules.claims import ClaimNode, PreparedClaim, read_claim
from mpsd.kubelet.dra.rules.slices import device_name
from mpsd.model.domain import Domain
from tests.model.worlds import GPUS, POLICY, UUIDS

Object = dict[str, Any]
DRIVER, NODE = "gpu.mpsd.io", "node1"
APART = ClaimNode(
    DRIVER, NODE, GPUS, (Domain("gpu0", UUIDS[:1]), Domain("gpu1", UUIDS[1:])), "a-boot"
)
TOGETHER = ClaimNode(DRIVER, NODE, GPUS, (Domain("gpu0-1", UUIDS),), "a-boot")
UID = "uid-of-share"


def result(
    gpu: int = 0, memory: str = "7Gi", threads: str = "30", clients: str = "2", **fields: Any
) -> Object:
    return {
        "request": "gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": device_name(GPUS[gpu]),
        "shareID": f"share-{gpu}",
        "consumedCapacity": {"memory": memory, "threads": threads, "clients": clients},
        **fields,
    }


def config(parameters: object, source: str = "FromClaim", driver: str = DRIVER) -> Object:
    return {
        "requests": ["gpu"],
        "source": source,
        "opaque": {"driver": driver, "parameters": parameters},
    }


def parameters(**fields: object) -> Object:
    return {"apiVersion": "mpsd.io/v1alpha1", "kind": "MPSConfig", **fields}


def claim_object(
    *results: Object, configs: tuple[Object, ...] = (), name: str = "share", pods: int = 1
) -> Object:
    reserved = [
        {"resource": "pods", "name": f"{name}-{n}", "uid": f"uid-of-{name}-{n}"}
        for n in range(pods)
    ]
    devices: Object = {"results": [deepcopy(each) for each in results or (result(),)]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-of-{name}"},
        "spec": {},
        "status": {
            "allocation": {"devices": devices | ({"config": [*configs]} if configs else {})},
            "reservedFor": reserved,
        },
    }


def prepared(*results: Object, node: ClaimNode = APART, **fields: Any) -> PreparedClaim:
    thing = claim_object(*results, **fields)
    return read_claim(thing, thing["metadata"]["uid"], node, POLICY, 1.0)
