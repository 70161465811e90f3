"""What happens by itself: pods find a node, Jobs make pods."""

import pytest

from mpsd.platform.kube import Conflict, Kube, Object, PatchKind, Resource
from tests.kube_contract.conftest import World, eventually, make_node, pod

PODS, JOBS = Resource("v1", "pods"), Resource("batch/v1", "jobs")
DAEMON_SETS, REVISIONS = (
    Resource("apps/v1", "daemonsets"),
    Resource("apps/v1", "controllerrevisions"),
)


def on_our_node(world: World, thing: Object) -> Object:
    thing["spec"]["nodeSelector"] = {"contract": world.node}
    return thing


def condition(pod: Object, kind: str) -> Object | None:
    return next((one for one in pod["status"].get("conditions") or () if one["type"] == kind), None)


async def test_a_pod_is_bound_where_there_are_devices_and_else_waits(
    world: World, kube: Kube
) -> None:
    await make_node(kube, world, example_com__gpu=0, **{"example.com__gpu-mem": 10})

    async def create(name: str, amount: str) -> None:
        thing = on_our_node(world, pod(name, **{"example.com__gpu-mem": amount}))
        await kube.create(PODS, thing, world.namespace)

    async def node_of(name: str) -> str:
        return str((await kube.get(PODS, name, world.namespace))["spec"].get("nodeName", ""))

    async def says_why() -> Object | None:
        found = condition(await kube.get(PODS, "second", world.namespace), "PodScheduled")
        return (
            found
            if found and "Insufficient example.com/gpu-mem" in found.get("message", "")
            else None
        )

    # One after the other: pods that come before a scheduler knows the node are tried in no
    # order.
    await create("first", "7")
    assert await eventually(lambda: node_of("first"), "the first pod bound") == world.node
    await create("second", "7")
    found = await eventually(says_why, "the second pod told why it waits")
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    await create("third", "3")
    assert await eventually(lambda: node_of("third"), "the third pod bound") == world.node
    done = {"status": {"phase": "Succeeded"}}
    await kube.patch(PODS, "first", done, PatchKind.STRATEGIC, world.namespace, "status")
    assert (
        await eventually(lambda: node_of("second"), "the second pod bound in its place")
        == world.node
    )


async def test_a_pod_is_bound_once(world: World, kube: Kube) -> None:
    await make_node(kube, world)
    await kube.create(PODS, pod("a", world.node), world.namespace)
    target = {"kind": "Node", "name": "another"}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": target,
    }
    with pytest.raises(Conflict, match="already assigned"):
        await kube.create(PODS, binding, world.namespace, "binding")


def job(name: str, completions: int, parallelism: int, node_selector: dict[str, str]) -> Object:
    spec = pod("")["spec"] | {"restartPolicy": "Never", "nodeSelector": node_selector}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": completions,
            "parallelism": parallelism,
            "template": {"spec": spec},
        },
    }


async def test_a_job_makes_pods_until_enough_have_succeeded(world: World, kube: Kube) -> None:
    await kube.create(JOBS, job("train", 2, 1, {"contract": "nowhere"}), world.namespace)
    ended: set[str] = set()

    async def running() -> list[Object]:
        pods = await kube.list(PODS, world.namespace, {"labelSelector": "job-name=train"})
        return [one for one in pods if one["metadata"]["name"] not in ended]

    for _ in range(2):
        (one,) = await eventually(running, "a pod of the Job")
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "train", True)
        ended.add(one["metadata"]["name"])
        status = {"status": {"phase": "Succeeded"}}
        await kube.patch(
            PODS,
            one["metadata"]["name"],
            status,
            PatchKind.STRATEGIC,
            world.namespace,
            "status",
        )

    async def is_complete() -> bool:
        found = await kube.get(JOBS, "train", world.namespace)
        conditions = found["status"].get("conditions") or ()
        return any((one["type"], one["status"]) == ("Complete", "True") for one in conditions)

    await eventually(is_complete, "the Job complete")
    assert (await kube.get(JOBS, "train", world.namespace))["status"]["succeeded"] == 2


def daemon_set(world: World) -> Object:
    # no kubelet ends them here
    spec = on_our_node(world, pod(""))["spec"] | {"terminationGracePeriodSeconds": 0}
    del spec["schedulerName"]
    labels = {"contract": "daemon"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "daemon"},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def test_a_daemon_sets_pod_is_replaced_by_the_newest_revision_once_it_ends(
    world: World, kube: Kube
) -> None:
    hash_label, selected = "controller-revision-hash", {"labelSelector": "contract=daemon"}
    await make_node(kube, world)
    await kube.create(DAEMON_SETS, daemon_set(world), world.namespace)

    async def on_the_node() -> Object | None:
        pods = await kube.list(PODS, world.namespace, selected)
        return next((one for one in pods if one["spec"].get("nodeName") == world.node), None)

    async def newest() -> Object:
        revisions = await kube.list(REVISIONS, world.namespace, selected)
        return max(revisions, key=lambda one: int(one["revision"]))

    old = await eventually(on_the_node, "a pod on the node")
    (owner,) = old["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("DaemonSet", "daemon", True)
    first = await newest()
    assert first["metadata"]["labels"][hash_label] == old["metadata"]["labels"][hash_label]
    assert first["metadata"]["ownerReferences"][0]["uid"] == owner["uid"]
    image = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "newer"}]}}}}
    changed = await kube.patch(DAEMON_SETS, "daemon", image, PatchKind.STRATEGIC, world.namespace)

    async def is_observed() -> bool:
        status = (await kube.get(DAEMON_SETS, "daemon", world.namespace))["status"]
        return int(status["observedGeneration"]) >= changed["metadata"]["generation"]

    await eventually(is_observed, "the change observed")
    second = await newest()
    assert int(second["revision"]) > int(first["revision"])
    kept = await on_the_node()
    assert kept
    assert kept["metadata"]["uid"] == old["metadata"]["uid"]
    await kube.delete(PODS, old["metadata"]["name"], world.namespace, uid=old["metadata"]["uid"])
    new = await eventually(on_the_node, "the pod that replaces it")
    assert new["metadata"]["labels"][hash_label] == second["metadata"]["labels"][hash_label]
    assert new["spec"]["containers"][0]["image"] == "newer"
