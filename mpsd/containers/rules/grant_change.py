"""`mpsd set`: a grant with other values, and what its user reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mpsd.grants.rules.messages import CardLimits, GrantChanged, GrantChangeRequest, GrantLimits
from mpsd.model.cgpu_policies import ThreadCap, percent_of, policy_for
from mpsd.model.client_limits import ClientLimit, problems_with
from mpsd.model.grants import Gpu, GpuShare, Grant, free_weight, rooms
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.violations import ViolationKind, most_mib

_WHOLE = 100
One = TypeVar("One", bound=Grant)


def changed(
    grant: One, change: GrantChangeRequest, view: NodeView, policy: Policy
) -> One | tuple[Problem, ...]:
    """The grant with the change, or all that prevents it. Running programs keep the percentage and
    MPS's limit; the watchdog and the ledger use the grant's."""
    targets = [part for part in grant.parts if change.gpu in (None, part.gpu)]
    context = _ChangeContext(grant, change, view, policy)
    problems = tuple(_invalid(grant, change, targets)) or tuple(context.missing(targets))
    if problems := problems or tuple(context.unweighted(targets)):
        return problems
    parts = tuple(context.wanted(part) if part in targets else part for part in grant.parts)
    wanted = replace(
        grant,
        parts=parts,
        thread_percent=context.cap(parts),
        earlier_mib=max(grant.earlier_mib, grant.memory_mib),
        earlier_percent=max(grant.earlier_percent, grant.thread_percent),
    )
    found: list[Problem] = []
    for old, new in zip(grant.parts, parts, strict=True):
        if old in targets:
            found += context.problems(old, new, wanted.thread_percent)
    return tuple(found) or wanted


def _invalid(
    grant: Grant, change: GrantChangeRequest, targets: Sequence[GpuShare]
) -> Iterator[Problem]:
    """Whatever the node looks like."""
    percent = change.percent
    weight = change.weight
    if grant.pod:
        message = f"belongs to pod {grant.pod}"
        remedy = "change the pod's request, and recreate it"
        yield Problem("grant-of-pod", "the grant", grant.id, message, remedy)
    if not targets:
        message = "is not a GPU of this grant"
        remedy = "name one that it has"
        yield Problem("gpu-not-granted", "the GPU", change.gpu or "", message, remedy)
    if change.memory_mib is None and percent is None and weight is None:
        message = "sets neither memory nor a percentage nor a weight"
        yield Problem("nothing-to-change", "the change", "", message, "set one of them")
    if percent is not None and weight is not None:
        message = "cannot be set together with a weight"
        remedy = "leave one of them out"
        yield Problem("threads-twice", "the percentage", str(percent), message, remedy)
    if percent is not None and not 0 <= percent <= _WHOLE:
        message = "is not a percentage"
        remedy = "write 1 to 100, or 0 for no cap"
        yield Problem("percent-range", "the percentage", str(percent), message, remedy)
    if weight is not None and weight < 1:
        message = "is less than 1"
        yield Problem("weight-range", "the weight", str(weight), message, "write 1 or more")


class _ChangeContext:
    def __init__(
        self, grant: Grant, change: GrantChangeRequest, view: NodeView, policy: Policy
    ) -> None:
        self._grant = grant
        self._change = change
        self._view = view
        self._policy = policy
        self._gpus: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in view.gpus}
        self._others = [held.grant for held in view.grants if held.grant.id != grant.id]

    def missing(self, parts: Sequence[GpuShare]) -> Iterator[Problem]:
        unknown = "are not all known now"
        if not self._view.grants_known:
            yield Problem("grants-unknown", "the grants", "", unknown, "try again later")
        for part in parts:
            if part.gpu not in self._gpus:
                remedy = "try again when it is"
                yield Problem("gpu-away", "the GPU", part.gpu, "is not visible now", remedy)
            elif why := self._view.ungrantable.get(part.gpu):
                message = f"{unknown}: {why}"
                yield Problem("grants-unknown", "the grants", "", message, "then try again")

    def unweighted(self, parts: Sequence[GpuShare]) -> Iterator[Problem]:
        if (weight := self._change.weight) is None:
            return
        for part in parts:
            gpu = self._gpus[part.gpu]
            where = f"the weight on {gpu.label}"
            policy = policy_for(weight, self._policy.compute.of(gpu.ordinal).policy)
            if part.weight is None:
                message = "is only for grants that were requested with cGPU's variables"
                yield Problem("weight-not-cgpus", where, str(weight), message, "set a percentage")
            elif policy.share is not ThreadCap.WEIGHT:
                message = (
                    f"has no effect under policy {policy.number}, {policy.name}: MPS has no weights"
                )
                remedy = "set a percentage, or policy 3 for the GPU (`compute` in policy.yaml)"
                yield Problem("weight-meaningless", where, str(weight), message, remedy)

    def wanted(self, part: GpuShare) -> GpuShare:
        change = self._change
        percent = part.reserved_percent if change.percent is None else change.percent
        if change.weight is not None:
            max_inst = self._policy.compute.of(self._gpus[part.gpu].ordinal).max_inst
            percent = min(_WHOLE, percent_of(ThreadCap.WEIGHT, change.weight, max_inst))
        return replace(
            part,
            memory_mib=part.memory_mib if change.memory_mib is None else change.memory_mib,
            reserved_percent=percent,
            weight=part.weight if change.weight is None else change.weight,
        )

    def cap(self, parts: Sequence[GpuShare]) -> int:
        """MPS's percentage for all GPUs of a program: the smallest that is asked for."""
        if self._change.percent is None and self._change.weight is None:
            return self._grant.thread_percent
        no_share = _WHOLE if self._grant.container else self._policy.requests.default_thread_percent
        return min(part.reserved_percent or no_share for part in parts)

    def problems(self, old: GpuShare, new: GpuShare, thread_percent: int) -> Iterator[Problem]:
        """Why this GPU cannot give the new part. thread_percent: the grant's."""
        gpu = self._gpus[new.gpu]
        change = self._change
        memory = f"memory on {gpu.label}"

        def over(rule: str, where: str, value: str, what: str, most: int) -> Problem:
            message = f"{what} are free for this grant, including what it has"
            return Problem(rule, where, value, message, f"write at most {most}")

        (room,) = rooms([gpu], {gpu.uuid: self._grant.domain}, self._others, self._policy)
        if old.memory_mib < new.memory_mib and room.memory_mib < new.memory_mib:
            what = f"{room.memory_mib} of {room.memory_mib_total} MiB"
            wanted = f"{new.memory_mib} MiB"
            yield over("memory-over-free", memory, wanted, what, room.memory_mib)
        else:
            limit = ClientLimit(new.memory_mib, thread_percent)
            yield from problems_with(limit, memory, gpu.capability, gpu.memory_mib, gpu.sms)
        if max(old.reserved_percent, room.thread_percent) < new.reserved_percent:
            what = f"{room.thread_percent} % of its threads"
            wanted = f"{new.reserved_percent} %"
            where = f"the percentage on {gpu.label}"
            yield over("percent-over-free", where, wanted, what, room.thread_percent)
        free = free_weight(gpu, self._others, self._policy.compute)
        weight = change.weight
        if weight is not None and free is not None and weight > max(free, old.weight or 0):
            where = f"the weight on {gpu.label}"
            yield over("weight-over-free", where, str(weight), str(free), free)
        if new.memory_mib < old.memory_mib and not change.forced:
            yield from self._used(gpu, new)

    def _used(self, gpu: Gpu, new: GpuShare) -> Iterator[Problem]:
        where = f"memory on {gpu.label}"
        value = f"{new.memory_mib} MiB"
        used_mib = _used_mib(self._grant, gpu.uuid, self._view)
        if used_mib is None:
            message = "it is unknown how much its programs use, and mpsd would end those over it"
            yield Problem("use-unknown", where, value, message, "try again, or force it")
        elif used_mib > new.memory_mib:
            used = f"the {used_mib} MiB that its programs use"
            message = f"is less than {used}, and mpsd would end them"
            remedy = f"write at least {used_mib}, or force it"
            yield Problem("memory-in-use", where, value, message, remedy)


def _used_mib(grant: Grant, gpu: str, view: NodeView) -> int | None:
    """None where NVML does not report all of it."""
    if not view.sees([gpu]):
        return None
    own = [one.used_mib for one in view.clients if (one.grant, one.gpu) == (grant.id, gpu)]
    return None if None in own else sum(mib or 0 for mib in own)


# -- what the user of `mpsd set` reads: the values before and after, and what they apply to

_IN_CONTAINER = (
    "; the next one that `docker exec` starts gets the new values, and `docker restart` starts with"
    " the container's own variables"
)
_IN_PROGRAM = (
    ", also for the processes that they start; the ledger and the watchdog use the new values"
)


_MISUSE = {
    *("nothing-to-change", "threads-twice", "percent-range", "weight-range", "gpu-not-granted")
}


def is_misuse(problems: Iterable[Problem]) -> bool:
    """Whatever the state of the node."""
    return any(problem.rule in _MISUSE for problem in problems)


def report(
    before: Grant, after: Grant, view: NodeView, policy: Policy, *, dry_run: bool
) -> GrantChanged:
    messages = ["nothing changes"]
    if (before.parts, before.thread_percent) != (after.parts, after.thread_percent):
        messages = [*_messages(before, after, view, policy)]
    limits = _limits(before, view), _limits(after, view)
    return GrantChanged(before.id, *limits, tuple(messages), dry_run)


def _limits(grant: Grant, view: NodeView) -> GrantLimits:
    labels = {gpu.uuid: gpu.label for gpu in view.gpus}
    cards = []
    for part in grant.parts:
        size = (part.memory_mib, part.reserved_percent, part.weight)
        cards.append(CardLimits(part.gpu, labels.get(part.gpu, part.gpu), *size))
    return GrantLimits(grant.thread_percent, tuple(cards))


def _messages(before: Grant, after: Grant, view: NodeView, policy: Policy) -> Iterator[str]:
    where = _IN_CONTAINER if after.container else _IN_PROGRAM
    yield f"running processes keep the values that they were started with{where}"
    labels = {gpu.uuid: gpu.label for gpu in view.gpus}
    what = "reports it, and does not end them (violations.memory_over_grant)"
    if ViolationKind.MEMORY_OVER_GRANT.response(policy).ends:
        what = "ends those that exceed it"
    for old, new in zip(before.parts, after.parts, strict=True):
        used_mib = _used_mib(after, new.gpu, view)
        is_within = used_mib is not None and used_mib <= most_mib(new, policy)
        if new.memory_mib < old.memory_mib and not is_within:
            used = "an unknown amount" if used_mib is None else f"{used_mib} MiB"
            granted = f"{new.memory_mib} MiB are granted now: mpsd {what}"
            yield f"its processes use {used} of {labels[new.gpu]}, and {granted}"
    if after.thread_percent < max(part.reserved_percent or _WHOLE for part in after.parts):
        yield (
            "MPS has one percentage for all GPUs of a process: it is the smallest,"
            f" {after.thread_percent} %"
        )
