"""Machines with cards of the published examples, and what environments ask of them."""

from mpsd.containers.dialects.parsing import read_dialect
from mpsd.containers.dialects.request import CardRequest, DialectRequest, InvalidDialect, Off
from mpsd.model.gpu_facts import Capability
from mpsd.model.grants import Gpu
from mpsd.model.policy import Compute
from mpsd.model.problem import Problem
from tests.model.manifests import FACTS

VOLTA = FACTS.capability("7.0")
assert isinstance(VOLTA, Capability)
# as nvidia-smi has them; the last as the report has it
T4_MIB, A10_MIB, V100_MIB = 15109, 23028, 32768


NATIVE = Compute(policy=5, max_inst=None, cards={})


def every(policy: int, max_inst: int | None) -> Compute:
    """The same for every card."""
    return Compute(policy=policy, max_inst=max_inst, cards={})


def machine(memory_mib: int, cards: int = 1) -> tuple[Gpu, ...]:
    assert isinstance(VOLTA, Capability)
    return tuple(Gpu(f"GPU-{n:08x}-uuid", n, "a card", memory_mib, 80, VOLTA) for n in range(cards))


def asked(
    gpus: tuple[Gpu, ...], compute: Compute = NATIVE, /, **environment: str
) -> tuple[CardRequest, ...]:
    """What each card is asked for, by an environment in which nothing is wrong."""
    reading = read_dialect(environment, gpus, compute)
    assert isinstance(reading, DialectRequest), reading
    return reading.cards


def problems(
    gpus: tuple[Gpu, ...], compute: Compute = NATIVE, /, **environment: str
) -> tuple[Problem, ...]:
    reading = read_dialect(environment, gpus, compute)
    assert isinstance(reading, InvalidDialect), reading
    return reading.problems


def rules(gpus: tuple[Gpu, ...], compute: Compute = NATIVE, /, **environment: str) -> list[str]:
    return [problem.rule for problem in problems(gpus, compute, **environment)]


def why_off(gpus: tuple[Gpu, ...], /, **environment: str) -> str:
    reading = read_dialect(environment, gpus, NATIVE)
    assert isinstance(reading, Off), reading
    return reading.why
