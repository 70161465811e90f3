"""What `mpsd run` asks for: text from a command line into a request, or every problem in it.

One rule: the same numbers mean the same as in a pod; with several GPUs the amounts are divided over them evenly.
"""

from mpsd.grants.rules.grant_messages import ProgramAsks
from mpsd.model.amounts import GPUS, PERCENT, Asked, each_mib, each_percent, problems_with_asked
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Request
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.model.quantity import memory_unit, whole_units

_MEMORY, _PERCENT, _GPUS = "--gpu-mem", "--gpu-core", "--gpus"


def read_program_request(asks: ProgramAsks, policy: Policy, facts: GpuFacts) -> Request:
    """The request, or InvalidInput with every problem."""
    numbers = (
        whole_units(asks.gpu_mem, _MEMORY, memory_unit(policy.resources.memory_unit_mib)),
        None if asks.gpu_core is None else whole_units(asks.gpu_core, _PERCENT, PERCENT),
        whole_units(asks.gpus, _GPUS, GPUS),
    )
    problems = [number for number in numbers if isinstance(number, Problem)]
    memory_units, percent, gpus = numbers
    if problems or not (isinstance(memory_units, int) and isinstance(gpus, int)) or isinstance(percent, Problem):
        raise InvalidInput("mpsd run", problems)
    asked = Asked(memory_units, percent, gpus, _MEMORY, _PERCENT)
    if found := problems_with_asked(asked, policy, facts):
        raise InvalidInput("mpsd run", found)
    return Request(each_mib(asked, policy), each_percent(asked), gpus)
