"""What Kubernetes does, asked of the simulated API server, and of a real one with `--kubeconfig
FILE`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mpsd.platform.kube import PODS, Conflict, Kube, KubeError, Object, PatchKind, Resource
from mpsd.platform.kube_access import open_kube
from tests.simulated_api import simulated_api

NAMESPACES, NODES = Resource("v1", "namespaces"), Resource("v1", "nodes")
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class World:
    namespace: str
    node: str
    is_real: bool


@pytest.fixture(scope="session")
def kubeconfig(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    real = pytestconfig.getoption("--kubeconfig")
    if real:
        yield real.absolute()
        return
    with simulated_api() as api:
        yield api.kubeconfig(tmp_path_factory.mktemp("api"))


@pytest.fixture
def kube(kubeconfig: Path) -> AbstractAsyncContextManager[Kube]:
    return connected(kubeconfig)


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Kube]:
    kube = open_kube(kubeconfig)
    try:
        yield kube
    finally:
        kube.close()


@pytest.fixture
def world(kubeconfig: Path, pytestconfig: pytest.Config) -> AbstractAsyncContextManager[World]:
    return _world(kubeconfig, bool(pytestconfig.getoption("--kubeconfig")))


@asynccontextmanager
async def _world(kubeconfig: Path, is_real: bool) -> AsyncIterator[World]:
    mark = uuid4().hex[:8]
    made = World(f"contract-{mark}", f"contract-node-{mark}", is_real)
    async with connected(kubeconfig) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": made.namespace}})
        await eventually(lambda: ready_for_pods(kube, made), "a namespace that takes pods")
        try:
            yield made
        finally:
            await kube.delete(NAMESPACES, made.namespace)
            for resource in (NODES, Resource("mpsd.io/v1alpha1", "mpsnodes")):
                with suppress(KubeError):  # most tests make neither
                    await kube.delete(resource, made.node)


async def ready_for_pods(kube: Kube, world: World) -> bool:
    """A real cluster takes no pods before the namespace has a service account, and that a token: so
    one is tried."""
    if not world.is_real:
        return True
    try:
        await kube.create(PODS, pod("probe"), world.namespace)
    except KubeError:
        return False
    await kube.delete(PODS, "probe", world.namespace)
    return True


async def eventually(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            while not (found := await look()):  # noqa: ASYNC110 - what is waited for is behind an API
                await asyncio.sleep(0.02)
            return found
    except TimeoutError:
        raise AssertionError(f"not within {_DEADLINE_S:g} s: {what}") from None


async def make_node(kube: Kube, world: World, **devices: int) -> None:
    """A node that is never short of anything but the devices; only pods that tolerate everything
    stay on it."""
    await kube.create(NODES, {"metadata": {"name": world.node, "labels": {"contract": world.node}}})
    amounts = {name.replace("__", "/"): str(amount) for name, amount in devices.items()}
    amounts |= {"cpu": "8", "memory": "16Gi", "pods": "110"}
    status = {
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
    }
    await kube.patch(NODES, world.node, status, PatchKind.STRATEGIC, subresource="status")


def pod(name: str, node: str = "", **limits: str) -> Object:
    """A pod of one container that tolerates everything. node: the one that it is bound to from the
    start."""
    resources = (
        {"limits": {key.replace("__", "/"): amount for key, amount in limits.items()}}
        if limits
        else {}
    )
    spec: Object = {
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
    }
    spec |= {"nodeName": node} if node else {}
    # the node of a whole cluster would run it
    spec |= {} if limits else {"schedulerName": "nobody"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


async def define(kube: Kube, definition: Object) -> None:
    """Unless it is known; waits until it is served."""
    with suppress(Conflict):
        await kube.create(CRDS, definition)
    resource = Resource(
        f"{definition['spec']['group']}/{definition['spec']['versions'][0]['name']}",
        definition["spec"]["names"]["plural"],
    )

    async def is_served() -> bool:
        try:
            await kube.list(resource)
        except KubeError:
            return False
        return True

    await eventually(is_served, f"{resource.plural} served")
