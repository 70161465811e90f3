"""The cards of the source documents, with the memory that those count, and what fits a container on
one of them.

One rule: a document's numbers are used as they stand. nvidia-smi, which the documents read, counts
what the driver keeps for itself, and CUDA does not, so gpus.yaml has less for each of these cards.
"""

from collections.abc import Mapping
from typing import Any

from tests.host.container import Ended
from tests.host.host import Host

SERVER_MIB = 76  # what MPS itself holds of a card
_ROW = {"measured": False, "source": "the document"}
T4: Mapping[str, Any] = _ROW | {
    "name": "Tesla T4",
    "short": "T4-15109",
    "compute_capability": "7.5",
    "memory_mib": 15109,
    "sms": 40,
}
A10: Mapping[str, Any] = _ROW | {
    "name": "NVIDIA A10",
    "short": "A10-23028",
    "compute_capability": "8.6",
    "memory_mib": 23028,
    "sms": 72,
}
V100_16: Mapping[str, Any] = _ROW | {
    "name": "Tesla V100",
    "short": "V100-16160",
    "compute_capability": "7.0",
    "memory_mib": 16160,
    "sms": 80,
}
# The report fills a card with 32768 MiB of containers, so it has what MPS holds beside that.
V100_32: Mapping[str, Any] = _ROW | {
    "name": "Tesla V100",
    "short": "V100-32768",
    "compute_capability": "7.0",
    "memory_mib": 32768 + SERVER_MIB,
    "sms": 80,
}
CARDS = (T4, A10, V100_16, V100_32)

OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"
SUCCESS = "0:CUDA_SUCCESS"


def context_mib(host: Host, sms: int) -> int:
    """What CUDA's own context takes of a limit."""
    capability = host.facts.capability(host.simulation.gpus[0].compute_capability)
    assert capability is not None
    return capability.context_cost_mib(sms)


def largest(host: Host, environment: Mapping[str, str], device: int = 0) -> int:
    """MiB that a container with this environment can have of its device in all, CUDA's context
    included."""
    looked = host.ran(environment, "sim-cuda", f"device={device}", "info")
    free_mib, cost_mib = looked.heard("meminfo_free_MiB"), context_mib(host, looked.heard("sms"))
    tried = host.ran(
        environment,
        "sim-cuda",
        f"device={device}",
        f"alloc={free_mib}",
        "free",
        f"alloc={free_mib + 1}",
    )
    assert results(tried) == [SUCCESS, OUT_OF_MEMORY], tried
    return int(free_mib) + cost_mib


def results(done: Ended) -> list[str]:
    """How each allocation ended."""
    return [line["rc"] for line in done.lines if "rc" in line]
