"""`kubectl mps uninstall`: refused while anybody uses a GPU; then all that is mpsd's goes in order,
and no more."""

import io
from collections.abc import Iterator

import pytest

from mpsd.platform.kube import NODES, Kube, PatchKind, deletable_kinds
from mpsd.simulator.api_server.kinds import Object
from mpsd.simulator.api_server.objects import Objects
from tests.cli.cluster_world import ClusterWorld
from tests.manifests.rendering import rendered
from tests.whole.cli.played_nodes import PlayedNodes, control_images, played_nodes, run_pods
from tests.whole.machine.machine import eventually

PLACE = "Namespace mpsd-system"  # which stays


def make(objects: Objects, thing: Object) -> None:
    kind = objects.kinds.named(thing["apiVersion"], thing["kind"])
    assert kind, thing["kind"]
    objects.create(kind, thing["metadata"].get("namespace", ""), thing)


@pytest.fixture
def nodes(bare_world: ClusterWorld) -> Iterator[PlayedNodes]:
    """A cluster with everything of manifests/install.yaml, and gpu-a1 with three pods on it."""
    world = bare_world

    def apply() -> None:
        order = {"Namespace": 0, "CustomResourceDefinition": 1}
        for thing in sorted(rendered(""), key=lambda one: order.get(one["kind"], 2)):
            make(world.api.cluster.objects, thing)

    world.api.do(apply)
    world.put("gpu-a1")
    run_pods(world, "gpu-a1")
    with played_nodes(world) as played:
        eventually(lambda: "gpu-a1" in control_images(world), "a control pod on the node")
        yield played


def ours_left(world: ClusterWorld) -> list[str]:
    async def questions(kube: Kube) -> list[str]:
        kinds, _unseen = await deletable_kinds(kube)
        found = [
            await kube.list(
                kind.resource, query={"labelSelector": "app.kubernetes.io/part-of=mpsd"}
            )
            for kind in kinds
        ]
        return [
            f"{kind.name} {one['metadata']['name']}"
            for kind, some in zip(kinds, found, strict=True)
            for one in some
        ]

    return world.ask(questions)


def test_it_is_refused_while_pods_hold_gpus_and_names_them(
    bare_world: ClusterWorld, nodes: PlayedNodes
) -> None:
    before = ours_left(bare_world)
    for words in (("--yes",), ("--dry-run",)):
        said = bare_world.kubectl_mps("uninstall", *words)
        assert said.code == 1
        assert "  gpu-a1: pod default/train-0 (12 GiB of gpu0)\n" in said.errors
    unasked = bare_world.kubectl_mps("uninstall", "--force")
    assert (unasked.code, "--yes: is required without a terminal" in unasked.errors) == (2, True)
    assert ours_left(bare_world) == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_asks_and_takes_nothing_but_yes_for_a_yes(
    bare_world: ClusterWorld, nodes: PlayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ours_left(bare_world)
    for answer in ("", "yes please\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        said = bare_world.kubectl_mps("uninstall", "--force")
        assert said.code == 1
        assert f"Delete these {len(rendered('')) - 1} objects? [y/N] " in said.errors
    assert ours_left(bare_world) == before
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert bare_world.kubectl_mps("uninstall", "--force").code == 0
    assert ours_left(bare_world) == [PLACE]


def test_everything_goes_in_order_once_nobody_uses_it(
    bare_world: ClusterWorld, nodes: PlayedNodes
) -> None:
    world = bare_world
    assert world.kubectl_mps("drain", "gpu-a1", "--evict").code == 0
    labels = {"mpsd.io/gpu.count": "2", "mpsd.io/sharing": "mps", "team": "a"}
    world.ask(
        lambda kube: kube.patch(NODES, "gpu-a1", {"metadata": {"labels": labels}}, PatchKind.MERGE)
    )
    said = world.kubectl_mps("uninstall", "--yes")
    assert said.code == 0, said.errors
    lines = said.output.splitlines()
    unlabelled = "removed mpsd.io/gpu.count, mpsd.io/sharing from Node gpu-a1"
    at = lines.index("deleted DaemonSet mpsd-system/mpsd-agent"), lines.index(unlabelled)
    assert at[0] < at[1] < lines.index("deleted DaemonSet mpsd-system/mps-control-daemon")
    left = world.ask(lambda kube: kube.get(NODES, "gpu-a1"))["metadata"]["labels"]
    assert (left["team"], [name for name in left if name.startswith("mpsd.io/")]) == ("a", [])
    deleted = [line for line in said.output.splitlines() if line.startswith("deleted ")]
    assert deleted[-1].split()[1] == "CustomResourceDefinition"
    assert len(deleted) == len(rendered("")) - 1
    assert ours_left(world) == [PLACE]
    again = world.kubectl_mps("uninstall")
    assert (again.code, again.errors) == (0, "")


def test_pods_that_do_not_go_stop_it_before_what_they_need_goes(
    bare_world: ClusterWorld, nodes: PlayedNodes
) -> None:
    world = bare_world
    nodes.undying.add("mpsd-agent")
    said = world.kubectl_mps("uninstall", "--force", "--yes", "--timeout", "0.3s")
    assert said.code == 1
    assert (
        "kubectl mps uninstall: still there after 0.3 s: pod mpsd-system/mpsd-agent-" in said.errors
    )
    left = ours_left(world)
    assert {"DaemonSet mps-control-daemon", "ClusterRole mpsd-agent"} <= {*left}
    assert "MutatingWebhookConfiguration mpsd-webhook" not in left
    nodes.undying.clear()
    assert world.kubectl_mps("uninstall", "--force", "--yes").code == 0
    assert ours_left(world) == [PLACE]
