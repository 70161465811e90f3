"""Which dialect a container's environment speaks, and what it asks in it.

One rule: exactly one answer, whatever is written: nothing is asked, everything that is wrong, or a request.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from mpsd.containers.dialects import cgpu, ctyun, egpu, names
from mpsd.containers.dialects.request import CardRequest, Dialect, DialectRequest, InvalidDialect, Off, Reading
from mpsd.model.grants import CardsRequest, Gpu, GpuShare
from mpsd.model.policy import Compute
from mpsd.model.problem import InvalidInput, Problem, shown

# Words that only one dialect has. CONTAINER and DEV are cGPU's and eGPU's: the switch says whose they are.
_OWN = {
    Dialect.CGPU: (names.WEIGHT,),
    Dialect.EGPU: (names.SWITCH, names.BYTES, names.PERCENT, names.RESERVED),
    Dialect.CTYUN: (names.EGPU,),
}


def read_dialect(environment: Mapping[str, str], machine: Sequence[Gpu], compute: Compute) -> Reading:
    """What a container with this environment asks of the machine's cards.

    compute: what the policy sets for cGPU.
    """
    spoken = _spoken(environment)
    if len(spoken) > 1:
        return InvalidDialect((_several(spoken),))
    match next(iter(spoken), None):
        case Dialect.CGPU:
            return cgpu.read_cgpu(environment, machine, compute)
        case Dialect.EGPU:
            return egpu.read_egpu(environment, machine)
        case Dialect.CTYUN:
            return ctyun.read_ctyun(environment, machine)
        case None:
            return Off(_why_off(environment))


def _spoken(environment: Mapping[str, str]) -> dict[Dialect, str]:
    """The dialects that the environment asks something in, each with the variable that shows it.

    One whose switch is turned off asks nothing. A switch of eGPU, on or off, makes CONTAINER and DEV eGPU's.
    """
    spoken = {}
    own = {dialect: next((n for n in only if n in environment), None) for dialect, only in _OWN.items()}
    is_egpus = names.SWITCH in environment
    if cgpu.why_off(environment) is None and (not is_egpus or own[Dialect.CGPU]):
        spoken[Dialect.CGPU] = own[Dialect.CGPU] or names.CONTAINER
    if (name := own[Dialect.EGPU]) and environment.get(names.SWITCH, egpu.SWITCHED_ON) == egpu.SWITCHED_ON:
        spoken[Dialect.EGPU] = name
    if name := own[Dialect.CTYUN]:
        spoken[Dialect.CTYUN] = name
    return spoken


def _several(spoken: Mapping[Dialect, str]) -> Problem:
    shows = [f"{dialect.value} ({name})" for dialect, name in spoken.items()]
    message = f"is written in {len(spoken)} dialects: {' and '.join(shows)}"
    return Problem("two-dialects", "the environment", "", message, "keep the variables of one")


def _why_off(environment: Mapping[str, str]) -> str:
    off = None
    if names.SWITCH in environment:
        off = egpu.why_off(environment)
    elif any(name in environment for name in (names.CONTAINER, names.DEV, names.WEIGHT)):
        off = cgpu.why_off(environment)
    return off or "no variable of cGPU, eGPU or EGPU is set"


# What docker makes of `--env-file` and of `-e KEY=VALUE`: the environment of a container.
#
# One rule: a value is taken as it stands, quotes and blanks and all, because docker does so.

_REMEDY = "write KEY=VALUE"


def environment_in(lines: Iterable[str], subject: str, needed: Collection[str]) -> dict[str, str]:
    """The variables in the lines of a file; InvalidInput names `subject`.

    A name without a value is the shell's, which is not known here: wrong for those that are `needed`.
    """
    found, problems = {}, []
    for number, written in enumerate(lines, 1):
        line = written.lstrip().removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key or any(char.isspace() for char in key):
            message = "has no name before its =" if not key else "has a blank in its name"
            problems.append(Problem("line-malformed", f"line {number}", shown(line), message, _REMEDY))
        elif equals:
            found[key] = value
        elif key in needed:
            message = "has no value here: docker takes it from the shell"
            problems.append(Problem("value-unknown", f"line {number}", shown(key), message, _REMEDY))
    if problems:
        raise InvalidInput(subject, problems)
    return found


# From what a container asks in a dialect to what the ledger is to hold for it, and what its user is told.
#
# One rule: the ledger holds of every card what was asked of that card, whatever MPS is told for all of them together.


def cards_request(request: DialectRequest) -> CardsRequest:
    """What the ledger is asked for. MPS has one thread percentage for all cards of a program: the smallest."""
    return CardsRequest(
        parts=tuple(
            GpuShare(card.gpu.uuid, card.memory_mib, card.reserved_percent, _weight(card)) for card in request.cards
        ),
        thread_percent=min(card.thread_percent for card in request.cards),
    )


def _weight(card: CardRequest) -> int | None:
    """cGPU's, which is 1 where none is written; None in the other dialects."""
    return None if card.policy is None else card.weight or 1


def messages(request: DialectRequest) -> tuple[str, ...]:
    """Where MPS does something else than the dialect says: each sentence once, after the cards that it is about where
    it is not about all of them.
    """
    about: dict[str, list[str]] = {}
    for card in request.cards:
        for sentence in card.differs:
            about.setdefault(sentence, []).append(card.gpu.label)
    return tuple(
        sentence if len(labels) == len(request.cards) else f"{', '.join(labels)}: {sentence}"
        for sentence, labels in about.items()
    )
