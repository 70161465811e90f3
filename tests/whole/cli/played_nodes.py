"""Kubelets, control pods and agents of nodes that are drained and upgraded, played in one thread.

As on a real node: a pod that ends leaves the API and gives its grant back; a cordoned domain is
drained once nobody holds anything of it; a new control pod starts its domains anew; and the MPSNode
says so a moment later.
"""

import copy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mpsd.model.mpsnode import API
from mpsd.model.times import stamp
from mpsd.simulator.api_server.kinds import DAEMON_SETS, NAMESPACES, NODES, PODS, Object
from tests.cli.cluster_world import ClusterWorld
from tests.manifests.rendering import PLAIN, named
from tests.whole.machine.machine import eventually

_PAUSE_S = 0.03
NAMESPACE = "mpsd-system"
_RUNNING = {"phase": "Running"}
CONTROL_LABELS = {"app.kubernetes.io/name": "mpsd-control", "app.kubernetes.io/part-of": "mpsd"}


@dataclass
class PlayedNodes:
    """refused: by image, the reason of its domains, as a canary that fails gives it. silent: nodes
    whose agent has stopped. undying: how the names of pods begin that do not end. history: what
    happened, in its order.
    """

    world: ClusterWorld
    refused: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    undying: set[str] = field(default_factory=set)
    history: list[str] = field(default_factory=list)

    def play(self, stop: threading.Event) -> None:
        while not stop.wait(_PAUSE_S):
            self.world.api.do(self._tick)

    def _tick(self) -> None:
        """In the API server's own thread, so that nobody comes between."""
        objects = self.world.api.cluster.objects
        for key, pod in objects.store.all(PODS):
            if pod["metadata"].get("deletionTimestamp"):
                if pod["metadata"]["name"].startswith(tuple(self.undying)):
                    continue
                self.history.append(f"{pod['spec']['nodeName']}: {_called(pod)} ended")
                objects.remove(PODS, key)
            else:
                objects.change(key, self._kubelet)
        kind = objects.kinds.named(API, "MPSNode")
        pods = [pod for _key, pod in objects.store.all(PODS)]
        for key, thing in objects.store.all(kind) if kind else ():
            if key.name not in self.silent and thing.get("status"):
                objects.change(key, lambda changed: self._agent(changed, pods))

    def _kubelet(self, pod: Object) -> None:
        if pod["status"]["phase"] != "Running":
            began = {"running": {"startedAt": stamp(time.time())}}
            running = {"name": "main", "ready": True, "state": began}
            ready = [{"type": "Ready", "status": "True"}]
            pod["status"] |= _RUNNING | {"conditions": ready, "containerStatuses": [running]}

    def _agent(self, thing: Object, pods: list[Object]) -> None:
        name, status = thing["metadata"]["name"], thing["status"]
        here = [pod for pod in pods if pod["spec"].get("nodeName") == name]
        controls = [
            pod
            for pod in here
            if (pod["metadata"].get("labels") or {}).items() >= CONTROL_LABELS.items()
        ]
        uids = {pod["metadata"]["uid"] for pod in here}
        status["grants"] = [
            grant for grant in status.get("grants", ()) if not uids.isdisjoint(_holders(grant))
        ]
        cordoned = set(thing["spec"].get("cordoned", ()))
        held = {uuid for grant in status["grants"] for uuid in grant["gpus"]}
        for gpu in status["gpus"]:
            gpu["clients"] = int(gpu["uuid"] in held)
        for domain in status["domains"]:
            drains, used = (
                cordoned.intersection(("all", *domain["gpus"])),
                held.intersection(domain["gpus"]),
            )
            state = ("draining" if used else "drained") if drains else "ready"
            self._enter(name, domain, state, controls)
        status["reportedAt"] = stamp(time.time())

    def _enter(self, node: str, domain: Object, state: str, controls: list[Object]) -> None:
        """A domain whose control pod is another one than before begins anew."""
        reason = ""
        for control in controls:
            image = control["spec"]["containers"][0]["image"]
            (container,) = control["status"].get("containerStatuses") or [{"state": {}}]
            began = (container["state"].get("running") or {}).get("startedAt")
            if began is None:
                return  # nothing writes the domains' records
            if image in self.refused:
                state, reason = "refused", self.refused[image]
            if domain["since"] < began:
                domain |= {"since": began, "state": "starting"}
        if domain["state"] != state:
            self.history.append(f"{node}: {domain['name']} {state}")
            domain |= {"state": state, "since": stamp(time.time()), "reason": reason}


def _holders(grant: Object) -> list[str]:
    return [one["uid"] for one in (grant, *grant.get("sharedWith", ()))]


def _called(pod: Object) -> str:
    return (
        "control pod"
        if "mps-control" in pod["metadata"]["name"]
        else f"pod {pod['metadata']['name']}"
    )


@contextmanager
def played_nodes(world: ClusterWorld, counted_s: float = 0.0) -> Iterator[PlayedNodes]:
    """counted_s: as `hurry` of the world has it; these kubelets tell of their devices at once."""
    nodes, stop = PlayedNodes(world), threading.Event()
    world.hurry(counted_s)
    thread = threading.Thread(target=nodes.play, args=(stop,))
    thread.start()
    try:
        yield nodes
    finally:
        stop.set()
        thread.join(10)


def run_control(world: ClusterWorld, image: str, *nodes: str) -> None:
    """Until its pods run on these nodes."""

    def apply() -> None:
        objects = world.api.cluster.objects
        objects.create(NAMESPACES, "", {"metadata": {"name": NAMESPACE}})
        shipped = copy.deepcopy(named(PLAIN, "DaemonSet", "mps-control-daemon"))
        shipped["spec"]["template"]["spec"]["containers"][0]["image"] = image
        objects.create(DAEMON_SETS, NAMESPACE, shipped)

    world.api.do(apply)
    eventually(
        lambda: control_images(world) == dict.fromkeys(nodes, image), "control pods everywhere"
    )


def control_images(world: ClusterWorld) -> dict[str, str]:
    """By node, of the control pods that run."""
    pods = [pod for pod in world.api.all(PODS, NAMESPACE) if pod["status"]["phase"] == "Running"]
    return {pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"] for pod in pods}


def run_pods(world: ClusterWorld, *nodes: str, **metadata: Any) -> dict[str, str]:
    """The Nodes, and the pods of the grants that their MPSNodes tell of; uids by name. metadata:
    more of it, for all these pods."""

    def make() -> dict[str, str]:
        objects, uids = world.api.cluster.objects, {}
        kind = objects.kinds.named(API, "MPSNode")
        assert kind
        if not any(key.name == "research" for key, _thing in objects.store.all(NAMESPACES)):
            objects.create(NAMESPACES, "", {"metadata": {"name": "research"}})
        for node in nodes:
            labels = {"ack.node.gpu.schedule": "mps", "kubernetes.io/hostname": node}
            objects.create(NODES, "", {"metadata": {"name": node, "labels": labels}})
            thing = copy.deepcopy(objects.found(kind, "", node))
            for grant in thing["status"]["grants"]:
                namespace, name = grant["pod"].split("/")
                spec = {"nodeName": node, "containers": [{"name": "main", "image": "train"}]}
                pod = {
                    "metadata": {"name": name, "labels": {"app": name}, **metadata},
                    "spec": spec,
                }
                made = objects.create(PODS, namespace, pod)
                objects.change(
                    objects.key(PODS, namespace, name),
                    lambda changed: changed.update(status=dict(_RUNNING)),
                )
                uids[grant["pod"]] = grant["uid"] = made["metadata"]["uid"]
            objects.change(
                objects.key(kind, "", node),
                lambda changed, to=thing: changed.update(status=to["status"]),
            )
        return uids

    return world.api.do(make)
