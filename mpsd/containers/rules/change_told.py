"""What the person who has changed a grant is told.

One rule: what was, what is, whom it reaches and whom it does not; nothing is promised that MPS does not do.
"""

from collections.abc import Iterable, Iterator

from mpsd.grants.rules.set_messages import CardLimits, GrantChanged, GrantLimits
from mpsd.model.grants import Gpu, Grant, Part
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.violations import Kind, most_mib

_MISUSE = frozenset({"nothing-to-change", "threads-twice", "percent-range", "weight-range", "gpu-not-granted"})
_KEPT = "a process keeps what it was started with, which MPS reads when the process makes its context"
_IN_CONTAINER = (
    f"{_KEPT}; the next one that `docker exec` starts gets the new values, and `docker restart` begins with what the "
    f"container's own variables say"
)
_IN_PROGRAM = f"{_KEPT}, and so do the processes that it starts; the books and the watchdog go by the new values"


def is_misuse(problems: Iterable[Problem]) -> bool:
    """Whether what is asked is no question, whatever the node looks like."""
    return any(problem.rule in _MISUSE for problem in problems)


def told(before: Grant, after: Grant, view: NodeView, policy: Policy, *, dry_run: bool) -> GrantChanged:
    changed = (before.parts, before.thread_percent) != (after.parts, after.thread_percent)
    messages = tuple(_messages(before, after, view, policy)) if changed else ("nothing is another than before",)
    return GrantChanged(before.id, _limits(before, view), _limits(after, view), messages, dry_run)


def _limits(grant: Grant, view: NodeView) -> GrantLimits:
    labels = {gpu.uuid: gpu.label for gpu in view.gpus}
    return GrantLimits(
        grant.thread_percent,
        tuple(
            CardLimits(part.gpu, labels.get(part.gpu, part.gpu), part.memory_mib, part.reserved_percent, part.weight)
            for part in grant.parts
        ),
    )


def _messages(before: Grant, after: Grant, view: NodeView, policy: Policy) -> Iterator[str]:
    yield _IN_CONTAINER if after.container else _IN_PROGRAM
    gpus = {gpu.uuid: gpu for gpu in view.gpus}
    for old, new in zip(before.parts, after.parts, strict=True):
        if new.memory_mib < old.memory_mib and (said := _over(after, gpus[new.gpu], new, view, policy)):
            yield said
    if after.thread_percent < max(part.reserved_percent or 100 for part in after.parts):
        yield f"MPS has one percentage for all GPUs of a process: it is the smallest, {after.thread_percent} %"


def _over(grant: Grant, gpu: Gpu, part: Part, view: NodeView, policy: Policy) -> str:
    """What becomes of processes that use more than there is now; empty where none do."""
    own = [one.used_mib for one in view.clients or () if (one.grant, one.gpu) == (grant.id, part.gpu)]
    ends = Kind.MEMORY_OVER_GRANT.response(policy).ends
    what = "ends what is over" if ends else "only says so, for violations.memory_over_grant does not end it"
    if view.clients is None or None in own:
        return f"what its processes use of {gpu.label} is not known now: where it is over, mpsd {what}"
    used_mib = sum(mib for mib in own if mib is not None)
    if used_mib <= most_mib(part, policy):
        return ""
    return f"its processes use {used_mib} MiB of {gpu.label}, and {part.memory_mib} are granted now: mpsd {what}"
