"""A cluster with mpsd on one node, in which nothing is wrong, for tests of `kubectl mps doctor`
that break it.

Everything that is installed is what the chart makes; what controllers and kubelets would add is
written here.
"""

import base64
import time
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import mpsd
from mpsd.model.times import stamp
from mpsd.platform.certificates import new_authority
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, PatchKind, Resource
from mpsd.platform.rules.certificates import ANNOTATION, Validity, annotation
from tests.cli.cluster_world import ClusterWorld
from tests.cli.gpu_cluster import gpu_pod, machine, mpsnode
from tests.manifests.rendering import rendered

Object = dict[str, Any]
SYSTEM, NODE = "mpsd-system", "gpu-a1"
KINDS = {
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    *("DaemonSet", "Deployment", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
}
IMAGE = "registry.example/mpsd:1"
ENDPOINTS = Resource("v1", "endpoints")
DAEMON_SETS, DEPLOYMENTS = Resource("apps/v1", "daemonsets"), Resource("apps/v1", "deployments")
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
_HOOKS = "admissionregistration.k8s.io/v1"
VALIDATING = Resource(_HOOKS, "validatingwebhookconfigurations")
MUTATING = Resource(_HOOKS, "mutatingwebhookconfigurations")
COMPONENTS = ("mpsd-agent", "mpsd-control", "mpsd-webhook", "mpsd-scheduler")


def bundle(ends_in_s: float = 3650 * 86400.0, name: str = "mpsd") -> str:
    """A new authority, as a caBundle names it."""
    since = time.time() + min(0.0, ends_in_s) - 86400
    return base64.b64encode(
        new_authority(name, since, time.time() + ends_in_s - since).certificate
    ).decode()


def told(days_left: float, life_days: float = 30) -> dict[str, str]:
    """Of the certificate that the webhook serves, by the webhook."""
    ends_at = time.time() + days_left * 86400
    return {ANNOTATION: annotation(Validity(ends_at - life_days * 86400, ends_at))}


def own_pod(component: str, **more: Any) -> Object:
    labels = {"app.kubernetes.io/name": component, "app.kubernetes.io/part-of": "mpsd"}
    spec = {"nodeName": NODE, "containers": [{"name": component, "image": IMAGE}]}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": component, "restartCount": 0, "state": {"running": {}}}],
    }
    return {
        "metadata": {"name": f"{component}-x", "labels": labels},
        "spec": spec,
        "status": status | more,
    }


@cache
def _shipped() -> list[Object]:
    """What is installed on a Kubernetes before 1.30, which the simulated one is at first."""
    return [thing for thing in rendered("scheduler@29") if thing["kind"] in KINDS]


class DoctoredCluster:
    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self._bundle = bundle()
        world.ask(self._begin)
        self.told()

    async def _begin(self, kube: Kube) -> None:
        for thing in deepcopy(_shipped()):
            await self._apply(kube, thing)
        for component in COMPONENTS:
            await _create(kube, PODS, own_pod(component), SYSTEM)
        for name in ("mpsd-webhook", "mpsd-scheduler"):
            ready = {"status": {"readyReplicas": 2}}
            await kube.patch(DEPLOYMENTS, name, ready, PatchKind.MERGE, SYSTEM, "status")
        served = {
            "metadata": {"name": "mpsd-webhook"},
            "subsets": [{"addresses": [{"ip": "10.0.0.1"}]}],
        }
        await _create(kube, ENDPOINTS, served, SYSTEM)
        is_ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await _create(kube, NODES, machine(NODE) | is_ready)
        await _create(kube, MPS_NODES, self.node())

    def node(self) -> Object:
        thing = mpsnode(NODE, 24, 24)
        status = thing["status"]
        status["version"] = mpsd.__version__
        for domain in status["domains"]:
            domain["version"] = mpsd.__version__
        now = stamp(time.time())
        condition = {
            "type": "MPSReady",
            "status": "True",
            "reason": "AllServe",
            "message": "2 of 2 domains serve",
        }
        status["conditions"] = [condition | {"lastTransitionTime": now}]
        return thing

    def told(self, behind_s: float = 0.0, **status: Any) -> None:
        """The node tells now, by a clock that is so far behind."""
        now = time.time()
        written = {
            "manager": "mpsd",
            "operation": "Update",
            "time": stamp(now),
            "fieldsV1": {"f:status": {}},
        }
        self.change(MPS_NODES, NODE, {"metadata": {"managedFields": [written]}})
        self.change(
            MPS_NODES,
            NODE,
            {"status": {"reportedAt": stamp(now - behind_s), **status}},
            "",
            "status",
        )

    def create(self, resource: Resource, value: Object, namespace: str = "") -> None:
        self.world.ask(lambda kube: _create(kube, resource, value, namespace))

    def change(
        self,
        resource: Resource,
        name: str,
        patch: Object,
        namespace: str = "",
        subresource: str = "",
    ) -> None:
        self.world.ask(
            lambda kube: kube.patch(resource, name, patch, PatchKind.MERGE, namespace, subresource)
        )

    def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        self.world.ask(lambda kube: kube.delete(resource, name, namespace))

    def of_pod(self, component: str, **status: Any) -> None:
        self.change(PODS, f"{component}-x", {"status": status}, SYSTEM, "status")

    def hooks(self, change: Callable[[Object], None], *resources: Resource) -> None:
        for resource in resources or (VALIDATING, MUTATING):
            thing = self.world.ask(
                lambda kube, resource=resource: kube.get(resource, "mpsd-webhook")
            )
            for webhook in thing["webhooks"]:
                change(webhook)
            self.change(resource, "mpsd-webhook", {"webhooks": thing["webhooks"]})

    async def _apply(self, kube: Kube, thing: Object) -> None:
        group = thing["apiVersion"]
        if thing["kind"] in {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}:
            thing["metadata"]["annotations"] = told(20)
            # reached by nobody here, so that nothing is asked of it
            for webhook in thing["webhooks"]:
                webhook["clientConfig"]["caBundle"] = self._bundle
                webhook["rules"] = []
        # its pods are written here, not made by the simulated controller
        if thing["kind"] == "DaemonSet":
            thing["spec"]["template"]["spec"]["nodeSelector"] = {"no": "node"}
        plural = {"Namespace": "namespaces"}.get(thing["kind"], thing["kind"].lower() + "s")
        await _create(kube, Resource(group, plural), thing, thing["metadata"].get("namespace", ""))


async def _create(kube: Kube, resource: Resource, value: Object, namespace: str = "") -> None:
    await kube.create(resource, value, namespace)
    if "status" in value:
        patch, name = {"status": value["status"]}, value["metadata"]["name"]
        await kube.patch(resource, name, patch, PatchKind.MERGE, namespace, "status")


def a_gpu_pod(**spec: Any) -> Object:
    """That runs as admission wants it."""
    safe = {"hostIPC": True, "securityContext": {"runAsUser": 1000}}
    annotations = {"mpsd.io/gpu": f"GPU-{NODE}-0"}
    return gpu_pod("train-0", 4, annotations=annotations, **{"nodeName": NODE, **safe, **spec})
