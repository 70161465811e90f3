"""What a ResourceClaim, or a template of one, asks of mpsd, and why it can never be served: the
scheduler only says that it cannot be allocated, or, of GPUs of several control daemons, nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.admission.rules.requests import BY_CLASS, largest_domain
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


# -- as it was written


@dataclass(frozen=True, slots=True)
class ClaimOption:
    """One alternative of a request. amounts: of each GPU. gpus: None for all of a node."""

    where: str
    device_class: str
    amounts: Fields
    gpus: int | None
    is_admin: bool


@dataclass(frozen=True, slots=True)
class ClaimConstraint:
    """requests: none for all."""

    kind: str
    attribute: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """path: to what it asks for. requests: by name. parameters: those for mpsd's driver, by path.
    problems: of its shape."""

    path: str
    requests: tuple[tuple[str, tuple[ClaimOption, ...]], ...]
    constraints: tuple[ClaimConstraint, ...]
    parameters: tuple[tuple[str, object], ...]
    problems: tuple[Problem, ...]

    def ours(self, policy: Policy) -> tuple[tuple[str, tuple[ClaimOption, ...]], ...]:
        """The requests that only mpsd's classes can serve."""
        classes = policy.admission.device_classes
        found = []
        for name, options in self.requests:
            if options and {one.device_class for one in options} <= {*classes}:
                found.append((name, options))
        return tuple(found)

    def keeps(self, kind: str, attribute: str, requests: Sequence[str]) -> bool:
        for one in self.constraints:
            is_same = (one.kind, one.attribute) == (kind, attribute)
            if is_same and (not one.requests or {*requests} <= {*one.requests}):
                return True
        return False


def read_claim_spec(thing: Fields, kind: str) -> ClaimSpec:
    """Whatever JSON it is."""
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
    parameters = []
    for where, one in fields.entries(devices, "config", path):
        opaque = fields.mapping(one, "opaque", where)
        if opaque.get("driver") == CLAIM_DRIVER:
            parameters.append((at(where, "opaque", "parameters"), opaque.get("parameters")))
    problems = [*fields.problems]
    if fields.too_many:
        problems.append(fields.too_many)
    return ClaimSpec(path, requests, constraints, tuple(parameters), tuple(dict.fromkeys(problems)))


def _options(fields: FieldReader, request: Fields, where: str) -> Iterator[ClaimOption]:
    """A request of resource.k8s.io/v1beta1 is its own only one."""
    exactly = at(where, "exactly"), fields.mapping(request, "exactly", where)
    for path, one in ((where, request), exactly, *fields.entries(request, "firstAvailable", where)):
        if name := fields.text(one, "deviceClassName", path):
            capacity = fields.mapping(one, "capacity", path)
            amounts = fields.mapping(capacity, "requests", at(path, "capacity"))
            gpus = fields.number(one, "count", path, absent=1)
            if one.get("allocationMode") == "All":
                gpus = None
            elif gpus is None:
                gpus = 1
            yield ClaimOption(path, name, amounts, gpus, fields.flag(one, "adminAccess", path))


def classes_of(thing: Fields, kind: str) -> tuple[str, ...]:
    found = (
        one.device_class
        for _name, options in read_claim_spec(thing, kind).requests
        for one in options
    )
    return tuple(dict.fromkeys(found))


# -- what it asks for


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """By the first alternative of its first request of mpsd's class, rounded as the scheduler does.
    memory_mib: of each GPU; None for all that one has. reserved_percent: of the threads, or 0.
    thread_cap, clients: None where it names none. gpus: of all requests; None for all of a node.
    below_normal: its parameters say that its work can wait."""

    memory_mib: int | None
    reserved_percent: int
    thread_cap: int | None
    clients: int | None
    gpus: int | None
    below_normal: bool = False

    def __str__(self) -> str:
        """As it reads after `asks for`."""
        few = {1: "one GPU", None: "each GPU of a node"}
        memory = "the memory" if self.memory_mib is None else f"{gib(self.memory_mib)} GiB"
        words = [memory, " of ", few.get(self.gpus, f"each of {self.gpus} GPUs")]
        capped = "its threads"
        if self.reserved_percent:
            words.append(f" and {self.reserved_percent} % of its threads")
            capped = "them"
        if self.thread_cap:
            words.append(f", at most {self.thread_cap} % of {capped}")
        if self.clients:
            words.append(f", for {self.clients} clients")
        if self.below_normal:
            words.append(", below normal there")
        return "".join(words)


def asked_of(thing: Fields, kind: str, policy: Policy) -> ClaimAsked | None:
    """None where it asks for no GPU of mpsd."""
    spec = read_claim_spec(thing, kind)
    classes = policy.admission.device_classes
    found = [
        next((one for one in options if one.device_class in classes), None)
        for _name, options in spec.requests
    ]
    asked = [one for one in found if one]
    if not asked:
        return None
    cap = _cap(spec)
    if cap is None and asked[0].device_class == WHOLE_CLASS:
        cap = _WHOLE
    memory_mib, reserved, clients = _rounded(asked[0], policy)
    below = any(
        isinstance(one, dict) and one.get("priority") in _BELOW for _where, one in spec.parameters
    )
    return ClaimAsked(memory_mib, reserved, cap, clients, _gpus(asked), below)


def _gpus(options: Sequence[ClaimOption]) -> int | None:
    """None for all of a node."""
    total = 0
    for one in options:
        if one.gpus is None:
            return None
        total += one.gpus
    return total


def claimed_requests(
    pod: Pod, policy: Policy, facts: GpuFacts, claims: Mapping[ClaimName, Fields]
) -> Iterator[ContainerRequest]:
    """Nothing by a claim that can never be served; all of a GPU only where its size is known."""
    unit_mib = policy.resources.memory_unit_mib
    whole_mib = None
    if len(facts.cards) == 1:
        whole_mib = facts.largest_room.mib // unit_mib * unit_mib
    asked = {}
    for entry, name in pod.claims.items():
        claim = claims.get(name)
        if claim and not wrong_in_claim(claim, name.kind, policy, facts).problems:
            asked[entry] = asked_of(claim, name.kind, policy)
    for container in pod.containers:
        by_name = filter(None, map(asked.get, container.claims))
        found = next(by_name, None) or asked_by_class(container, policy)
        if found and found.gpus and (memory_mib := found.memory_mib or whole_mib):
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
    """By a container that requests mpsd's class as a resource; None where it requests none."""
    gpus = 0
    for name in policy.admission.device_classes:
        gpus += whole(container.limits.get(f"{BY_CLASS}{name}")) or 0
    return ClaimAsked(None, 0, None, None, gpus) if gpus else None


def _rounded(option: ClaimOption, policy: Policy) -> tuple[int | None, int, int | None]:
    """Memory in MiB, reserved threads in percent and clients."""
    memory, threads, clients = (_amount(option, name) for name in _AMOUNTS)
    unit_mib = policy.resources.memory_unit_mib
    step = policy.requests.thread_percent_step
    if memory is not None:
        memory = max(1, -(-memory // (unit_mib * _MIB))) * unit_mib
    if clients is not None:
        clients = max(1, clients)
    return memory, -(-(threads or 0) // step) * step, clients


def _amount(option: ClaimOption, name: str) -> int | None:
    """None where it is none."""
    found = whole(option.amounts.get(name))
    return found if found is not None and 0 <= found <= _AMOUNTS[name][0] else None


def _caps(spec: ClaimSpec) -> Iterator[tuple[str, int]]:
    """Those that its parameters name, by path."""
    # which most who ask for classes do without
    from mpsd.kubelet.dra.rules.config import THREAD_CAP

    for where, found in spec.parameters:
        cap = found.get(THREAD_CAP) if isinstance(found, dict) else None
        if isinstance(cap, int) and not isinstance(cap, bool):
            yield at(where, THREAD_CAP), cap


def _cap(spec: ClaimSpec) -> int | None:
    """None where it names none."""
    return next((cap for _where, cap in _caps(spec)), None)


# -- why it can never be served


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
    problems = list[Problem]()
    warnings = list[Problem]()
    for _name, options in spec.requests:
        wrong = list[Problem]()
        can_be_served = False
        for one in options:
            found = []
            if one.device_class in classes:
                found = [*_wrong_amounts(one, _cap(spec), policy, facts)]
            can_be_served = can_be_served or not found
            wrong += found
        (warnings if can_be_served else problems).extend(wrong)
    ours = spec.ours(policy)
    asked = [options[0] for _name, options in ours]
    if ours:
        most = largest_domain(policy) if facts else None
        problems += _wrong_together(spec, [name for name, _options in ours], asked, policy, most)
    problems += [*_wrong_parameters(spec, asked, policy), *spec.problems]
    for _name, options in ours:
        for each in options:
            warnings += _without_unit(each, policy)
    return WrongInClaim(tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(warnings)))


def _wrong_amounts(
    option: ClaimOption, cap: int | None, policy: Policy, facts: GpuFacts | None
) -> Iterator[Problem]:
    path = at(option.where, "capacity", "requests")
    for name, written in option.amounts.items():
        if option.device_class == WHOLE_CLASS and name in (MEMORY, THREADS):
            rule = "whole-gpu"
            message = f"{WHOLE_CLASS} is for all of a GPU"
            remedy = f"leave it out, or ask for the class {CLAIM_CLASS}"
        elif name not in _AMOUNTS:
            rule = "capacity-name"
            message = "no GPU of mpsd has such a capacity"
            remedy = f"write {', '.join(_AMOUNTS)} or nothing"
        elif _amount(option, name) is None:
            rule = "quantity-malformed"
            message = f"is no amount of {name} that a GPU has"
            remedy = f"write such as {_AMOUNTS[name][1]}"
        else:
            continue
        yield Problem(rule, at(path, name), shown(written), message, remedy)
    if option.gpus is not None and option.gpus < 1:
        where = at(option.where, "count")
        message = "is no number of GPUs"
        yield Problem("gpu-count-malformed", where, shown(option.gpus), message, "write 1 or more")
    if option.is_admin:
        where = at(option.where, "adminAccess")
        message = "mpsd gives nobody access to a GPU beside its grants"
        yield Problem("admin-access", where, "true", message, "remove adminAccess")
    if facts:
        yield from _beyond_every_gpu(option, cap, policy, facts)


def _beyond_every_gpu(
    option: ClaimOption, cap: int | None, policy: Policy, facts: GpuFacts
) -> Iterator[Problem]:
    memory_mib, reserved, clients = _rounded(option, policy)
    unit_mib = policy.resources.memory_unit_mib
    promised = min(100, policy.oversubscription.memory_percent)

    def wrong(rule: str, name: str, message: str, remedy: str) -> Problem:
        where = at(option.where, "capacity", "requests", name)
        return Problem(rule, where, shown(option.amounts.get(name)), message, remedy)

    fitting = [room for room in facts.rooms if (memory_mib or 0) <= room.mib * promised // 100]
    percent = min(100, max(1, cap or reserved or policy.requests.default_thread_percent))
    cost_mib = min((room.context_mib(percent) for room in fitting), default=0)
    if not fitting:
        largest = facts.largest_room
        most = largest.mib * promised // 100 // unit_mib * unit_mib
        message = f"is more than any GPU has: {largest.card.name} has {gib(most)} GiB"
        yield wrong("memory-over-card", MEMORY, message, f"write {most}Mi or less")
    elif memory_mib is not None and cost_mib >= memory_mib:
        message = (
            f"is {memory_mib} MiB, too small for a CUDA context, which takes at least"
            f" {cost_mib} MiB"
        )
        yield wrong("memory-below-context", MEMORY, message, f"write more than {cost_mib}Mi")
    most = max(room.capability.clients for room in facts.rooms)
    if clients and clients > most:
        message = f"is more than any GPU serves, which is {most}"
        yield wrong("clients-over-gpu", CLIENTS, message, f"write {most} or less")


def _wrong_together(
    spec: ClaimSpec,
    names: Sequence[str],
    asked: Sequence[ClaimOption],
    policy: Policy,
    most: int | None,
) -> Iterator[Problem]:
    """Why no grant can have the GPUs of all requests. most: GPUs of one domain; None: nobody
    knows."""
    these = " and ".join(names)

    def wrong(rule: str, message: str, remedy: str) -> Problem:
        return Problem(rule, at(spec.path, "requests"), these, message, remedy)

    gpus = _gpus(asked)
    if (gpus is None or gpus > 1) and not spec.keeps("matchAttribute", _DOMAIN, names):
        yield wrong(
            "devices-of-domains",
            "asks for several GPUs, which nothing keeps in one domain",
            f"add the constraint matchAttribute: {_DOMAIN} on {these}, or ask for one GPU",
        )
    if gpus is not None and most is not None and gpus > most:
        yield wrong(
            "claim-without-domain",
            f"asks for {gpus} GPUs, which no domain of the policy has, and a claim for several"
            " needs one domain",
            "ask for one GPU, or list as many together under domains in the policy",
        )
    if len(asked) > 1 and not spec.keeps("distinctAttribute", _UUID, names):
        remedy = f"ask in one request by count, or add distinctAttribute: {_UUID}"
        yield wrong("device-twice", "may get one GPU twice", remedy)
    if len({_rounded(one, policy) for one in asked}) > 1:
        remedy = "ask for the same memory, threads and clients in each request"
        yield wrong("devices-uneven", "does not ask for the same of each GPU", remedy)


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
            remedy = "raise it, or leave it out"
            yield Problem("cap-below-reservation", where, str(cap), message, remedy)


def _without_unit(option: ClaimOption, policy: Policy) -> Iterator[Problem]:
    memory = _amount(option, MEMORY)
    unit_mib = policy.resources.memory_unit_mib
    if memory is not None and memory < _MIB:
        where = at(option.where, "capacity", "requests", MEMORY)
        message = f"is in bytes, and becomes {gib(unit_mib)} GiB"
        remedy = "write it with a unit, such as 7Gi"
        if memory < 1024:
            remedy = f"write {memory or 1}Gi"
        yield Problem("memory-without-unit", where, shown(option.amounts[MEMORY]), message, remedy)
