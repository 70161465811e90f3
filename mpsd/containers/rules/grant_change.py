"""`mpsd set`: what becomes of a grant, what its user reads about it, and which grant a word means.

A change sets another size of memory, percentage or weight, on one of the grant's GPUs or on all. What is refused
changes nothing, and the refusal says what is free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from mpsd.grants.rules.messages import CardLimits, GrantChanged, GrantLimits
from mpsd.model.cgpu_policies import ThreadCap, percent_of, policy_for
from mpsd.model.client_limits import ClientLimit, problems_with
from mpsd.model.grants import Gpu, GpuCapacity, GpuShare, Grant, free_weight, rooms
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.violations import ViolationKind, most_mib

_WHOLE = 100
One = TypeVar("One", bound=Grant)


@dataclass(frozen=True, slots=True)
class GrantChange:
    """The new values; None leaves one as it is. percent 0: no cap, and nothing reserved. weight: cGPU's.

    gpu: the UUID of the one GPU that is meant, None for every one of the grant. forced: memory may go below what is
    used, and what uses it is ended.
    """

    memory_mib: int | None = None
    percent: int | None = None
    weight: int | None = None
    gpu: str | None = None
    forced: bool = False


def changed(grant: One, change: GrantChange, view: NodeView, policy: Policy) -> One | tuple[Problem, ...]:
    """The grant with the change, or everything that prevents it.

    Running programs keep the percentage, and the limit of MPS, that they started with; the watchdog and the ledger use
    the grant's.
    """
    targets = [part for part in grant.parts if change.gpu in (None, part.gpu)]
    if problems := tuple(_invalid(grant, change, targets)):
        return problems
    context = _GrantContext(grant, view, policy)
    if problems := tuple(context.missing(targets)):
        return problems
    if problems := tuple(problem for part in targets for problem in context.unweighted(part, change.weight)):
        return problems
    parts = tuple(context.wanted(part, change) if part in targets else part for part in grant.parts)
    wanted = replace(
        grant,
        parts=parts,
        thread_percent=context.cap(grant, parts, change),
        earlier_mib=max(grant.earlier_mib, grant.memory_mib),
        earlier_percent=max(grant.earlier_percent, grant.thread_percent),
    )
    found = [
        problem
        for old, new in zip(grant.parts, parts, strict=True)
        if old in targets
        for problem in context.problems(old, new, wanted, change)
    ]
    return tuple(found) or wanted


def _invalid(grant: Grant, change: GrantChange, targets: Sequence[GpuShare]) -> Iterator[Problem]:
    """What is wrong with the change whatever the node looks like."""
    if grant.pod:
        remedy = "change the pod's request, and recreate it"
        yield Problem(
            "grant-of-pod", "the grant", grant.id, f"belongs to pod {grant.pod}, which kubelet accounts for", remedy
        )
    if not targets:
        yield Problem(
            "gpu-not-granted", "the GPU", change.gpu or "", "is not a GPU of this grant", "name one that it has"
        )
    if change.memory_mib is None and change.percent is None and change.weight is None:
        message = "gives neither memory nor a percentage nor a weight"
        yield Problem("nothing-to-change", "the change", "", message, "give a new value")
    if change.percent is not None and change.weight is not None:
        message = "and a weight both set the threads"
        yield Problem("threads-twice", "the percentage", str(change.percent), message, "leave one of them out")
    if change.percent is not None and not 0 <= change.percent <= _WHOLE:
        message, remedy = "is not a percentage", "write 1 to 100, or 0 for no cap"
        yield Problem("percent-range", "the percentage", str(change.percent), message, remedy)
    if change.weight is not None and change.weight < 1:
        yield Problem("weight-range", "the weight", str(change.weight), "is less than 1", "write 1 or more")


class _GrantContext:
    """The grant among all others."""

    def __init__(self, grant: Grant, view: NodeView, policy: Policy) -> None:
        self._grant, self._view, self._policy = grant, view, policy
        self._gpus: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in view.gpus}
        self._others = [held.grant for held in view.grants if held.grant.id != grant.id]

    def missing(self, parts: Sequence[GpuShare]) -> Iterator[Problem]:
        """GPUs about which nothing is known now."""
        if not self._view.grants_known:
            yield Problem("grants-unknown", "the grants", "", "are not all known now", "try again later")
        for part in parts:
            if part.gpu not in self._gpus:
                yield Problem("gpu-away", "the GPU", part.gpu, "is not visible now", "try again when it is")

    def unweighted(self, part: GpuShare, weight: int | None) -> Iterator[Problem]:
        """Why a weight has no meaning on this GPU."""
        if weight is None:
            return
        gpu = self._gpus[part.gpu]
        where, compute = f"the weight on {gpu.label}", self._policy.compute.of(gpu.ordinal)
        policy = policy_for(weight, compute.policy)
        if part.weight is None:
            message = "is for cGPU's variables, which this grant was not requested with"
            yield Problem("weight-not-cgpus", where, str(weight), message, "set a percentage")
        elif policy.share is not ThreadCap.WEIGHT:
            message = f"has no effect under policy {policy.number}, {policy.name}: MPS has no weights"
            remedy = "set a percentage, or policy 3 for the GPU (`compute` in policy.yaml)"
            yield Problem("weight-meaningless", where, str(weight), message, remedy)

    def wanted(self, part: GpuShare, change: GrantChange) -> GpuShare:
        """The part with the change."""
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

    def cap(self, grant: Grant, parts: Sequence[GpuShare], change: GrantChange) -> int:
        """The one percentage that MPS has for all GPUs of a program: the smallest that is asked for."""
        if change.percent is None and change.weight is None:
            return grant.thread_percent
        no_share = _WHOLE if grant.container else self._policy.requests.default_thread_percent
        return min(part.reserved_percent or no_share for part in parts)

    def problems(self, old: GpuShare, new: GpuShare, wanted: Grant, change: GrantChange) -> Iterator[Problem]:
        """Why this GPU cannot give the new part in the old one's place."""
        gpu = self._gpus[new.gpu]
        room = self._room(gpu)
        if old.memory_mib < new.memory_mib and room.memory_mib < new.memory_mib:
            message = f"{room.memory_mib} of {room.memory_mib_total} MiB are free for this grant, including what it has"
            remedy = f"write at most {room.memory_mib}"
            yield Problem("memory-over-free", f"memory on {gpu.label}", f"{new.memory_mib} MiB", message, remedy)
        else:
            limit = ClientLimit(new.memory_mib, wanted.thread_percent)
            yield from problems_with(limit, f"memory on {gpu.label}", gpu.capability, gpu.memory_mib, gpu.sms)
        if old.reserved_percent < new.reserved_percent and room.thread_percent < new.reserved_percent:
            message = f"{room.thread_percent} % of its threads are free for this grant, including what it has"
            value, remedy = f"{new.reserved_percent} %", f"write at most {room.thread_percent}"
            yield Problem("percent-over-free", f"the percentage on {gpu.label}", value, message, remedy)
        free = free_weight(gpu, self._others, self._policy.compute)
        if change.weight is not None and free is not None and change.weight > max(free, old.weight or 0):
            message = f"{free} are free for this grant, including what it has"
            where, remedy = f"the weight on {gpu.label}", f"write at most {free}"
            yield Problem("weight-over-free", where, str(change.weight), message, remedy)
        if new.memory_mib < old.memory_mib and not change.forced:
            yield from self._used(gpu, new)

    def _room(self, gpu: Gpu) -> GpuCapacity:
        (room,) = rooms([gpu], {gpu.uuid: self._grant.domain}, self._others, self._policy)
        return room

    def _used(self, gpu: Gpu, new: GpuShare) -> Iterator[Problem]:
        """Why less memory would end what runs."""
        where, value = f"memory on {gpu.label}", f"{new.memory_mib} MiB"
        own = [one.used_mib for one in self._view.clients or () if (one.grant, one.gpu) == (self._grant.id, gpu.uuid)]
        if self._view.clients is None or None in own:
            message = "the use by the grant's programs is not known now, and those over the limit would be ended"
            yield Problem("use-unknown", where, value, message, "try again, or force it")
        elif (used_mib := sum(mib for mib in own if mib is not None)) > new.memory_mib:
            message = f"is less than the {used_mib} MiB that its programs use, which mpsd would end"
            yield Problem("memory-in-use", where, value, message, f"write at least {used_mib}, or force it")


# -- what the user of `mpsd set` reads: the values before and after, and what they apply to ---------------------------

_MISUSE = frozenset({"nothing-to-change", "threads-twice", "percent-range", "weight-range", "gpu-not-granted"})
_KEPT = "a process keeps what it was started with, which MPS reads when the process makes its context"
_IN_CONTAINER = (
    f"{_KEPT}; the next one that `docker exec` starts gets the new values, and `docker restart` begins with what the "
    f"container's own variables say"
)
_IN_PROGRAM = f"{_KEPT}, and so do the processes that it starts; the ledger and the watchdog use the new values"


def is_misuse(problems: Iterable[Problem]) -> bool:
    """Whether the change is invalid whatever the state of the node."""
    return any(problem.rule in _MISUSE for problem in problems)


def report(before: Grant, after: Grant, view: NodeView, policy: Policy, *, dry_run: bool) -> GrantChanged:
    changed = (before.parts, before.thread_percent) != (after.parts, after.thread_percent)
    messages = tuple(_messages(before, after, view, policy)) if changed else ("nothing changes",)
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


def _over(grant: Grant, gpu: Gpu, part: GpuShare, view: NodeView, policy: Policy) -> str:
    """What happens to processes that use more than the new grant; empty where none do."""
    own = [one.used_mib for one in view.clients or () if (one.grant, one.gpu) == (grant.id, part.gpu)]
    ends = ViolationKind.MEMORY_OVER_GRANT.response(policy).ends
    what = "ends what is over" if ends else "only reports it, because violations.memory_over_grant does not end it"
    if view.clients is None or None in own:
        return f"what its processes use of {gpu.label} is not known now: where it is over, mpsd {what}"
    used_mib = sum(mib for mib in own if mib is not None)
    if used_mib <= most_mib(part, policy):
        return ""
    return f"its processes use {used_mib} MiB of {gpu.label}, and {part.memory_mib} are granted now: mpsd {what}"


# -- the grant that a word means: a container's id or its beginning, its name, a pod, or a grant's id ------------------


class CurrentGrant(Protocol):
    """The fields that `GrantStatus` and `GrantUse` share."""

    @property
    def id(self) -> str: ...

    @property
    def container(self) -> str | None: ...

    @property
    def container_name(self) -> str | None: ...

    @property
    def namespace(self) -> str | None: ...

    @property
    def pod(self) -> str | None: ...

    @property
    def command(self) -> str: ...


Candidate = TypeVar("Candidate", bound=CurrentGrant)
_SHORT = 12  # characters of a container's id, as engines show it


def meant(grants: Iterable[Candidate], word: str) -> tuple[Candidate, ...]:
    """Those that the word may mean; none where there is no such grant.

    A word in full comes before the beginning of one, and an id, also as engines show it, before a name, which whoever
    creates a container chooses. Several that match equally are all returned.
    """
    among = tuple(grants)
    for in_full in (_whole_ids, _names):
        if found := tuple(one for one in among if word in in_full(one)):
            return found
    return tuple(one for one in among if word and any(each.startswith(word) for each in _ids(one)))


def _ids(one: CurrentGrant) -> Sequence[str]:
    return [one.id] if one.container is None else [one.container, one.id]


def _whole_ids(one: CurrentGrant) -> Sequence[str]:
    return [*_ids(one), short_id(one)]


def _names(one: CurrentGrant) -> Sequence[str]:
    if one.pod:
        return [one.pod, f"{one.namespace}/{one.pod}"]
    return [one.container_name] if one.container_name else []


def words(grants: Iterable[CurrentGrant]) -> tuple[str, ...]:
    """What each of them may be called, for completion: ids as engines show them, and names."""
    return tuple(dict.fromkeys(word for one in grants for word in (short_id(one), *_names(one))))


def short_id(one: CurrentGrant) -> str:
    """The container's id as engines show it; the grant's where no container holds it."""
    return (one.container or one.id)[:_SHORT]


def known_as(one: CurrentGrant) -> str:
    """The grant's holder, as people know it: `3f2a… (train)`."""
    if one.pod:
        return f"{one.namespace}/{one.pod}"
    name = (one.container_name or "") if one.container else one.command
    return f"{short_id(one)} ({name})" if name else short_id(one)
