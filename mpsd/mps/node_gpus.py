"""The GPUs of a node, NVML, and the environment of commands and programs: what every role starts from.

`simulator.machine` makes it; whoever has it need not know whether the GPUs are real.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.model.grants import Gpu
from mpsd.platform.nvml import Nvml


@dataclass(frozen=True, slots=True)
class Node:
    """The GPUs of a node. environment: of control daemons and commands. canary: the command line of its client.

    extra, path_first: what programs need beside their limits. shared, device_lists: what containers need too: folders
    of the host, and variables that take the UUIDs of their GPUs in place of device nodes; none where GPUs are real.
    """

    nvml: Nvml
    gpus: tuple[Gpu, ...]
    environment: Mapping[str, str]
    canary: tuple[str, ...]
    extra: dict[str, str]
    path_first: str
    shared: tuple[str, ...] = ()
    device_lists: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tools:
    """What is needed to put a machine back in order: NVML, not open yet, and the environment of control commands."""

    nvml: Nvml
    environment: Mapping[str, str]
