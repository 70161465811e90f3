"""The sentences of drains and upgrades, as people read them: `lifecycle_wording.txt` has them all, by their codes.

Renew it with: python -m tests.operations.test_lifecycle_wording
"""

from dataclasses import replace
from pathlib import Path

from mpsd.model.mpsnode import read_mpsnode
from mpsd.operations.lifecycle.rules.emptying import EvictionFate, no_answer, not_applied, what_stays
from mpsd.operations.lifecycle.rules.upgrade import (
    ControlPod,
    ControlSet,
    Decision,
    Standing,
    UpgradeStep,
    how_it_stands,
    progress,
)
from mpsd.status.rules.cordon import cordon_change
from tests.mpsnodes import NOW, mpsnode

WORDING = Path(__file__).with_name("lifecycle_wording.txt")


def wording() -> str:
    """A sentence for each fate of a pod, for each step of an upgrade, and for each way a drain cannot go on."""
    node = read_mpsnode(mpsnode("gpu-a1"), NOW)
    gpus = frozenset(gpu.uuid for gpu in node.gpus)
    lines = [f"{fate.name}: {fate.format(name='default/train-0', owner='dcgm')}" for fate in EvictionFate]
    silent, never = replace(node, stale=True, told_at=NOW - 700), replace(node, told_at=None)
    lines += [f"no_answer: {no_answer(one, NOW)}" for one in (silent, never, replace(node, gpus=()))]
    lines += [f"not_applied: {not_applied(node, gpus, NOW, 15.0)}"]
    lines += [f"what_stays: {what_stays(node, cordon_change(node, ['gpu0'], cordon=True), ' --context a')}"]
    control = ControlSet("mpsd-system", "mps-control-daemon", "ds", "control", "mpsd:2", "OnDelete", "r2", "")
    pod = ControlPod("mps-control-daemon-1", "uid-1", "gpu-a1", "r1", "mpsd:1", True, False, NOW, "")
    seen = Standing(replace(node, cordoned=tuple(gpus)), pod, "r2", gpus)
    lines += [f"{step.name}: {progress(seen, Decision(step, 'WHY'))}" for step in UpgradeStep]
    for step in (UpgradeStep.DRAIN, UpgradeStep.REPLACE):
        lines += [f"stopped at {step.name}: {line}" for line in how_it_stands(control, seen, step)]
    return "\n".join(lines) + "\n"


def test_the_sentences_of_drains_and_upgrades_are_those_in_the_file() -> None:
    assert wording() == WORDING.read_text(), "renew it with: python -m tests.operations.test_lifecycle_wording"


if __name__ == "__main__":
    WORDING.write_text(wording())
