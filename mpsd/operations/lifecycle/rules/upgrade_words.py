"""What an upgrade of the control daemons says: its plan, each step, and how to go on or back where it stops.

One rule: a sentence names the node and what is so there now, so that whoever reads it alone knows what to do.
"""

from collections.abc import Iterator, Sequence

from mpsd.model.durations import lasting
from mpsd.operations.lifecycle.rules.control_set import ControlSet
from mpsd.operations.lifecycle.rules.drain_progress import holders, holding, what_is_left
from mpsd.operations.lifecycle.rules.upgrade_step import Standing, Step


def plan(control: ControlSet, nodes: Sequence[Standing], image: str | None) -> Iterator[str]:
    """What would be done, a line each. image: what the DaemonSet is to have first, None for what it has."""
    if image is not None and image != control.image:
        yield f"{control}: the image becomes {image}, instead of {control.image}"
    out = [one for one in nodes if is_due(one, control, image)]
    yield f"{control}, image {image or control.image}: {len(out)} of {len(nodes)} nodes to upgrade"
    for one in nodes:
        replaced = not one.current or (image is not None and image != control.image)
        yield f"{one.node.name}: {'; '.join(_of_node(one, replaced=replaced)) if one in out else 'up to date'}"


def is_due(one: Standing, control: ControlSet, image: str | None) -> bool:
    """Whether something is to be done on this node: its pod is old, or an upgrade was given up in the middle."""
    return not one.current or one.mark is not None or (image is not None and image != control.image)


def _of_node(one: Standing, *, replaced: bool) -> Iterator[str]:
    labels = one.node.labels
    if one.pod is None:
        yield "no control pod runs there now"
    elif not replaced:
        yield f"{one.pod.name} is new, and the upgrade of this node was not finished"
    else:
        yield f"{one.pod.name} is of revision {one.pod.revision}, image {one.pod.image}"
    if one.uncordoned and replaced:
        yield f"cordon {_named(one.uncordoned, labels)}"
    pods = holders(one.node, one.gpus)
    if one.node.pods is None:
        yield "which pods are there it does not know"
    elif pods and replaced:
        yield f"wait for {', '.join(holding(pod, labels) for pod in pods)}"
    back = sorted(one.ours.union(one.uncordoned if replaced else ()))
    kept = [uuid for uuid in one.gpus if uuid not in one.ours and uuid not in one.uncordoned]
    yield f"{'replace the pod, ' if replaced else ''}put back {_named(back, labels) or 'nothing'}"
    if kept:
        yield f"{_named(kept, labels)} was cordoned by somebody else, and stays so"


def _named(gpus: Sequence[str], labels: dict[str, str]) -> str:
    return ", ".join(sorted(labels.get(uuid, uuid) for uuid in gpus))


def progress(seen: Standing, step: Step, why: str) -> str:
    """A line when a step begins, or what it waits for is another thing."""
    labels, pod = seen.node.labels, seen.pod
    match step:
        case Step.CORDON:
            what = f"cordons {_named(seen.uncordoned, labels) or 'nothing, since all is cordoned already'}"
        case Step.DRAIN:
            what = f"draining: {what_is_left(seen.node, seen.gpus)}"
        case Step.END:
            what = f"nobody is left; deletes {pod.name if pod else 'the pod'}, image {pod.image if pod else '?'}"
        case Step.REPLACE:
            what = f"waits for the new control pod: {why}"
        case Step.START:
            image = pod.image if pod else "?"
            what = f"waits for the domains of the new pod, image {image}: {why}"
        case Step.PUT_BACK:
            what = f"puts {_named(sorted(seen.ours), labels)} back into use"
        case Step.SERVE:
            what = f"waits until it serves: {why}"
        case Step.FINISH | Step.DONE:
            what = "done"
        case Step.STUCK:
            what = why
    return f"{seen.node.name}: {what}"


def too_slow(seen: Standing, step: Step, why: str, limit_s: float) -> str:
    """Why a step is given up after so long."""
    left = what_is_left(seen.node, seen.gpus) if step is Step.DRAIN else why
    return f"it took longer than {lasting(limit_s)}" + (f": {left}" if left else "")


def how_it_stands(control: ControlSet, seen: Standing, step: Step, where: str = "") -> Iterator[str]:
    """What is so on a node where an upgrade stopped in this step, and how to go on or back.

    where: options for every command, such as ` --context a`, with their leading blank.
    """
    name = seen.node.name
    ours = _named(sorted(seen.ours), seen.node.labels)
    cordoned = (
        f"cordoned by this upgrade, and still so: {ours}" if ours else "nothing of it is cordoned by this upgrade"
    )
    if step in (Step.CORDON, Step.DRAIN, Step.END):
        yield f"{name}: the old control pod still runs; {cordoned}"
        yield f"to see who is left: kubectl mps {name}{where}; to go on: the same command again"
        if ours:
            gpus = "".join(f" --gpu {one}" for one in ours.split(", "))
            yield f"to go back: kubectl mps undrain {name}{gpus}{where}"
        return
    yield f"{name}: the old control pod is gone; {cordoned}"
    pod = (
        f"kubectl -n {control.namespace} describe pod {seen.pod.name}{where}"
        if seen.pod
        else f"kubectl mps {name}{where}"
    )
    yield f"to look: {pod}; to go on, once the reason is gone: the same command again, which begins here"
    undo = f"kubectl -n {control.namespace} rollout undo daemonset/{control.name}{where}"
    yield f"to go back: {undo} && kubectl mps upgrade {name}{where}"
