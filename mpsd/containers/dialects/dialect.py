"""Which dialect a container's environment speaks, and what it asks in it.

One rule: exactly one answer, whatever is written: nothing is asked, everything that is wrong, or a request.
"""

from collections.abc import Mapping, Sequence

from mpsd.containers.dialects import cgpu, ctyun, egpu
from mpsd.containers.dialects import dialect_names as names
from mpsd.containers.dialects.dialect_request import Dialect, Off, Reading, Refused
from mpsd.model.grants import Gpu
from mpsd.model.policy import Compute
from mpsd.model.problem import Problem

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
        return Refused((_several(spoken),))
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
