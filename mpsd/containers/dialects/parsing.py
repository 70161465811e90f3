"""Parses a container's variables. cGPU: shares of a card in GiB, and a compute policy. eGPU: a
switch, bytes or a proportion, a percentage. EGPU, CTyun's: MiB and a percentage by card."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from mpsd.admission.rules.rule import NO_DEVICES
from mpsd.containers.dialects.names import (
    BYTES,
    CONTAINER,
    DEV,
    EGPU,
    NVIDIA_VISIBLE_DEVICES,
    PERCENT,
    RESERVED,
    SWITCH,
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
from mpsd.model.cgpu_policies import ThreadCap, percent_of, policy_for
from mpsd.model.grants import Gpu
from mpsd.model.policy import CardCompute, Compute
from mpsd.model.problem import InvalidInput, Problem, printable, shown

# Variables of one dialect alone. The switch decides whose CONTAINER and DEV are.
_OWN = {
    Dialect.CGPU: (WEIGHT,),
    Dialect.EGPU: (SWITCH, BYTES, PERCENT, RESERVED),
    Dialect.CTYUN: (EGPU,),
}
_SWITCHED_ON = "1"


def read_dialect(
    environment: Mapping[str, str], machine: Sequence[Gpu], compute: Compute
) -> Reading:
    """compute: the policy's for cGPU. A dialect whose switch is off requests nothing; eGPU's switch
    makes CONTAINER and DEV eGPU's."""
    own = {
        dialect: next((name for name in names if name in environment), None)
        for dialect, names in _OWN.items()
    }
    cgpu_off = _why_cgpu_off(environment)
    egpu_off = _why_egpu_off(environment)
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
        remedy = "keep the variables of one"
        return InvalidDialect((Problem("two-dialects", "the environment", "", message, remedy),))
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
    """DEV where it is not set: the card's GiB, rounded up, as eGPU's document has it."""
    return -(-gpu.memory_mib // 1024)


# -- one variable after the other: whatever a tenant wrote takes no noticeable time to read

_LONGEST_TEXT = 2048  # characters: 40 UUIDs with room
_NOT_A_NUMBER = "is not a whole number of at least {}"
_NAME_CARDS = "name the cards, by index or by UUID, separated by commas"


def _whole_number(text: str) -> int | None:
    """Up to 18 digits; None where it is none."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


class _Variables:
    """What is wrong gathers in `problems`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []

    def refuse(
        self, rule: str, where: str, message: str, remedy: str, value: object = None
    ) -> None:
        if value is None:
            value = self._environment.get(where)
        written = "" if value is None else shown(value)
        self.problems.append(Problem(rule, where, written, message, remedy))

    def are_valid(self, *names: str) -> bool:
        """As far as they were read."""
        return not any(problem.where in names for problem in self.problems)

    def text(self, name: str) -> str | None:
        """None where it is not set, or too long to be meant."""
        text = self._environment.get(name)
        if text is None or len(text) <= _LONGEST_TEXT:
            return text
        message = f"has {len(text)} characters"
        self.refuse("too-long", name, message, f"write at most {_LONGEST_TEXT}")
        return None

    def number(self, name: str, remedy: str, least: int = 1) -> int | None:
        """None where it is not set, or wrong."""
        text = self.text(name)
        if text is None:
            return None
        number = _whole_number(text)
        if number is None or number < least:
            self.refuse("not-a-number", name, _NOT_A_NUMBER.format(least), remedy)
            return None
        return number

    def numbers(self, name: str, remedy: str) -> tuple[int, ...]:
        """Of a list with commas; none where it is not set, or wrong."""
        text = self.text(name)
        if text is None:
            return ()
        numbers = []
        for part in text.split(","):
            number = _whole_number(part)
            if number is None:
                message = "is neither a whole number nor a list of them with commas"
                self.refuse("not-a-number", name, message, remedy)
                return ()
            numbers.append(number)
        return tuple(numbers)

    def gpus(self, machine: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Those that the container sees; not set: the machine's only one."""
        text = self._environment.get(NVIDIA_VISIBLE_DEVICES)
        where = NVIDIA_VISIBLE_DEVICES
        if not machine:
            self.refuse("no-gpu", where, "this machine has no GPU", "run it where a GPU is")
        elif text is None and len(machine) > 1:
            message = f"is not set, and the machine has {len(machine)} cards"
            self.refuse("devices-unsaid", where, message, f"{_NAME_CARDS}, or write all")
        elif text in NO_DEVICES:
            message = "gives the container no card, but a share of one is requested"
            self.refuse("devices-none", where, message, f"{_NAME_CARDS}, or leave the share out")
        elif text in (None, "all"):
            return tuple(machine)
        elif (named := self.text(NVIDIA_VISIBLE_DEVICES)) is not None:
            return self._named(named.split(","), machine)
        return ()

    def _named(self, names: Sequence[str], machine: Sequence[Gpu]) -> tuple[Gpu, ...]:
        by_name = {gpu.uuid: gpu for gpu in machine} | {
            str(gpu.ordinal): gpu for gpu in machine if not gpu.instance
        }
        where = NVIDIA_VISIBLE_DEVICES
        found: dict[str, Gpu] = {}
        for name in names:
            gpu = by_name.get(name)
            if gpu is None:
                names_here = [gpu.uuid if gpu.instance else str(gpu.ordinal) for gpu in machine]
                remedy = f"write {', '.join(names_here)}, or a card's UUID"
                self.refuse("device-unknown", where, "is not a card of this machine", remedy, name)
            elif gpu.uuid in found:
                message = f"names {gpu.label} a second time"
                self.refuse("device-twice", where, message, "name each card once", name)
            else:
                found[gpu.uuid] = gpu
        return tuple(found.values())


# -- cGPU


def _why_cgpu_off(environment: Mapping[str, str]) -> str | None:
    """Not set, 0, or a list with a 0, such as 1,0,0. None where a share is requested."""
    text = environment.get(CONTAINER)
    if text is None:
        return f"{CONTAINER} is not set"
    if len(text) <= _LONGEST_TEXT:
        parts = [_whole_number(part) for part in text.split(",")]
        if 0 in parts and None not in parts:
            return f"{CONTAINER}={printable(text)} turns cGPU off"
    return None


def _read_cgpu(environment: Mapping[str, str], machine: Sequence[Gpu], compute: Compute) -> Reading:
    """Bytes are card × CONTAINER / DEV; the last value of a list is that of all further cards."""
    variables = _Variables(environment)
    parts = variables.numbers(
        CONTAINER, "write GiB for all cards, such as 6, or for each, such as 3,4,5,6"
    )
    dev = variables.number(DEV, "write the card's size in GiB, such as 15")
    weight = variables.number(WEIGHT, "write 1 or more; above 1 it selects the weighted policy")
    gpus = variables.gpus(machine)
    if gpus and len(parts) > len(gpus):
        cards_here = "1 card" if len(gpus) == 1 else f"{len(gpus)} cards"
        message = f"has {len(parts)} values for {cards_here}"
        variables.refuse("too-many-values", CONTAINER, message, "write at most one for each")
    for gpu in gpus:
        max_inst = compute.of(gpu.ordinal).max_inst
        if weight is not None and max_inst is not None and weight > max_inst:
            message = f"is more than max_inst of {gpu.label}, which is {max_inst}"
            variables.refuse("weight-over-card", WEIGHT, message, f"write 1 to {max_inst}")
    cards = []
    if variables.are_valid(CONTAINER, DEV):
        further = parts[-1:] * (len(gpus) - len(parts))
        for gpu, part in zip(gpus, (*parts, *further), strict=False):
            memory_bytes = gpu.memory_mib * MIB * part // (dev or _size_gib(gpu))
            cards.append(_cgpu_card(gpu, memory_bytes, weight, compute.of(gpu.ordinal)))
    return request_of(Dialect.CGPU, cards, variables.problems)


def _cgpu_card(
    gpu: Gpu, memory_bytes: int, weight: int | None, compute: CardCompute
) -> CardRequest:
    policy = policy_for(weight or 1, compute.policy)
    percent = percent_of(policy.share, weight or 1, compute.max_inst)
    reserved_percent = 0 if policy.share is ThreadCap.WHOLE else percent
    differs = (f"policy {policy.number}, {policy.name}: {policy.on_mps}",)
    size = (memory_bytes, min(100, percent), reserved_percent)
    return CardRequest(gpu, CONTAINER, *size, weight, policy.number, differs)


# -- eGPU

_RESERVED_MIB = 10  # where it is not set
_LARGEST_PERCENT = 95  # over it compute is not controlled
_CAPPED = "{} caps a program's SMs from its context on, where {} counts time"
_NO_LIMIT = "no limit of memory is requested: mpsd reserves the whole card, which nobody can share"


def _why_egpu_off(environment: Mapping[str, str]) -> str | None:
    """None where the switch is on."""
    switch = environment.get(SWITCH)
    if switch == _SWITCHED_ON:
        return None
    if switch is None:
        return f"{SWITCH} is not set"
    return f"{SWITCH} is {shown(switch)}, not {_SWITCHED_ON}"


def _read_egpu(environment: Mapping[str, str], machine: Sequence[Gpu]) -> Reading:
    variables = _Variables(environment)
    size_bytes = variables.number(BYTES, "write bytes, such as 5000000000")
    container = variables.number(CONTAINER, "write the container's part, such as 5")
    dev = variables.number(DEV, "write the card's size in the same unit, such as 16")
    reserved_mib = variables.number(RESERVED, f"write MB, such as {_RESERVED_MIB}", least=0)
    remedy = f"write 1 to {_LARGEST_PERCENT}, or 0 for no cap"
    percent = variables.number(PERCENT, remedy, least=0) or 0
    if BYTES in environment and CONTAINER in environment:
        message = f"cannot be set together with {CONTAINER}"
        variables.refuse("memory-twice", BYTES, message, "leave one of them out")
    if DEV in environment and CONTAINER not in environment:
        message = f"is the size of a card, but {CONTAINER}, the container's part, is not set"
        variables.refuse("share-unsaid", DEV, message, f"set {CONTAINER}, or leave {DEV} out")
    is_capped = 0 < percent <= _LARGEST_PERCENT
    if not (variables.problems or size_bytes or container or is_capped):
        return Off(f"{SWITCH}=1, with no limit of memory and none of compute")
    gpus = variables.gpus(machine)
    kept_bytes = (_RESERVED_MIB if reserved_mib is None else reserved_mib) * MIB

    def memory_bytes(gpu: Gpu) -> int:
        if container:
            return gpu.memory_mib * MIB * container // (dev or _size_gib(gpu)) - kept_bytes
        return size_bytes - kept_bytes if size_bytes else gpu.memory_mib * MIB

    where = next((name for name in (CONTAINER, BYTES) if name in environment), PERCENT)
    differs = []
    threads = (100, 0)
    if is_capped:
        differs.append(_CAPPED.format(PERCENT, "eGPU"))
        threads = (percent, percent)
    if where == PERCENT:
        differs.append(_NO_LIMIT)
    cards = []
    if variables.are_valid(BYTES, CONTAINER, DEV, RESERVED):
        cards = [
            CardRequest(gpu, where, memory_bytes(gpu), *threads, differs=tuple(differs))
            for gpu in gpus
        ]
    return request_of(Dialect.EGPU, cards, variables.problems)


# -- CTyun's EGPU

_EXAMPLE = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"
# the only values whose meaning is published
_HEADER = {"POLICY": "0", "ONLINE": "0", "TYPE": "DOCKER"}
_CARD = {  # what each is at least and at most, and what to write instead; None: no most
    "PGPU": (0, None, "write a card's index"),
    "MEM": (1, None, "write MiB"),
    "WEIGHT": (1, 100, "write 1 to 100"),
}


def _read_ctyun(environment: Mapping[str, str], machine: Sequence[Gpu]) -> Reading:
    """Nothing is reserved for a variable that is not as published; not set is as wrong as empty."""
    variables = _Variables(environment)
    header, *parts = (variables.text(EGPU) or "").split(":")
    if not variables.problems:
        for key, value in _fields(variables, header, _HEADER).items():
            if value != _HEADER[key]:
                message = f"is not {_HEADER[key]}, the only documented value"
                remedy = f"write {_HEADER[key]}"
                variables.refuse("dialect-unknown-value", f"{EGPU} {key}", message, remedy, value)
        if not parts:
            variables.refuse("no-card", EGPU, "names no card", f"write it as {_EXAMPLE}")
    numbers = [_card_numbers(variables, part) for part in parts]
    by_ordinal = {card["PGPU"]: card for card in numbers if "PGPU" in card}
    if sum("PGPU" in card for card in numbers) > len(by_ordinal):
        variables.refuse("device-twice", EGPU, "has one PGPU twice", "name each card once")
    cards = []
    for gpu in _ctyun_gpus(variables, environment, machine, by_ordinal):
        card = by_ordinal[gpu.ordinal]
        weight = card.get("WEIGHT", 100)  # with a wrong one, memory is still checked
        differs = (_CAPPED.format("WEIGHT", "EGPU"),) if weight < 100 else ()
        if "MEM" in card:
            limits = (card["MEM"] * MIB, weight, weight, weight)
            cards.append(CardRequest(gpu, f"{EGPU} MEM", *limits, differs=differs))
    return request_of(Dialect.CTYUN, cards, variables.problems)


def _fields(variables: _Variables, part: str, keys: Mapping[str, object]) -> dict[str, str]:
    """The KEY=VALUE of one part, which has each key once."""
    pairs = [pair.partition("=") for pair in part.split(",")]
    if sorted(key for key, _, _ in pairs) != sorted(keys) or not all(
        equals for _, equals, _ in pairs
    ):
        message = f"does not give {', '.join(keys)} once each"
        variables.refuse("dialect-malformed", EGPU, message, f"write it as {_EXAMPLE}", part)
        return {}
    return {key: value for key, _, value in pairs}


def _card_numbers(variables: _Variables, part: str) -> dict[str, int]:
    valid = {}
    for key, text in _fields(variables, part, _CARD).items():
        least, most, remedy = _CARD[key]
        number = _whole_number(text)
        where = f"{EGPU} {key}"
        if most is not None and number is not None and not least <= number <= most:
            message = f"is not a percentage of a card from {least} to {most}"
            variables.refuse("percent-range", where, message, remedy, text)
        elif number is None or number < least:
            variables.refuse("not-a-number", where, _NOT_A_NUMBER.format(least), remedy, text)
        else:
            valid[key] = number
    return valid


def _ctyun_gpus(
    variables: _Variables,
    environment: Mapping[str, str],
    machine: Sequence[Gpu],
    by_ordinal: Mapping[int, object],
) -> tuple[Gpu, ...]:
    """The cards that PGPU names: exactly those of NVIDIA_VISIBLE_DEVICES, where that is set."""
    known = {gpu.ordinal: gpu for gpu in machine if not gpu.instance}
    for ordinal in by_ordinal:
        if ordinal not in known:
            remedy = f"write {', '.join(map(str, known))}" if known else "run it where a GPU is"
            message = "is not a card of this machine"
            variables.refuse("device-unknown", f"{EGPU} PGPU", message, remedy, ordinal)
    named = tuple(known[ordinal] for ordinal in by_ordinal if ordinal in known)
    seen = variables.gpus(machine) if NVIDIA_VISIBLE_DEVICES in environment else ()
    if seen and by_ordinal:
        for gpu in seen:
            if gpu.ordinal not in by_ordinal:
                message = f"shows {gpu.label}, but {EGPU} has no PGPU={gpu.ordinal}"
                where = NVIDIA_VISIBLE_DEVICES
                variables.refuse("device-unlimited", where, message, "name the same cards")
        for gpu in named:
            if gpu not in seen:
                message = f"names {gpu.label}, which {NVIDIA_VISIBLE_DEVICES} does not show"
                remedy = "name the same cards"
                variables.refuse("device-unseen", f"{EGPU} PGPU", message, remedy, gpu.ordinal)
    return named


# -- variables of a file


def environment_in(lines: Iterable[str], subject: str, needed: Collection[str]) -> dict[str, str]:
    """The variables of a file, as docker reads `--env-file`. One without a value is the shell's:
    wrong for those `needed`. InvalidInput names `subject`."""
    found: dict[str, str] = {}
    problems = []
    for number, written in enumerate(lines, 1):
        line = written.lstrip().removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key:
            wrong = ("line-malformed", line, "has no name before its =")
        elif any(char.isspace() for char in key):
            wrong = ("line-malformed", line, "has a blank in its name")
        elif key in needed and not equals:
            wrong = ("value-unknown", key, "has no value here: docker takes it from the shell")
        else:
            if equals:
                found[key] = value
            continue
        rule, text, message = wrong
        where = f"line {number}"
        problems.append(Problem(rule, where, shown(text), message, "write KEY=VALUE"))
    if problems:
        raise InvalidInput(subject, problems)
    return found
