"""The three dialects: which of them a container's environment speaks, and what it requests in it.

cGPU: shares of a card in GiB, a list for several cards, and a compute policy. eGPU: a main switch, memory in bytes or
by proportion, and a percentage of the threads. EGPU, CTyun's: one variable with a header and, for every card, MiB and a
percentage. There is always exactly one answer: nothing is requested, everything that is wrong, or a request.
"""

from collections.abc import Mapping, Sequence

from mpsd.containers.dialects.names import (
    BYTES,
    CONTAINER,
    DEV,
    EGPU,
    PERCENT,
    RESERVED,
    SWITCH,
    VISIBLE_DEVICES,
    WEIGHT,
)
from mpsd.containers.dialects.request import (
    MIB,
    CardRequest,
    Dialect,
    InvalidDialect,
    Off,
    Reading,
    request_of,
)
from mpsd.containers.dialects.variables import LONGEST_TEXT, Variables, whole_number
from mpsd.model.cgpu_policies import ThreadCap, percent_of, policy_for
from mpsd.model.grants import Gpu
from mpsd.model.policy import CardCompute, Compute
from mpsd.model.problem import Problem, printable, shown

# Variables of one dialect alone. CONTAINER and DEV are cGPU's and eGPU's: the switch decides whose they are.
_OWN = {Dialect.CGPU: (WEIGHT,), Dialect.EGPU: (SWITCH, BYTES, PERCENT, RESERVED), Dialect.CTYUN: (EGPU,)}
_SWITCHED_ON = "1"


def read_dialect(environment: Mapping[str, str], machine: Sequence[Gpu], compute: Compute) -> Reading:
    """What a container with this environment requests of the machine's cards. compute: what the policy sets for cGPU.

    A dialect whose switch is off requests nothing. eGPU's switch, on or off, makes CONTAINER and DEV eGPU's.
    """
    own = {dialect: next((name for name in names if name in environment), None) for dialect, names in _OWN.items()}
    cgpu_off, egpu_off = _why_cgpu_off(environment), _why_egpu_off(environment)
    spoken = {}
    if cgpu_off is None and (SWITCH not in environment or own[Dialect.CGPU]):
        spoken[Dialect.CGPU] = own[Dialect.CGPU] or CONTAINER
    if (name := own[Dialect.EGPU]) and (SWITCH not in environment or egpu_off is None):
        spoken[Dialect.EGPU] = name
    if name := own[Dialect.CTYUN]:
        spoken[Dialect.CTYUN] = name
    if len(spoken) > 1:
        named = " and ".join(f"{dialect.value} ({name})" for dialect, name in spoken.items())
        message = f"is written in {len(spoken)} dialects: {named}"
        return InvalidDialect((Problem("two-dialects", "the environment", "", message, "keep the variables of one"),))
    if Dialect.CGPU in spoken:
        return _read_cgpu(environment, machine, compute)
    if Dialect.CTYUN in spoken:
        return _read_ctyun(environment, machine)
    if Dialect.EGPU in spoken and egpu_off is None:
        return _read_egpu(environment, machine)
    if SWITCH in environment or Dialect.EGPU in spoken:
        return Off(egpu_off or "")
    if any(name in environment for name in (CONTAINER, DEV, WEIGHT)):
        return Off(cgpu_off or "")
    return Off("no variable of cGPU, eGPU or EGPU is set")


def _size_gib(gpu: Gpu) -> int:
    """What DEV is where it is not set: the card's size in GiB, rounded up, as eGPU's document has it."""
    return -(-gpu.memory_mib // 1024)


# -- cGPU ------------------------------------------------------------------------------------------------------------


def _why_cgpu_off(environment: Mapping[str, str]) -> str | None:
    """Not set, 0, or a list of numbers with a 0 in it, such as 1,0,0. None where a share is requested."""
    text = environment.get(CONTAINER)
    if text is None:
        return f"{CONTAINER} is not set"
    parts = [whole_number(part) for part in text[:LONGEST_TEXT].split(",")]
    is_off = len(text) <= LONGEST_TEXT and None not in parts and 0 in parts
    return f"{CONTAINER}={printable(text)} turns cGPU off" if is_off else None


def _read_cgpu(environment: Mapping[str, str], machine: Sequence[Gpu], compute: Compute) -> Reading:
    """Bytes are card × CONTAINER / DEV, rounded down; the last value of a list is that of all further cards."""
    variables = Variables(environment)
    parts = variables.numbers(CONTAINER, "write GiB for all cards, such as 6, or for each, such as 3,4,5,6")
    dev = variables.number(DEV, "write the card's size in GiB, such as 15")
    weight = variables.number(WEIGHT, "write 1 or more; above 1 it selects the weighted policy")
    gpus = variables.gpus(machine)
    if gpus and len(parts) > len(gpus):
        message = f"has {len(parts)} values for {len(gpus)} card{'' if len(gpus) == 1 else 's'}"
        variables.refuse("too-many-values", CONTAINER, environment[CONTAINER], message, "write at most one for each")
    for gpu in gpus:
        max_inst = compute.of(gpu.ordinal).max_inst
        if weight is not None and max_inst is not None and weight > max_inst:
            message = f"is more than max_inst of {gpu.label}, which is {max_inst}"
            variables.refuse("weight-over-card", WEIGHT, str(weight), message, f"write 1 to {max_inst}")
    cards = [
        _cgpu_card(gpu, gpu.memory_mib * MIB * part // (dev or _size_gib(gpu)), weight, compute.of(gpu.ordinal))
        for gpu, part in zip(gpus, (*parts, *parts[-1:] * (len(gpus) - len(parts))), strict=False)
        if variables.are_valid(CONTAINER, DEV)
    ]
    return request_of(Dialect.CGPU, cards, variables.problems)


def _cgpu_card(gpu: Gpu, memory_bytes: int, weight: int | None, compute: CardCompute) -> CardRequest:
    policy = policy_for(weight or 1, compute.policy)
    percent = percent_of(policy.share, weight or 1, compute.max_inst)
    return CardRequest(
        gpu=gpu,
        where=CONTAINER,
        memory_bytes=memory_bytes,
        thread_percent=min(100, percent),
        reserved_percent=0 if policy.share is ThreadCap.WHOLE else percent,
        weight=weight,
        policy=policy.number,
        differs=(f"policy {policy.number}, {policy.name}: {policy.on_mps}",),
    )


# -- eGPU ------------------------------------------------------------------------------------------------------------

_RESERVED_MIB = 10  # where it is not set
_LARGEST_PERCENT = 95  # over it compute is not controlled
_EGPU_CAPPED = (
    f"{PERCENT} caps the SMs that a program may use, where eGPU counts time; it is set when a program makes its context"
)
_NO_LIMIT = "no limit of memory is requested: mpsd reserves the whole card for it, so nobody shares it"


def _why_egpu_off(environment: Mapping[str, str]) -> str | None:
    """Why nothing is changed, whatever else is written; None where the switch is on."""
    switch = environment.get(SWITCH)
    if switch == _SWITCHED_ON:
        return None
    return f"{SWITCH} is not set" if switch is None else f"{SWITCH} is {shown(switch)}, not {_SWITCHED_ON}"


def _read_egpu(environment: Mapping[str, str], machine: Sequence[Gpu]) -> Reading:
    variables = Variables(environment)
    size_bytes = variables.number(BYTES, "write bytes, such as 5000000000")
    container = variables.number(CONTAINER, "write the container's part, such as 5")
    dev = variables.number(DEV, "write the card's size in the same unit, such as 16")
    reserved_mib = variables.number(RESERVED, f"write MB, such as {_RESERVED_MIB}", least=0)
    percent = variables.number(PERCENT, f"write 1 to {_LARGEST_PERCENT}, or 0 for no cap", least=0) or 0
    if BYTES in environment and CONTAINER in environment:
        message = f"and {CONTAINER} both set the amount of memory"
        variables.refuse("memory-twice", BYTES, environment[BYTES], message, "leave one of them out")
    if DEV in environment and CONTAINER not in environment:
        message = f"gives the size of a card, but {CONTAINER} does not say how much of it"
        variables.refuse("share-unsaid", DEV, environment[DEV], message, f"set {CONTAINER}, or leave {DEV} out")
    is_capped = 0 < percent <= _LARGEST_PERCENT
    if not (variables.problems or size_bytes or container or is_capped):
        return Off(f"{SWITCH}=1, with no limit of memory and none of compute")
    gpus = variables.gpus(machine)
    kept_bytes = (_RESERVED_MIB if reserved_mib is None else reserved_mib) * MIB

    def memory_bytes(gpu: Gpu) -> int:
        if container:
            return gpu.memory_mib * MIB * container // (dev or _size_gib(gpu)) - kept_bytes
        return size_bytes - kept_bytes if size_bytes else gpu.memory_mib * MIB

    is_limited = bool(container or size_bytes)
    cards = [
        CardRequest(
            gpu=gpu,
            where=CONTAINER if container else BYTES if size_bytes else PERCENT,
            memory_bytes=memory_bytes(gpu),
            thread_percent=percent if is_capped else 100,
            reserved_percent=percent if is_capped else 0,
            differs=(*([_EGPU_CAPPED] if is_capped else []), *([] if is_limited else [_NO_LIMIT])),
        )
        for gpu in gpus
        if variables.are_valid(BYTES, CONTAINER, DEV, RESERVED)
    ]
    return request_of(Dialect.EGPU, cards, variables.problems)


# -- CTyun's EGPU ----------------------------------------------------------------------------------------------------

_EXAMPLE = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"
_HEADER = {"POLICY": "0", "ONLINE": "0", "TYPE": "DOCKER"}  # the only values whose meaning is published
_CARD = {  # what each is at least and at most, and what to write instead; None: no most
    "PGPU": (0, None, "write a card's index"),
    "MEM": (1, None, "write MiB"),
    "WEIGHT": (1, 100, "write 1 to 100"),
}
_CTYUN_CAPPED = (
    "WEIGHT caps the SMs that a program may use, where EGPU counts time; it is set when a program makes its context"
)


def _read_ctyun(environment: Mapping[str, str], machine: Sequence[Gpu]) -> Reading:
    """Nothing is reserved for a variable that is not as published; not set is as wrong as empty."""
    variables = Variables(environment)
    header, *parts = (variables.text(EGPU) or "").split(":")
    if not variables.problems:
        for key, value in _fields(variables, header, _HEADER).items():
            if value != _HEADER[key]:
                message = f"is not {_HEADER[key]}, the only value that is published"
                variables.refuse("dialect-unknown-value", f"{EGPU} {key}", value, message, f"write {_HEADER[key]}")
        if not parts:
            variables.refuse("no-card", EGPU, header, "names no card", f"write it as {_EXAMPLE}")
    numbers = [_card_numbers(variables, part) for part in parts]
    by_ordinal = {card["PGPU"]: card for card in numbers if "PGPU" in card}
    if sum("PGPU" in card for card in numbers) > len(by_ordinal):
        variables.refuse("device-twice", EGPU, environment[EGPU], "has one PGPU twice", "name each card once")
    cards = [
        CardRequest(
            gpu=gpu,
            where=f"{EGPU} MEM",
            memory_bytes=card["MEM"] * MIB,
            thread_percent=(weight := card.get("WEIGHT", 100)),  # with a wrong one, memory is still checked
            reserved_percent=weight,
            weight=weight,
            differs=(_CTYUN_CAPPED,) if weight < 100 else (),
        )
        for gpu in _ctyun_gpus(variables, environment, machine, by_ordinal)
        if "MEM" in (card := by_ordinal[gpu.ordinal])
    ]
    return request_of(Dialect.CTYUN, cards, variables.problems)


def _fields(variables: Variables, part: str, keys: Mapping[str, object]) -> dict[str, str]:
    """The KEY=VALUE of one part; wrong unless every key is there once and no other."""
    pairs = [pair.partition("=") for pair in part.split(",")]
    if sorted(key for key, _, _ in pairs) != sorted(keys) or not all(equals for _, equals, _ in pairs):
        message = f"does not give {', '.join(keys)} once each"
        variables.refuse("dialect-malformed", EGPU, part, message, f"write it as {_EXAMPLE}")
        return {}
    return {key: value for key, _, value in pairs}


def _card_numbers(variables: Variables, part: str) -> dict[str, int]:
    """The numbers of one card, those that are valid."""
    valid = {}
    for key, text in _fields(variables, part, _CARD).items():
        least, most, remedy = _CARD[key]
        number, where = whole_number(text), f"{EGPU} {key}"
        if most is not None and number is not None and not least <= number <= most:
            message = f"is no percentage of a card from {least} to {most}"
            variables.refuse("percent-range", where, text, message, remedy)
        elif number is None or number < least:
            variables.refuse("not-a-number", where, text, f"is not a whole number of at least {least}", remedy)
        else:
            valid[key] = number
    return valid


def _ctyun_gpus(
    variables: Variables, environment: Mapping[str, str], machine: Sequence[Gpu], by_ordinal: Mapping[int, object]
) -> tuple[Gpu, ...]:
    """The cards that PGPU names: exactly those that the container sees, where NVIDIA_VISIBLE_DEVICES is set."""
    known = {gpu.ordinal: gpu for gpu in machine}
    for ordinal in by_ordinal:
        if ordinal not in known:
            remedy = f"write {', '.join(map(str, known))}" if known else "run it where a GPU is"
            variables.refuse("device-unknown", f"{EGPU} PGPU", ordinal, "is no card of this machine", remedy)
    named = tuple(known[ordinal] for ordinal in by_ordinal if ordinal in known)
    seen = variables.gpus(machine) if VISIBLE_DEVICES in environment else ()
    if seen and by_ordinal:
        for gpu in seen:
            if gpu.ordinal not in by_ordinal:
                message = f"shows {gpu.label}, but {EGPU} has no PGPU={gpu.ordinal}"
                value = environment[VISIBLE_DEVICES]
                variables.refuse("device-unlimited", VISIBLE_DEVICES, value, message, "name the same cards")
        for gpu in named:
            if gpu not in seen:
                message = f"names {gpu.label}, which {VISIBLE_DEVICES} does not show"
                variables.refuse("device-unseen", f"{EGPU} PGPU", gpu.ordinal, message, "name the same cards")
    return named
