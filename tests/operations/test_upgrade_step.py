"""The steps of an upgrade: decided by what is seen alone, and nobody loses a GPU or a cordon."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import after_is
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.times import seconds, stamp
from mpsd.operations.lifecycle.rules.upgrade import (
    ANNOTATION,
    ControlPod,
    ControlSet,
    Decision,
    Standing,
    UpgradeStep,
    control_pods,
    how_it_stands,
    is_due,
    left_to_others,
    next_step,
    plan,
    pod_selector,
    read_annotation,
    read_control_set,
)
from mpsd.status.rules.cordon import cordon_change, merge_patch
from tests.mpsnodes import NOW, mpsnode

CONTROL = ControlSet("mpsd-system", "control", "ds", "mpsd:2", "OnDelete", "r2", "")
OLD = ControlPod("control-1", "uid-1", "gpu-a2", "r1", "mpsd:1", True, False, NOW - 90_000.0, "")
NEW = ControlPod("control-2", "uid-2", "gpu-a2", "r2", "mpsd:2", True, False, NOW + 10.0, "")


class Node:
    """gpu-a2 of tests/data as its agent and its control pod would keep it: four GPUs, the last two
    in one domain."""

    def __init__(self, cordoned: set[str], held: set[str]) -> None:
        self.thing: Any = copy.deepcopy(mpsnode("gpu-a2"))
        self.uuids = [gpu["uuid"] for gpu in self.thing["status"]["gpus"]]
        self.thing["spec"]["cordoned"] = sorted(
            self.uuids[int(label)] if label != "all" else label for label in cordoned
        )
        self.held = {self.uuids[int(label)] for label in held}
        self.pod: ControlPod | None = OLD
        self.live()

    def live(self, state: str = "") -> None:
        """What the node tells next. state: of its domains, where it is not the usual one."""
        status, cordoned = self.thing["status"], set(self.thing["spec"]["cordoned"])
        status["grants"] = [
            {"pod": f"default/{uuid}", "uid": uuid, "gpus": [uuid]} for uuid in sorted(self.held)
        ]
        for gpu in status["gpus"]:
            gpu["clients"] = int(gpu["uuid"] in self.held)
        for domain in status["domains"]:
            drains, used = (
                cordoned.intersection(("all", *domain["gpus"])),
                self.held.intersection(domain["gpus"]),
            )
            usual = ("draining" if used else "drained") if drains else "ready"
            since = stamp(self.pod.started_at or NOW) if self.pod else domain["since"]
            domain |= {"state": state or usual, "since": since}

    def seen(self) -> Standing:
        return Standing(read_mpsnode(self.thing, NOW), self.pod, "r2", read_annotation(self.thing))

    def decided(self) -> Decision:
        return next_step(self.seen())

    def merge(self, patch: dict[str, Any]) -> None:
        annotations = self.thing["metadata"].setdefault("annotations", {})
        for name, value in patch["metadata"].get("annotations", {}).items():
            if value is None:
                annotations.pop(name, None)
            else:
                annotations[name] = value
        self.thing["spec"] = copy.deepcopy(patch["spec"])

    def do(self, decided: Decision) -> None:
        """What an upgrade does, and what the node makes of it."""
        assert not decided.refusal
        if decided.patch:
            self.merge(decided.patch)
        elif decided.step is UpgradeStep.DRAIN:
            self.held.pop()
        elif decided.step is UpgradeStep.REPLACE:
            assert not self.held, "a program would lose its GPU"
            assert {domain["state"] for domain in self.thing["status"]["domains"]} == {"drained"}
            self.pod = None
        elif self.pod is None:
            self.pod = replace(NEW, ready=False, started_at=None)
        elif self.pod != OLD:
            self.pod = NEW
        self.live()

    def cordon(self, labels: list[str], *, cordon: bool) -> None:
        """Somebody else's `kubectl mps cordon`."""
        change = cordon_change(self.seen().node, labels, cordon=cordon)
        annotation = read_annotation(self.thing)
        self.merge(merge_patch(change, "7"))
        if annotation is not None:
            self.thing["metadata"]["annotations"][ANNOTATION] = left_to_others(
                annotation, change.gpus
            )
        self.live()


labels = st.sampled_from(["0", "1", "2", "3"])


@given(
    st.sets(labels | st.just("all"), max_size=3),
    st.sets(labels),
    st.lists(labels, max_size=2),
    st.integers(0, 9),
)
def test_cordons_are_as_they_were_at_the_end_and_nobody_lost_a_gpu(
    cordoned: set[str], held: set[str], meanwhile: list[str], at: int
) -> None:
    node = Node(cordoned, held)
    wanted = set(node.thing["spec"]["cordoned"])
    for turn in range(30):
        if turn == at and meanwhile:
            node.cordon([f"gpu{label}" for label in meanwhile], cordon=True)
            wanted |= set() if "all" in wanted else {node.uuids[int(label)] for label in meanwhile}
        decided = node.decided()
        if decided.step is UpgradeStep.DONE and turn > at:
            break
        node.do(decided)
    assert node.decided().step is UpgradeStep.DONE
    assert node.pod == NEW
    assert set(node.thing["spec"]["cordoned"]) == wanted
    assert read_annotation(node.thing) is None


def test_a_gpu_that_is_put_back_meanwhile_is_not_cordoned_again() -> None:
    node = Node(set(), set())
    while node.pod != NEW:
        node.do(node.decided())
    node.cordon(["gpu1"], cordon=False)
    while (decided := node.decided()).step is not UpgradeStep.DONE:
        assert not decided.cordons
        node.do(decided)
    assert node.thing["spec"]["cordoned"] == []


def walked_to(step: UpgradeStep, *cordoned: str) -> Node:
    """A node where this step is to be done, with nothing to wait for."""
    node = Node(set(cordoned), {"0"})
    while (found := node.decided()).step is not step or found.cordons:
        node.do(found)
    return node


@pytest.mark.parametrize("state", ["starting", "down", "draining"])
def test_nothing_is_put_back_before_every_domain_has_come_up(state: str) -> None:
    node = walked_to(UpgradeStep.UNDRAIN)
    node.live(state)
    decided = node.decided()
    assert (decided.step, decided.patch) == (UpgradeStep.START, None)
    assert f"gpu0 is {after_is(state)}" in decided.why


def test_what_a_node_told_of_its_former_domains_proves_nothing() -> None:
    node = walked_to(UpgradeStep.UNDRAIN)
    for domain in node.thing["status"]["domains"]:
        domain["since"] = stamp(NOW)
    assert node.decided().step is UpgradeStep.START
    del node.thing["status"]["domains"]
    assert node.decided().step is UpgradeStep.START


def test_a_node_is_done_once_it_serves() -> None:
    node = walked_to(UpgradeStep.UNDRAIN)
    node.do(node.decided())
    node.live("starting")
    assert node.decided().why.startswith("gpu0 is starting")
    node.live()
    node.do(node.decided())
    assert node.decided() == Decision(UpgradeStep.DONE)


def test_a_refused_domain_ends_it_with_the_reason() -> None:
    node = walked_to(UpgradeStep.UNDRAIN)
    node.thing["status"]["domains"][2] |= {"state": "refused", "reason": "MIG is on"}
    assert node.decided().refusal == "gpu2-3 is refused: MIG is on"


def test_a_refusal_of_the_former_pod_is_what_an_upgrade_may_mend() -> None:
    node = Node(set(), set())
    node.do(node.decided())
    node.thing["status"]["domains"][0] |= {"state": "refused", "reason": "no program for MPS"}
    assert node.decided() == Decision(UpgradeStep.REPLACE)
    node.thing["status"]["gpus"][0]["clients"] = None
    assert node.decided().step is UpgradeStep.DRAIN, "who is there is not known"


def test_nobody_is_ended_while_the_newest_revision_is_not_known() -> None:
    decided = next_step(replace(walked_to(UpgradeStep.REPLACE).seen(), revision=""))
    assert decided.step is UpgradeStep.START
    assert "has not processed its last change" in decided.why


def test_the_plan_says_who_is_waited_for_and_what_is_put_back() -> None:
    def planned(node: Node) -> str:
        return list(plan(CONTROL, [node.seen()]))[-1]

    fresh = planned(Node({"0"}, {"0"}))
    assert fresh.startswith("gpu-a2: wait for default/GPU-000000a2-0000-")
    others = "put back gpu1, gpu2, gpu3; gpu0 stays cordoned, as others want it"
    assert fresh.endswith(f"replace control-1, image mpsd:1; {others}")
    begun = planned(walked_to(UpgradeStep.DRAIN, "1"))
    assert begun.endswith("put back gpu0, gpu2, gpu3; gpu1 stays cordoned, as others want it")
    assert planned(walked_to(UpgradeStep.DONE)) == "gpu-a2: up to date"


def stands(node: Node) -> list[str]:
    return list(how_it_stands(CONTROL, node.seen(), node.decided(), " --context a"))


def test_who_is_interrupted_while_gpus_are_cordoned_is_told_which() -> None:
    pod, way = stands(Node({"0"}, set()))
    assert pod.endswith("still runs; still cordoned by this upgrade: gpu1, gpu2, gpu3")
    assert way.endswith(": kubectl mps undrain gpu-a2 --gpu gpu1 --gpu gpu2 --gpu gpu3 --context a")

    assert "pod is being deleted; " in stands(walked_to(UpgradeStep.REPLACE))[0]
    assert "pod is gone; " in stands(walked_to(UpgradeStep.START))[0]
    of_others = walked_to(UpgradeStep.DRAIN, "all")
    assert stands(of_others)[1] == "to continue: run the same command again"


def test_a_node_is_due_again_once_the_daemon_set_has_changed() -> None:
    done = walked_to(UpgradeStep.DONE).seen()
    assert not is_due(done, CONTROL)
    assert is_due(done, replace(CONTROL, revision="r3"))


# -- the DaemonSet and its pods

OWNER = [{"uid": "ds", "controller": True}]


def daemon_set(generation: int = 2, observed: int | None = 2) -> Any:
    template = {"spec": {"containers": [{"name": "control", "image": "mpsd:1"}]}}
    spec = {"template": template, "selector": {"matchLabels": {"b": "2", "a": "1"}}}
    metadata = {"name": "control", "namespace": "n", "uid": "ds", "generation": generation}
    status = {} if observed is None else {"observedGeneration": observed}
    return {"metadata": metadata, "spec": spec, "status": status}


def revision(number: int, hash_: str, owner: Any = OWNER) -> Any:
    labels = {"controller-revision-hash": hash_}
    metadata = {"name": hash_, "labels": labels, "ownerReferences": owner}
    return {"metadata": metadata, "revision": number}


def pod(
    name: str,
    node: str = "a",
    *,
    ending: bool = False,
    at: str = "2026-11-21T08:00:00Z",
    **status: Any,
) -> Any:
    metadata = {"name": name, "uid": name, "creationTimestamp": at, "ownerReferences": OWNER}
    metadata |= {"deletionTimestamp": at} if ending else {}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"image": "mpsd:1"}]},
        "status": status,
    }


def test_the_newest_revision_has_the_highest_number_of_this_daemon_set() -> None:
    others = revision(9, "c", [{"uid": "another"}])
    assert (
        read_control_set(daemon_set(), [revision(3, "a"), revision(2, "b"), others]).revision == "a"
    )
    assert read_control_set(daemon_set(), [others]).revision == ""
    for unseen in (daemon_set(generation=3), daemon_set(observed=None)):
        assert read_control_set(unseen, [revision(3, "a")]).revision == ""
    assert pod_selector(daemon_set()) == "a=1,b=2"


def test_of_two_pods_of_a_node_the_one_that_stays_counts() -> None:
    old, new = pod("old", ending=True), pod("new", at="2026-11-21T08:10:00Z")
    for order in ([old, new], [new, old]):
        assert control_pods(order, "ds")["a"].name == "new"
    assert control_pods([old], "ds")["a"].ending
    assert control_pods([pod("unplaced", node="")], "ds") == {}
    assert control_pods([new], "another") == {}


def test_a_pod_has_started_once_each_of_its_containers_runs() -> None:
    running: Any = {"state": {"running": {"startedAt": "2026-11-21T08:00:05Z"}}}
    waiting: Any = {
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    }
    began = control_pods([pod("a", containerStatuses=[running])], "ds")["a"]
    assert began.started_at == seconds("2026-11-21T08:00:05Z")
    held = control_pods([pod("a", containerStatuses=[running, waiting])], "ds")["a"]
    assert (held.started_at, held.trouble) == (None, "ImagePullBackOff: no such image")
    assert control_pods([pod("a")], "ds")["a"].started_at is None
