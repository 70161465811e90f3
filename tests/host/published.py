"""The cards of the source documents, with the memory that those count, and what fits a container on
one of them.

One rule: a document's numbers are used as they stand. nvidia-smi, which the documents read, counts
what the driver keeps for itself, and CUDA does not, so gpus.yaml has less for each of these cards.
"""

from collections.abc import Mapping
from typing import Any

from tests.host.container import Ended

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


def results(done: Ended) -> list[str]:
    """How each allocation ended."""
    return [line["rc"] for line in done.lines if "rc" in line]
