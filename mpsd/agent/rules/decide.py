"""Decides what to do about one view: actions, in an order in which the ledger stays true after
each. Grants end before others begin; a limit is raised before its program is answered, and lowered
last."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mpsd.grants.rules.placement import InsufficientResources, Placed, lacks, place, place_there
from mpsd.model.client_limits import DENY_MIB, ClientLimit, problems_with
from mpsd.model.domain import ANSWERING, SERVING, after_is
from mpsd.model.grants import CardsRequest, Gpu, GpuCapacity, Grant, evenly, rooms
from mpsd.model.node_view import DomainView, NodeView, ServerLimit, WaitingRequest
from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class EndGrant:
    """Remove the grant from the ledger: its holder, processes and clients are gone."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Set this limit in the domain's MPS, and read it back."""

    domain: str
    limit: ServerLimit


@dataclass(frozen=True, slots=True)
class Admit:
    """Save the grant, then answer its request. joins: its GPUs become a domain first."""

    grant: Grant
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse a request. for_ever: it would not fit on empty GPUs either."""

    id: str
    reason: str
    for_ever: bool


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop a request whose holder has gone."""

    id: str


Action = EndGrant | SetLimit | Admit | Refuse | Forget


def domain_of(action: Action) -> str:
    """The domain whose daemon or ledger the action changes; empty for none."""
    match action:
        case EndGrant(grant) | Admit(grant, _):
            return grant.domain
        case SetLimit(domain, _):
            return domain
        case Refuse() | Forget():
            return ""


def stages(actions: Iterable[Action]) -> Iterator[Mapping[str, Sequence[Action]]]:
    """The actions in order, one by one; consecutive limits are set in all domains at the same time,
    so that a silent daemon holds up its own domain alone."""
    for are_limits, run in groupby(actions, key=lambda action: isinstance(action, SetLimit)):
        if not are_limits:
            yield from ({domain_of(action): [action]} for action in run)
            continue
        by_domain: dict[str, list[Action]] = {}
        for action in run:
            by_domain.setdefault(domain_of(action), []).append(action)
        yield by_domain


def decide(view: NodeView, policy: Policy) -> tuple[Action, ...]:
    """What to do now, in order. A grant lasts as long as its holder, a process in its cgroup or one
    of its clients, and while NVML cannot say whether it has any."""
    used = {client.grant for client in view.clients or ()}
    over = (held.grant for held in view.grants if not (held.holder_alive or held.others_alive))
    orphans = () if view.clients is None else tuple(over)
    ended = tuple(grant for grant in orphans if grant.id not in used)
    kept = tuple(held.grant for held in view.grants if held.grant not in ended)
    answers = tuple(_answers(view, kept, policy))
    grants = (*kept, *(answer.grant for answer in answers if isinstance(answer, Admit)))
    ungrantable = view.ungrantable.keys()
    every = (*view.domains, *view.leaving)
    # a limit for some of the grants would shut the others out
    domains = every if view.grants_known else ()
    domains = tuple(domain for domain in domains if ungrantable.isdisjoint(domain.record.gpus))
    limits = tuple(limit for domain in domains for limit in _limits_to_set(domain, grants))
    raised = [
        limit for limit in limits if limit.limit.memory_mib > DENY_MIB and not _lowers(limit, view)
    ]
    lowered = [limit for limit in limits if limit not in raised]
    return (*map(EndGrant, ended), *raised, *answers, *lowered)


def _answers(
    view: NodeView, kept: Sequence[Grant], policy: Policy
) -> Iterator[Admit | Refuse | Forget]:
    """First come, first served. After a request for which domains change, the others wait until
    they have changed."""
    grants = list(kept)
    queued = 0
    for waiting in view.waiting:
        if not waiting.holder_alive:
            yield Forget(waiting.id)
        elif answer := _answer(waiting, _open_rooms(view, grants, policy), view, queued, policy):
            yield answer
            if isinstance(answer, Admit) and answer.joins:
                return
            grants += [answer.grant] if isinstance(answer, Admit) else []
        else:
            queued += 1


def _answer(
    waiting: WaitingRequest,
    open_rooms: Sequence[GpuCapacity],
    view: NodeView,
    queued: int,
    policy: Policy,
) -> Admit | Refuse | None:
    """None: the request goes on waiting."""
    closed = _closed_gpus(view)
    placed = _place(waiting, open_rooms, policy, closed)
    if isinstance(placed, Placed) and not queued:
        grant = _grant(waiting, placed, policy)
        unusable = _why_unusable(grant, view)
        joins = placed.domain not in {room.domain for room in open_rooms}
        return Refuse(waiting.id, unusable, for_ever=True) if unusable else Admit(grant, joins)
    whole_node = _place(waiting, _all_rooms(view, (), policy), policy, closed)
    if (
        isinstance(whole_node, InsufficientResources)
        and not whole_node.ever
        and not tuple(_without_domain(view))
    ):
        return Refuse(waiting.id, whole_node.reason, for_ever=True)
    if any(is_tried(domain, view.now) for domain in view.domains):
        return None  # it takes new programs again in a moment
    if waiting.deadline is not None and view.now < waiting.deadline:
        return None
    reason = f"{queued} request{' is' if queued == 1 else 's are'} already queued"
    if isinstance(placed, InsufficientResources):
        reason = placed.reason
    others: list[str] = []
    if not isinstance(waiting.request, CardsRequest):  # who names GPUs asks for no others
        others = [why_closed(domain) for domain in view.domains if not is_open(domain, view.now)]
        others += map(_no_daemon, _without_domain(view))
        others += dict.fromkeys(view.ungrantable.values())
    return Refuse(waiting.id, "; ".join([reason, *others]), for_ever=False)


def why_waiting(view: NodeView, policy: Policy) -> Mapping[str, str]:
    """By id, why a request goes on waiting; one that is about to be answered is left out."""
    open_rooms = _open_rooms(view, [held.grant for held in view.grants], policy)
    reasons: dict[str, str] = {}
    for waiting in view.waiting:
        if waiting.holder_alive:
            answer = _answer(
                replace(waiting, deadline=None), open_rooms, view, len(reasons), policy
            )
            if isinstance(answer, Refuse):
                reasons[waiting.id] = answer.reason
    return reasons


def had_room(request: CardsRequest, view: NodeView, policy: Policy) -> tuple[str, ...]:
    """The labels of the GPUs that could give a container what it asks of them."""
    asked = {part.gpu: part for part in request.parts}
    open_rooms = _open_rooms(view, [held.grant for held in view.grants], policy)
    named = [room for room in open_rooms if room.gpu.uuid in asked]
    return tuple(
        room.gpu.label for room in named if not any(lacks(asked[room.gpu.uuid], room, policy))
    )


def _place(
    waiting: WaitingRequest, among: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str]
) -> Placed | InsufficientResources:
    if isinstance(waiting.request, CardsRequest):
        return place_there(waiting.request, among, policy, closed)
    return place(waiting.request, among, policy)


def _why_unusable(grant: Grant, view: NodeView) -> str:
    """Why no program could start under this grant; empty where it could."""
    limits = (
        (gpu, ClientLimit(grant.part_of(gpu.uuid).memory_mib, grant.thread_percent))
        for gpu in view.gpus
    )
    return "; ".join(
        str(problem)
        for gpu, limit in limits
        if limit.memory_mib
        for problem in problems_with(limit, gpu.label, gpu.capability, gpu.memory_mib, gpu.sms)
    )


def _closed_gpus(view: NodeView) -> Mapping[str, str]:
    label = {gpu.uuid: gpu.label for gpu in view.gpus}
    return {**view.ungrantable, **{gpu.uuid: _no_daemon(gpu) for gpu in _without_domain(view)}} | {
        uuid: f"{label.get(uuid, uuid)} accepts no programs now: {why_closed(domain)}"
        for domain in view.domains
        if not is_open(domain, view.now)
        for uuid in domain.record.gpus
    }


def is_open(domain: DomainView, now: float) -> bool:
    """Whether it takes new programs. now: seconds since 1970."""
    return domain.state in SERVING and not is_tried(domain, now)


def is_tried(domain: DomainView, now: float) -> bool:
    """Whether mpsd makes its own context there first. now: seconds since 1970."""
    return domain.state in SERVING and now < domain.record.held_until


def why_closed(domain: DomainView) -> str:
    """Why a domain that is not open takes no new programs."""
    if domain.state in SERVING:
        return f"{domain.name} is tried by mpsd, after its last client was killed"
    why = f": {domain.record.reason}" if domain.record.reason else ""
    return f"{domain.name} is {after_is(domain.state)}{why}"


def _no_daemon(gpu: Gpu) -> str:
    return f"{gpu.label} has no control daemon yet"


def _without_domain(view: NodeView) -> Iterator[Gpu]:
    """GPUs that `mpsd control` has not named yet, so nothing is known of them."""
    known = {uuid for domain in view.domains for uuid in domain.record.gpus}
    return (gpu for gpu in view.gpus if gpu.uuid not in known)


def _grant(waiting: WaitingRequest, placed: Placed, policy: Policy) -> Grant:
    request = waiting.request
    percent = waiting.request.thread_percent
    own = (
        request.parts
        if isinstance(request, CardsRequest)
        else evenly(placed.gpus, request.memory_mib, percent or 0)
    )
    return Grant(
        id=waiting.id,
        domain=placed.domain,
        parts=own,
        thread_percent=policy.requests.default_thread_percent if percent is None else percent,
        clients=policy.requests.clients_per_grant,
        holder=waiting.holder,
        command=waiting.command,
    )


def _all_rooms(view: NodeView, grants: Iterable[Grant], policy: Policy) -> tuple[GpuCapacity, ...]:
    domain_of = {uuid: domain.name for domain in view.domains for uuid in domain.record.gpus}
    gpus = [gpu for gpu in view.gpus if gpu.uuid in domain_of]
    return rooms(gpus, domain_of, grants, policy, view.on_demand)


def _open_rooms(view: NodeView, grants: Iterable[Grant], policy: Policy) -> tuple[GpuCapacity, ...]:
    """The rooms of domains that serve, but for GPUs that a grant may be on which cannot be read."""
    serving = {domain.name for domain in view.domains if is_open(domain, view.now)}
    ungrantable = view.ungrantable
    rooms_now = _all_rooms(view, grants, policy)
    return tuple(
        room for room in rooms_now if room.domain in serving and room.gpu.uuid not in ungrantable
    )


def _limits_to_set(domain: DomainView, grants: Iterable[Grant]) -> Iterator[SetLimit]:
    """Each ordinal gets the domain's largest grant, or denial. It is the client's own ordinal
    (docs/mps-observed.md, section 3), so none can have a limit for its GPU."""
    if domain.state not in ANSWERING:
        return
    own = (
        one
        for one in grants
        if one.domain == domain.name and not {*one.gpus}.isdisjoint(domain.record.gpus)
    )
    largest_mib = max((grant.memory_mib for grant in own), default=DENY_MIB)
    for ordinal in range(len(domain.record.gpus)):
        for server in (None, *domain.record.servers):
            wanted = ServerLimit(server, ordinal, largest_mib)
            if wanted not in domain.limits:
                yield SetLimit(domain.name, wanted)


def _lowers(action: SetLimit, view: NodeView) -> bool:
    """True where a larger limit is known to be in force."""
    domain = next(
        (one for one in (*view.domains, *view.leaving) if one.name == action.domain), None
    )
    wanted = action.limit
    known = domain.limits if domain else frozenset[ServerLimit]()
    larger = (limit for limit in known if limit.memory_mib > wanted.memory_mib)
    return any(replace(limit, memory_mib=wanted.memory_mib) == wanted for limit in larger)
