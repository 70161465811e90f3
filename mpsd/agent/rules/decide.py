"""Decides what to do about one view. The order keeps promises true after each action: grants end
before others begin; a limit is raised before its program is answered, and lowered last."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mpsd.agent.rules.queue import QueuePlace, delayed_by, reserve
from mpsd.grants.rules.messages import DIVIDE_S
from mpsd.grants.rules.placement import (
    InsufficientResources,
    Placed,
    find_gpus,
    lacks,
    place,
    place_there,
)
from mpsd.model.client_limits import DENY_MIB, ClientLimit, problems_with
from mpsd.model.domain import ANSWERING, SERVING, after_is, because
from mpsd.model.grants import CardsRequest, Gpu, GpuCapacity, Grant, evenly, rooms
from mpsd.model.node_view import DomainView, NodeView, ServerLimit, WaitingRequest
from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class EndGrant:
    """Its holder, processes and clients are gone."""

    grant: Grant

    @property
    def domain(self) -> str:
        return self.grant.domain


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

    @property
    def id(self) -> str:
        """The request's."""
        return self.grant.id

    @property
    def domain(self) -> str:
        return self.grant.domain


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse a request. for_ever: it would not fit on empty GPUs either. is_second: its user has
    one that waits."""

    id: str
    reason: str
    for_ever: bool
    is_second: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop a request whose holder has gone."""

    id: str


Action = EndGrant | SetLimit | Admit | Refuse | Forget


def domain_of(action: Action) -> str:
    """The domain whose daemon or grants the action changes; empty for none."""
    return "" if isinstance(action, Refuse | Forget) else action.domain


def stages(actions: Iterable[Action]) -> Iterator[Mapping[str, Sequence[Action]]]:
    """The actions in order, one by one; but consecutive limits in all domains at the same time, so
    that a silent daemon holds up its own alone."""
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
    of its clients, and while it is not known whether a GPU of it has any."""
    used = {client.grant for client in view.clients}
    ended: list[EndGrant] = []
    grants: list[Grant] = []
    for held in view.grants:
        lives = held.holder_alive or held.others_alive
        if lives or held.grant.id in used or not view.sees(held.grant.gpus):
            grants.append(held.grant)
        else:
            ended.append(EndGrant(held.grant))
    answers = tuple(_answers(view, grants, policy))
    grants += [answer.grant for answer in answers if isinstance(answer, Admit)]
    raised: list[SetLimit] = []
    lowered: list[SetLimit] = []
    for domain in view.every_domain:
        # a limit for some of the grants would shut the others out
        if view.grants_known and view.ungrantable.keys().isdisjoint(domain.record.gpus):
            for limit in _limits_to_set(domain, grants):
                if limit.memory_mib <= DENY_MIB or _lowers(limit, domain):
                    lowered.append(SetLimit(domain.name, limit))
                else:
                    raised.append(SetLimit(domain.name, limit))
    return (*ended, *raised, *answers, *lowered)


def _answers(
    view: NodeView, kept: Sequence[Grant], policy: Policy
) -> Iterator[Admit | Refuse | Forget]:
    """First come, first served, but that a later request may begin where it delays none that waits;
    root and mpsd's own user wait for their own requests alone. After a request for which domains
    change, the others wait until they have changed."""
    grants = list(kept)
    queue: list[QueuePlace] = []
    for waiting in view.waiting:
        open_rooms = _open_rooms(view, grants, policy)
        if not waiting.holder_alive:
            yield Forget(waiting.id)
        elif answer := _answer(waiting, open_rooms, grants, view, queue, policy):
            yield answer
            if isinstance(answer, Admit):
                if answer.joins:
                    return
                grants.append(answer.grant)
        else:
            queue.append(reserve(waiting, open_rooms, queue, policy))


def _answer(
    waiting: WaitingRequest,
    open_rooms: Sequence[GpuCapacity],
    grants: Sequence[Grant],
    view: NodeView,
    queue: Sequence[QueuePlace],
    policy: Policy,
) -> Admit | Refuse | None:
    """None: the request goes on waiting."""
    closed = _closed_gpus(view)
    placed = _place(waiting, open_rooms, policy, closed)
    if isinstance(placed, Placed):
        ahead = [one for one in queue if one.holds_back(waiting)]
        placed = _place_behind(waiting, placed, open_rooms, grants, ahead, policy)
    if isinstance(placed, Placed):
        grant = _grant(waiting, placed, policy)
        if unusable := _why_unusable(grant, view):
            return Refuse(waiting.id, unusable, for_ever=True)
        return Admit(grant, joins=placed.domain not in {room.domain for room in open_rooms})
    without_domain = _without_domain(view)
    whole_node = _place(waiting, _all_rooms(view, (), policy), policy, closed)
    if isinstance(whole_node, InsufficientResources) and not whole_node.ever and not without_domain:
        return Refuse(waiting.id, whole_node.reason, for_ever=True)
    if waiting.tenant is not None and waiting.deadline_s is not None:
        for one in queue:
            if one.waiting.tenant == waiting.tenant and one.waiting.deadline_s is not None:
                why = _only_one(one.waiting)
                return Refuse(waiting.id, why, for_ever=False, is_second=True)
    if any(is_tried(domain, view.now_s) for domain in view.domains):
        return None  # it takes new programs again in a moment
    # likewise, once its GPUs are divided, or mpsd control has seen that they are watched again
    is_soon = view.is_regrouping or any(domain.record.unwatched for domain in view.domains)
    if is_soon and view.now_s < waiting.asked_s + DIVIDE_S:
        return None
    if waiting.deadline_s is not None and view.now_s < waiting.deadline_s:
        return None
    reasons = [placed.reason]
    if not isinstance(waiting.request, CardsRequest):  # who names GPUs asks for no others
        reasons += [
            why_closed(domain) for domain in view.domains if not is_open(domain, view.now_s)
        ]
        reasons += [no_daemon(gpu.label) for gpu in without_domain]
        reasons += dict.fromkeys(_closed_to_grants(view).values())
    return Refuse(waiting.id, "; ".join(reasons), for_ever=False)


def _only_one(waits: WaitingRequest) -> str:
    """waits: the one that a user has already."""
    what = f"user {waits.tenant} has request {waits.id} waiting ({waits.holder}), and may have one"
    return f"{what}; end that program, or try again once it has its answer"


def _place_behind(
    waiting: WaitingRequest,
    placed: Placed,
    rooms: Sequence[GpuCapacity],
    grants: Sequence[Grant],
    ahead: Sequence[QueuePlace],
    policy: Policy,
) -> Placed | InsufficientResources:
    """Where it delays none of those ahead: there, else on other GPUs that have room."""
    left = {room.gpu.uuid for room in rooms}
    while one := delayed_by(_grant(waiting, placed, policy), ahead, grants, rooms, policy):
        left -= one.gpus.intersection(placed.gpus)
        again = None
        if not isinstance(waiting.request, CardsRequest):
            again = find_gpus(waiting.request, rooms, policy, left)
        if again is None:
            why = f"it would delay request {one.waiting.id}, which waits already"
            return InsufficientResources(why, ever=True)
        placed = again
    return placed


def why_waiting(view: NodeView, policy: Policy) -> Mapping[str, str]:
    """By id, why a request goes on waiting; one that is about to be answered is left out."""
    grants = _held(view)
    open_rooms = _open_rooms(view, grants, policy)
    queue: list[QueuePlace] = []
    reasons: dict[str, str] = {}
    for waiting in view.waiting:
        if waiting.holder_alive:
            at_once = replace(waiting, deadline_s=None, asked_s=-math.inf)
            answer = _answer(at_once, open_rooms, grants, view, queue, policy)
            if isinstance(answer, Refuse):
                reasons[waiting.id] = answer.reason
                queue.append(reserve(waiting, open_rooms, queue, policy))
    return reasons


def _held(view: NodeView) -> list[Grant]:
    return [held.grant for held in view.grants]


def had_room(request: CardsRequest, view: NodeView, policy: Policy) -> tuple[str, ...]:
    """The labels of the GPUs that could give what is asked of them."""
    asked = {part.gpu: part for part in request.parts}
    labels = []
    for room in _open_rooms(view, _held(view), policy):
        part = asked.get(room.gpu.uuid)
        if part and not any(lacks(part, room, policy)):
            labels.append(room.gpu.label)
    return tuple(labels)


def _place(
    waiting: WaitingRequest, among: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str]
) -> Placed | InsufficientResources:
    if isinstance(waiting.request, CardsRequest):
        return place_there(waiting.request, among, policy, closed)
    return place(waiting.request, among, policy)


def _why_unusable(grant: Grant, view: NodeView) -> str:
    """Why no program could start under this grant; empty where it could."""
    problems: list[str] = []
    for gpu in view.gpus:
        if memory_mib := grant.part_of(gpu.uuid).memory_mib:
            limit = ClientLimit(memory_mib, grant.thread_percent)
            problems += map(
                str, problems_with(limit, gpu.label, gpu.capability, gpu.memory_mib, gpu.sms)
            )
    return "; ".join(problems)


def _closed_gpus(view: NodeView) -> Mapping[str, str]:
    """By UUID, why it takes no programs."""
    closed = _closed_to_grants(view)
    for gpu in _without_domain(view):
        closed[gpu.uuid] = no_daemon(gpu.label)
    label = {gpu.uuid: gpu.label for gpu in view.gpus}
    for domain in view.domains:
        if not is_open(domain, view.now_s):
            for uuid in domain.record.gpus:
                named = label.get(uuid, uuid)
                closed[uuid] = f"{named} accepts no programs now: {why_closed(domain)}"
    return closed


def _closed_to_grants(view: NodeView) -> dict[str, str]:
    """By UUID, why a GPU takes no new grant, whatever its domain does."""
    closed = dict(view.ungrantable)
    for gpu in view.gpus:
        if why := view.unseen.get(gpu.uuid):
            what = f"{gpu.label} takes no new grant until it is known which processes use it"
            closed.setdefault(gpu.uuid, f"{what}: {why}")
        if why := view.troubles.get(gpu.uuid):  # before its domain says so
            closed.setdefault(gpu.uuid, f"{gpu.label} takes no new grant: {why}")
    return closed


def is_open(domain: DomainView, now_s: float) -> bool:
    """Whether it takes new programs. now_s: of CLOCK_BOOTTIME."""
    return domain.state in SERVING and not domain.record.unwatched and not is_tried(domain, now_s)


def is_tried(domain: DomainView, now_s: float) -> bool:
    """Whether mpsd makes its own context there first. now_s: of CLOCK_BOOTTIME."""
    return domain.state in SERVING and now_s < domain.record.held_until_s


def why_closed(domain: DomainView) -> str:
    """Why a domain that is not open takes no new programs."""
    if domain.record.unwatched:
        return domain.record.unwatched
    if domain.state in SERVING:
        return f"{domain.name} is tried by mpsd, after its last client was killed"
    return because(f"{domain.name} is {after_is(domain.state)}", domain.record.reason)


def no_daemon(name: str) -> str:
    """name: of a domain, or the label of a GPU."""
    return f"{name} has no control daemon yet"


def _without_domain(view: NodeView) -> list[Gpu]:
    """GPUs that `mpsd control` has not named yet."""
    known = view.domain_of
    return [gpu for gpu in view.gpus if gpu.uuid not in known]


def _grant(waiting: WaitingRequest, placed: Placed, policy: Policy) -> Grant:
    request = waiting.request
    percent = request.thread_percent
    if isinstance(request, CardsRequest):
        parts = request.parts
    else:
        parts = evenly(placed.gpus, request.memory_mib, percent or 0)
    if percent is None:
        percent = policy.requests.default_thread_percent
    return Grant(
        id=waiting.id,
        domain=placed.domain,
        parts=parts,
        thread_percent=percent,
        clients=policy.requests.clients_per_grant,
        holder=waiting.holder,
        command=waiting.command,
    )


def _all_rooms(view: NodeView, grants: Iterable[Grant], policy: Policy) -> tuple[GpuCapacity, ...]:
    domain_of = view.domain_of
    gpus = [gpu for gpu in view.gpus if gpu.uuid in domain_of]
    return rooms(gpus, domain_of, grants, policy, view.on_demand)


def _open_rooms(view: NodeView, grants: Iterable[Grant], policy: Policy) -> tuple[GpuCapacity, ...]:
    """The rooms of domains that serve, but for GPUs of which not all is known."""
    serving = {domain.name for domain in view.domains if is_open(domain, view.now_s)}
    closed = _closed_to_grants(view)
    rooms_now = _all_rooms(view, grants, policy)
    return tuple(
        room for room in rooms_now if room.domain in serving and room.gpu.uuid not in closed
    )


def _limits_to_set(domain: DomainView, grants: Iterable[Grant]) -> Iterator[ServerLimit]:
    """Each ordinal gets the domain's largest grant, or denial. It is the client's own ordinal
    (docs/mps-observed.md, section 3), so none can have a limit for its GPU."""
    if domain.state not in ANSWERING:
        return
    gpus = set(domain.record.gpus)
    own_mib = [
        grant.memory_mib
        for grant in grants
        if grant.domain == domain.name and not gpus.isdisjoint(grant.gpus)
    ]
    largest_mib = max(own_mib, default=DENY_MIB)
    for ordinal in range(len(gpus)):
        for server in (None, *domain.record.servers):
            wanted = ServerLimit(server, ordinal, largest_mib)
            if wanted not in domain.limits:
                yield wanted


def _lowers(wanted: ServerLimit, domain: DomainView) -> bool:
    """True where a larger limit is known to be in force."""
    return any(
        limit.memory_mib > wanted.memory_mib
        for limit in domain.limits
        if (limit.server, limit.ordinal) == (wanted.server, wanted.ordinal)
    )
