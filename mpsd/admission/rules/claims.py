"""What a ResourceClaim, or a template of one, asks of mpsd, and why it can never be served.

The scheduler only compares amounts: of a capacity that no device has, or of more than any has, it
says no more than that the claim cannot be allocated, and of GPUs that no control daemon has
together it says nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.admission.rules.requests import BY_CLASS
from mpsd.kubelet.dra.rules.slices import CLIENTS, MEMORY, THREADS
from mpsd.model.client_limits import BELOW_NORMAL, PRIORITIES
from mpsd.model.container import Container
from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.names import CLAIM_CLASS, CLAIM_DRIVER, WHOLE_CLASS
from mpsd.model.pod import CLAIM_TEMPLATE, ClaimName, Pod
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem, shown
from mpsd.model.quantity import gib, whole
from mpsd.model.request import ContainerRequest

_MIB, _WHOLE = 1024**2, 100  # percent of the threads, as WHOLE_CLASS says itself
_BELOW = [word for word, priority in PRIORITIES.items() if priority == BELOW_NORMAL]
_DOMAIN = f"{CLAIM_DRIVER}/domain"
_UUID = f"{CLAIM_DRIVER}/uuid"
# the most, an example
_AMOUNTS = {MEMORY: (2**63 - 1, "7Gi"), THREADS: (100, '"30"'), CLIENTS: (2**31 - 1, '"4"')}


# -- as it was written ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimOption:
    """One alternative of a request, which most have alone. amounts: of each GPU. gpus: None for all
    of a node."""

    where: str
    device_class: str
    amounts: Fields
    gpus: int | None
    is_admin: bool


@dataclass(frozen=True, slots=True)
class ClaimConstraint:
    """requests: those that it is for, none for all."""

    kind: str
    attribute: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """path: to what it asks for. requests: each by its name. parameters: those for mpsd's driver,
    each with its path. problems: whatever has the wrong shape."""

    path: str
    requests: tuple[tuple[str, tuple[ClaimOption, ...]], ...]
    constraints: tuple[ClaimConstraint, ...]
    parameters: tuple[tuple[str, object], ...]
    problems: tuple[Problem, ...]

    def ours(self, policy: Policy) -> tuple[tuple[str, tuple[ClaimOption, ...]], ...]:
        """The requests that only mpsd's classes can serve."""
        classes = policy.admission.device_classes
        return tuple(
            one
            for one in self.requests
            if one[1] and all(each.device_class in classes for each in one[1])
        )

    def keeps(self, kind: str, attribute: str, requests: Sequence[str]) -> bool:
        """Whether a constraint of this kind on this attribute is for all of these requests."""
        found = (one for one in self.constraints if (one.kind, one.attribute) == (kind, attribute))
        return any(not one.requests or set(requests) <= set(one.requests) for one in found)


def read_claim_spec(thing: Fields, kind: str) -> ClaimSpec:
    """Of a ResourceClaim or a template of one, whatever JSON it is."""
    fields = FieldReader()
    spec = fields.mapping(thing, "spec", "")
    path = "spec"
    if kind == CLAIM_TEMPLATE:
        spec = fields.mapping(spec, "spec", path)
        path = "spec.spec"
    devices = fields.mapping(spec, "devices", path)
    path = at(path, "devices")
    requests = tuple(
        (fields.text(one, "name", where), tuple(_options(fields, one, where)))
        for where, one in fields.entries(devices, "requests", path)
    )
    constraints = tuple(
        ClaimConstraint(each, fields.text(one, each, where), fields.texts(one, "requests", where))
        for where, one in fields.entries(devices, "constraints", path)
        for each in ("matchAttribute", "distinctAttribute")
    )
    opaque = [
        (at(where, "opaque", "parameters"), fields.mapping(one, "opaque", where))
        for where, one in fields.entries(devices, "config", path)
    ]
    parameters = tuple(
        (where, one.get("parameters")) for where, one in opaque if one.get("driver") == CLAIM_DRIVER
    )
    problems = (*fields.problems, *([fields.too_many] if fields.too_many else []))
    return ClaimSpec(path, requests, constraints, parameters, tuple(dict.fromkeys(problems)))


def _options(fields: FieldReader, request: Fields, where: str) -> Iterator[ClaimOption]:
    """A request of resource.k8s.io/v1beta1 is its own only one."""
    exactly = at(where, "exactly"), fields.mapping(request, "exactly", where)
    for path, one in ((where, request), exactly, *fields.entries(request, "firstAvailable", where)):
        if name := fields.text(one, "deviceClassName", path):
            capacity = fields.mapping(one, "capacity", path)
            amounts = fields.mapping(capacity, "requests", at(path, "capacity"))
            count = fields.number(one, "count", path, absent=1)
            gpus = None if one.get("allocationMode") == "All" else 1 if count is None else count
            yield ClaimOption(path, name, amounts, gpus, fields.flag(one, "adminAccess", path))


def classes_of(thing: Fields, kind: str) -> tuple[str, ...]:
    """The device classes that it asks for, one or another."""
    found = (
        one.device_class
        for _name, options in read_claim_spec(thing, kind).requests
        for one in options
    )
    return tuple(dict.fromkeys(found))


# -- what it asks for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """What it asks for, by the first alternative of its first request of mpsd's class, rounded as
    the scheduler does. memory_mib: of each GPU; None for all that one has. reserved_percent: of the
    threads; 0 where none are reserved. thread_cap, clients: None where it names none. gpus: of all
    requests; None for all of a node. below_normal: its parameters say that its work can wait."""

    memory_mib: int | None
    reserved_percent: int
    thread_cap: int | None
    clients: int | None
    gpus: int | None
    below_normal: bool = False

    def __str__(self) -> str:
        """As it reads after `asks for`."""
        memory = "the memory" if self.memory_mib is None else f"{gib(self.memory_mib)} GiB"
        several = "each GPU of a node" if self.gpus is None else f"each of {self.gpus} GPUs"
        threads = f" and {self.reserved_percent} % of its threads" if self.reserved_percent else ""
        cap = (
            f", at most {self.thread_cap} % of {'them' if threads else 'its threads'}"
            if self.thread_cap
            else ""
        )
        clients = f", for {self.clients} clients" if self.clients else ""
        below = ", below normal there" if self.below_normal else ""
        return (
            f"{memory} of {'one GPU' if self.gpus == 1 else several}{threads}{cap}{clients}{below}"
        )


def asked_of(thing: Fields, kind: str, policy: Policy) -> ClaimAsked | None:
    """None where it asks for no GPU of mpsd. Amounts that are none count as absent."""
    spec = read_claim_spec(thing, kind)
    classes = policy.admission.device_classes
    found = [
        next((one for one in options if one.device_class in classes), None)
        for _name, options in spec.requests
    ]
    asked = [one for one in found if one]
    if not asked:
        return None
    counts = [one.gpus for one in asked]
    cap = next(
        (cap for _where, cap in _caps(spec)),
        _WHOLE if asked[0].device_class == WHOLE_CLASS else None,
    )
    memory_mib, reserved, clients = _rounded(asked[0], policy)
    gpus = None if None in counts else sum(filter(None, counts))
    below = any(
        isinstance(one, dict) and one.get("priority") in _BELOW for _where, one in spec.parameters
    )
    return ClaimAsked(memory_mib, reserved, cap, clients, gpus, below)


def claimed_requests(
    pod: Pod, policy: Policy, facts: GpuFacts, claims: Mapping[ClaimName, Fields]
) -> Iterator[ContainerRequest]:
    """What containers get by the claims that are known; nothing by one that can never be served,
    and all of a GPU only where its size is known."""
    unit_mib = policy.resources.memory_unit_mib
    whole_mib = facts.largest_room.mib // unit_mib * unit_mib if len(facts.cards) == 1 else None
    known = {
        entry: (claims[name], name.kind) for entry, name in pod.claims.items() if name in claims
    }
    asked = {
        entry: asked_of(*one, policy)
        for entry, one in known.items()
        if not wrong_in_claim(*one, policy, facts).problems
    }
    for container in pod.containers:
        found = next(
            (one for one in map(asked.get, container.claims) if one),
            asked_by_class(container, policy),
        )
        memory_mib = (found.memory_mib or whole_mib) if found else None
        if found and found.gpus and memory_mib:
            yield ContainerRequest(
                container=container.name,
                role=container.role,
                memory_units=memory_mib // unit_mib * found.gpus,
                memory_mib=memory_mib,
                thread_percent=found.reserved_percent or None,
                gpus=found.gpus,
                thread_cap=found.thread_cap,
                below_normal=found.below_normal,
            )


def asked_by_class(container: Container, policy: Policy) -> ClaimAsked | None:
    """What Kubernetes' own claim for a container that requests mpsd's class as a resource asks for;
    None where it requests none."""
    names = [f"{BY_CLASS}{name}" for name in policy.admission.device_classes]
    counts = [whole(container.limits[name]) or 0 for name in names if name in container.limits]
    return ClaimAsked(None, 0, None, None, sum(counts)) if sum(counts) else None


def _rounded(option: ClaimOption, policy: Policy) -> tuple[int | None, int, int | None]:
    """Memory in MiB, reserved threads in percent and clients."""
    memory, threads, clients = (_amount(option, name) for name in _AMOUNTS)
    unit_mib = policy.resources.memory_unit_mib
    step = policy.requests.thread_percent_step
    memory_mib = None if memory is None else max(1, -(-memory // (unit_mib * _MIB))) * unit_mib
    return (
        memory_mib,
        -(-(threads or 0) // step) * step,
        None if clients is None else max(1, clients),
    )


def _amount(option: ClaimOption, name: str) -> int | None:
    """None where it is not named, or cannot be."""
    found = whole(option.amounts.get(name))
    return found if found is not None and 0 <= found <= _AMOUNTS[name][0] else None


def _caps(spec: ClaimSpec) -> Iterator[tuple[str, int]]:
    """The caps of the threads that its parameters name, each with its path."""
    # which most who ask for classes do without
    from mpsd.kubelet.dra.rules.config import THREAD_CAP

    for where, found in spec.parameters:
        cap = found.get(THREAD_CAP) if isinstance(found, dict) else None
        if isinstance(cap, int) and not isinstance(cap, bool):
            yield at(where, THREAD_CAP), cap


# -- why it can never be served ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrongInClaim:
    """problems: why it can never be served. warnings: what was hardly meant so."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def wrong_in_claim(
    thing: Fields, kind: str, policy: Policy, facts: GpuFacts | None
) -> WrongInClaim:
    """Of a request with alternatives one must do. facts None: of a cluster, whose nodes say how
    large GPUs are and which are together."""
    spec = read_claim_spec(thing, kind)
    classes = policy.admission.device_classes
    cap = next((cap for _where, cap in _caps(spec)), None)
    problems = list[Problem]()
    warnings = list[Problem]()
    for _name, options in spec.requests:
        found = [
            [*_wrong_amounts(one, cap, policy, facts)] if one.device_class in classes else []
            for one in options
        ]
        (problems if all(found) else warnings).extend(one for each in found for one in each)
    ours = spec.ours(policy)
    if ours:
        names = [name for name, _options in ours]
        asked = [options[0] for _name, options in ours]
        problems += _wrong_together(
            spec, names, asked, policy, max([1, *map(len, policy.domains)]) if facts else None
        )
    problems += [
        *_wrong_parameters(spec, [options[0] for _name, options in ours], policy),
        *spec.problems,
    ]
    warnings += [
        one for _name, options in ours for each in options for one in _without_unit(each, policy)
    ]
    return WrongInClaim(tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(warnings)))


def _wrong_amounts(
    option: ClaimOption, cap: int | None, policy: Policy, facts: GpuFacts | None
) -> Iterator[Problem]:
    path = at(option.where, "capacity", "requests")
    for name, written in option.amounts.items():
        if option.device_class == WHOLE_CLASS and name in (MEMORY, THREADS):
            remedy = f"leave it out, or ask for the class {CLAIM_CLASS}"
            yield Problem(
                "whole-gpu",
                at(path, name),
                shown(written),
                f"{WHOLE_CLASS} is for all of a GPU",
                remedy,
            )
        elif name not in _AMOUNTS:
            remedy = f"write {', '.join(_AMOUNTS)} or nothing"
            yield Problem(
                "capacity-name",
                at(path, name),
                shown(written),
                "no GPU of mpsd has such a capacity",
                remedy,
            )
        elif _amount(option, name) is None:
            message = f"is no amount of {name} that a GPU has"
            remedy = f"write such as {_AMOUNTS[name][1]}"
            yield Problem("quantity-malformed", at(path, name), shown(written), message, remedy)
    if option.gpus is not None and option.gpus < 1:
        where = at(option.where, "count")
        message = "is no number of GPUs"
        yield Problem("gpu-count-malformed", where, shown(option.gpus), message, "write 1 or more")
    if option.is_admin:
        message = "mpsd gives nobody access to a GPU beside its grants"
        yield Problem(
            "admin-access", at(option.where, "adminAccess"), "true", message, "remove adminAccess"
        )
    if facts:
        yield from _beyond_every_gpu(option, cap, policy, facts)


def _beyond_every_gpu(
    option: ClaimOption, cap: int | None, policy: Policy, facts: GpuFacts
) -> Iterator[Problem]:
    path = at(option.where, "capacity", "requests")
    memory_mib, reserved, clients = _rounded(option, policy)
    unit_mib = policy.resources.memory_unit_mib
    promised = policy.oversubscription.memory_percent
    written = shown(option.amounts.get(MEMORY))
    percent = min(100, max(1, cap or reserved or policy.requests.default_thread_percent))
    fitting = [
        room
        for room in facts.rooms
        if (memory_mib or 0) <= min(room.mib, room.mib * promised // 100)
    ]
    if not fitting:
        largest = facts.largest_room
        most = min(largest.mib, largest.mib * promised // 100) // unit_mib * unit_mib
        message = f"is more than any GPU has: {largest.card.name} has {gib(most)} GiB"
        yield Problem(
            "memory-over-card", at(path, MEMORY), written, message, f"write {most}Mi or less"
        )
    elif memory_mib is not None and all(
        room.context_mib(percent) >= memory_mib for room in fitting
    ):
        cost_mib = min(room.context_mib(percent) for room in fitting)
        message = (
            f"is {memory_mib} MiB, too small for a CUDA context, which takes at least"
            f" {cost_mib} MiB"
        )
        yield Problem(
            "memory-below-context",
            at(path, MEMORY),
            written,
            message,
            f"write more than {cost_mib}Mi",
        )
    if clients and clients > (most := max(room.capability.clients for room in facts.rooms)):
        message = f"is more than any GPU serves, which is {most}"
        remedy = f"write {most} or less"
        yield Problem(
            "clients-over-gpu",
            at(path, CLIENTS),
            shown(option.amounts.get(CLIENTS)),
            message,
            remedy,
        )


def _wrong_together(
    spec: ClaimSpec,
    names: Sequence[str],
    asked: Sequence[ClaimOption],
    policy: Policy,
    most: int | None,
) -> Iterator[Problem]:
    """Why no grant can have the GPUs of all requests together. most: GPUs of one domain; None where
    nobody knows."""
    where = at(spec.path, "requests")
    these = " and ".join(names)
    counts = [one.gpus for one in asked]
    gpus = None if None in counts else sum(filter(None, counts))
    if (gpus is None or gpus > 1) and not spec.keeps("matchAttribute", _DOMAIN, names):
        message = "asks for several GPUs, which nothing keeps in one domain"
        remedy = f"add the constraint matchAttribute: {_DOMAIN} on {these}, or ask for one GPU"
        yield Problem("devices-of-domains", where, these, message, remedy)
    if gpus is not None and most is not None and gpus > most:
        message = (
            f"asks for {gpus} GPUs, which no domain of the policy has, and a claim for several"
            " needs one domain"
        )
        remedy = "ask for one GPU, or list as many together under domains in the policy"
        yield Problem("claim-without-domain", where, these, message, remedy)
    if len(asked) > 1 and not spec.keeps("distinctAttribute", _UUID, names):
        message = "may get one GPU twice"
        remedy = f"ask in one request by count, or add distinctAttribute: {_UUID}"
        yield Problem("device-twice", where, these, message, remedy)
    if len({_rounded(one, policy) for one in asked}) > 1:
        remedy = "ask for the same memory, threads and clients in each request"
        yield Problem(
            "devices-uneven", where, these, "does not ask for the same of each GPU", remedy
        )


def _wrong_parameters(
    spec: ClaimSpec, asked: Sequence[ClaimOption], policy: Policy
) -> Iterator[Problem]:
    from mpsd.kubelet.dra.rules.config import config_problems

    for where, found in spec.parameters:
        yield from config_problems(found, where, policy)
    reserved = max((_rounded(one, policy)[1] for one in asked), default=0)
    for where, cap in _caps(spec):
        if cap < reserved:
            message = f"is below the {reserved} percent that the claim reserves"
            yield Problem(
                "cap-below-reservation", where, str(cap), message, "raise it, or leave it out"
            )


def _without_unit(option: ClaimOption, policy: Policy) -> Iterator[Problem]:
    memory = _amount(option, MEMORY)
    unit_mib = policy.resources.memory_unit_mib
    if memory is not None and memory < _MIB:
        where = at(option.where, "capacity", "requests", MEMORY)
        message = f"is in bytes, and becomes {gib(unit_mib)} GiB"
        remedy = f"write {memory or 1}Gi" if memory < 1024 else "write it with a unit, such as 7Gi"
        yield Problem("memory-without-unit", where, shown(option.amounts[MEMORY]), message, remedy)
