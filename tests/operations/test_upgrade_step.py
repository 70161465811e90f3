"""The steps of an upgrade: what comes next is decided by what is seen alone, and nobody loses a GPU or a cordon."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import after_is
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.times import stamp
from mpsd.operations.lifecycle.rules.upgrade import (
    MARK,
    ControlPod,
    ControlSet,
    Standing,
    UpgradeStep,
    left_to_others,
    next_step,
    patch_of,
    plan,
    read_mark,
)
from mpsd.status.rules.cordon import cordon_change, merge_patch
from tests.mpsnodes import NOW, mpsnode

OLD = ControlPod("mps-control-daemon-1", "uid-1", "gpu-a2", "r1", "mpsd:1", True, False, NOW - 90_000.0, "")
NEW = ControlPod("mps-control-daemon-2", "uid-2", "gpu-a2", "r2", "mpsd:2", True, False, NOW + 10.0, "")


class Node:
    """gpu-a2 of tests/data as its agent and its control pod would keep it: four GPUs, the last two in one domain."""

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
        status["grants"] = [{"pod": f"default/{uuid}", "uid": uuid, "gpus": [uuid]} for uuid in sorted(self.held)]
        for gpu in status["gpus"]:
            gpu["clients"] = int(gpu["uuid"] in self.held)
        for domain in status["domains"]:
            drains, used = cordoned.intersection(("all", *domain["gpus"])), self.held.intersection(domain["gpus"])
            usual = ("draining" if used else "drained") if drains else "ready"
            domain |= {
                "state": state or usual,
                "since": stamp(self.pod.started_at or NOW) if self.pod else domain["since"],
            }

    def seen(self) -> Standing:
        return Standing(read_mpsnode(self.thing, NOW), self.pod, "r2", read_mark(self.thing))

    def merge(self, patch: dict[str, Any]) -> None:
        annotations = self.thing["metadata"].setdefault("annotations", {})
        for name, value in patch["metadata"].get("annotations", {}).items():
            if value is None:
                annotations.pop(name, None)
            else:
                annotations[name] = value
        self.thing["spec"] = copy.deepcopy(patch["spec"])

    def do(self, step: UpgradeStep) -> None:
        """What an upgrade does, and what the node makes of it."""
        match step:
            case UpgradeStep.CORDON | UpgradeStep.PUT_BACK | UpgradeStep.FINISH:
                self.merge(patch_of(step, self.seen()))
            case UpgradeStep.DRAIN:
                self.held.pop()
            case UpgradeStep.END:
                assert not self.held, "a program would lose its GPU"
                assert {domain["state"] for domain in self.thing["status"]["domains"]} == {"drained"}
                self.pod = None
            case UpgradeStep.REPLACE:
                self.pod = replace(NEW, ready=False, started_at=None) if self.pod is None else NEW
            case UpgradeStep.STUCK:
                raise AssertionError("stuck")
            case _:
                pass
        self.live()

    def cordon(self, labels: list[str], *, cordon: bool) -> None:
        """Somebody else's `kubectl mps cordon`."""
        change = cordon_change(self.seen().node, labels, cordon=cordon)
        mark = read_mark(self.thing)
        self.merge(merge_patch(change, "7"))
        if mark is not None:
            self.thing["metadata"]["annotations"][MARK] = left_to_others(mark, change.gpus)
        self.live()


labels = st.sampled_from(["0", "1", "2", "3"])


@given(st.sets(labels | st.just("all"), max_size=3), st.sets(labels), st.lists(labels, max_size=2), st.integers(0, 9))
def test_whoever_cordoned_what_it_is_so_again_at_the_end_and_nobody_lost_a_gpu(
    cordoned: set[str], held: set[str], meanwhile: list[str], at: int
) -> None:
    node = Node(cordoned, held)
    wanted = set(node.thing["spec"]["cordoned"])
    for turn in range(30):
        if turn == at and meanwhile:
            node.cordon([f"gpu{label}" for label in meanwhile], cordon=True)
            wanted |= set() if "all" in wanted else {node.uuids[int(label)] for label in meanwhile}
        step = next_step(node.seen()).step
        if step is UpgradeStep.DONE and turn > at:
            break
        node.do(step)
    assert next_step(node.seen()).step is UpgradeStep.DONE
    assert node.pod == NEW
    assert set(node.thing["spec"]["cordoned"]) == wanted
    assert read_mark(node.thing) is None


def test_a_gpu_that_somebody_puts_back_meanwhile_is_not_cordoned_behind_his_back_once_the_pod_is_new() -> None:
    node = Node(set(), set())
    while node.pod != NEW:
        node.do(next_step(node.seen()).step)
    node.cordon(["gpu1"], cordon=False)
    steps = []
    while (step := next_step(node.seen()).step) is not UpgradeStep.DONE:
        steps.append(step)
        node.do(step)
    assert UpgradeStep.CORDON not in steps
    assert node.thing["spec"]["cordoned"] == []


def walked_to(step: UpgradeStep, *cordoned: str) -> Node:
    node = Node(set(cordoned), {"0"})
    while (found := next_step(node.seen()).step) is not step:
        node.do(found)
    return node


@pytest.mark.parametrize("state", ["starting", "down", "wedged", "fault", "draining"])
def test_nothing_is_put_back_before_every_domain_has_come_up(state: str) -> None:
    node = walked_to(UpgradeStep.PUT_BACK)
    node.live(state)
    decided = next_step(node.seen())
    assert decided.step is UpgradeStep.START
    assert f"gpu0 is {after_is(state)}" in decided.why


def test_what_a_node_told_of_its_former_domains_proves_nothing() -> None:
    node = walked_to(UpgradeStep.PUT_BACK)
    for domain in node.thing["status"]["domains"]:
        domain["since"] = stamp(NOW)
    assert next_step(node.seen()).step is UpgradeStep.START
    del node.thing["status"]["domains"]
    assert next_step(node.seen()).step is UpgradeStep.START


@pytest.mark.parametrize("step", [UpgradeStep.PUT_BACK, UpgradeStep.FINISH])
def test_a_refused_domain_ends_it_with_the_reason(step: UpgradeStep) -> None:
    node = walked_to(step)
    node.thing["status"]["domains"][2] |= {"state": "refused", "reason": "MIG is on"}
    decided = next_step(node.seen())
    assert (decided.step, decided.why) == (UpgradeStep.STUCK, "gpu2-3 is refused: MIG is on")


def test_a_refusal_of_the_former_pod_is_what_an_upgrade_may_mend() -> None:
    node = Node(set(), set())
    node.do(UpgradeStep.CORDON)
    node.thing["status"]["domains"][0] |= {"state": "refused", "reason": "no program for MPS"}
    assert next_step(node.seen()).step is UpgradeStep.END
    node.thing["status"]["gpus"][0]["clients"] = None
    assert next_step(node.seen()).step is UpgradeStep.DRAIN, "who is there is not known"


def test_nobody_is_ended_while_the_newest_revision_is_not_known() -> None:
    node = walked_to(UpgradeStep.END)
    decided = next_step(replace(node.seen(), revision=""))
    assert decided.step is UpgradeStep.REPLACE
    assert "has not processed its last change" in decided.why


def test_the_plan_says_of_each_node_what_is_cordoned_by_whom_and_what_is_left_to_do() -> None:
    control = ControlSet("mpsd-system", "mps-control-daemon", "ds", "control", "mpsd:2", "OnDelete", "r2", "")

    def planned(node: Node, image: str | None = None) -> str:
        return list(plan(control, [node.seen()], image))[-1]

    fresh = planned(Node({"0"}, {"0"}))
    assert "image mpsd:1; cordon gpu1, gpu2, gpu3; wait for default/GPU-000000a2-0000-" in fresh
    assert fresh.endswith(
        "replace the pod, put back gpu1, gpu2, gpu3; gpu0 was cordoned by another client and stays cordoned"
    )
    begun = planned(walked_to(UpgradeStep.DRAIN, "1"))
    assert "cordon " not in begun
    assert begun.endswith("put back gpu0, gpu2, gpu3; gpu1 was cordoned by another client and stays cordoned")
    assert "is new, and the upgrade of this node was not finished; put back nothing" in planned(
        walked_to(UpgradeStep.FINISH)
    )
    assert planned(walked_to(UpgradeStep.DONE)) == "gpu-a2: up to date"
    assert "mps-control-daemon-2 is of revision r2, image mpsd:2; cordon " in planned(
        walked_to(UpgradeStep.DONE), "mpsd:3"
    )
