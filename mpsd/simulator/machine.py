"""The GPUs of this machine, real or simulated, NVML, and the environment that commands and programs
run in.

The only place that knows whether the GPUs are real; from here on it makes no difference. The
simulator is imported only where they are not.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.problem import InvalidInput, Problem
from mpsd.mps import canary as canary_client
from mpsd.mps.node_gpus import KNOWN_FILE, Node, NodeGpus, Tools
from mpsd.platform.imports import lasting
from mpsd.platform.nvml import Nvml
from mpsd.platform.nvml_readers import GpuReaders
from mpsd.platform.settings import Settings

if TYPE_CHECKING:
    from mpsd.simulator.node import SimulatedNode


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what MPS would take as a setting, and with `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CUDA_", "NVIDIA_"))
    }
    return kept | dict(extra)


def find_tools(settings: Settings) -> Tools:
    """Those of this machine, whatever its limits files say. OSError for simulated GPUs that are not
    there."""
    if not settings.simulate:
        return Tools(Nvml(None, readers=GpuReaders()), clean_environment({}))
    from mpsd.simulator.node import open_node

    simulated = open_node(settings.simulation)
    return Tools(_simulated_nvml(simulated.folder), clean_environment(simulated.environment))


def find_node(settings: Settings, facts: GpuFacts) -> Node:
    """The node's GPUs. NvmlFailed where the driver does not answer; InvalidInput for simulated GPUs
    that cannot be."""
    if settings.simulate:
        return _simulated_node(settings, facts)
    nvml = Nvml(None, readers=GpuReaders())
    nvml.open()
    watched = NodeGpus(nvml, facts, settings.run_directory / KNOWN_FILE)
    return Node(
        nvml=nvml,
        gpus=watched.now.gpus,
        environment=clean_environment({}),
        canary=canary_client.PROGRAM,
        extra={},
        path_first="",
        watched=watched,
        troubles=watched.now.troubles,
    )


def _simulated_nvml(folder: Path) -> Nvml:
    program = (sys.executable, "-P", "-m", "mpsd.simulator.nvml", str(folder))
    return Nvml(None, readers=GpuReaders(program))


def _simulated_node(settings: Settings, facts: GpuFacts) -> Node:
    with lasting():
        from mpsd.simulator.gpus import DEVICE_NODES

    simulated = _opened(settings, facts)
    nvml = _simulated_nvml(simulated.folder)
    nvml.open()
    watched = NodeGpus(nvml, facts, settings.run_directory / KNOWN_FILE)
    extra = dict(simulated.environment)
    path = extra.pop("PATH", "")
    return Node(
        nvml=nvml,
        gpus=watched.now.gpus,
        environment=clean_environment(extra | ({"PATH": path} if path else {})),
        canary=("sim-cuda",),
        extra=extra,
        path_first=path.split(":", 1)[0],
        shared=(str(simulated.folder),),
        device_lists=(DEVICE_NODES,),
        watched=watched,
        troubles=watched.now.troubles,
    )


def _opened(settings: Settings, facts: GpuFacts) -> "SimulatedNode":
    """The simulated machine of this run directory, made on first use."""
    from mpsd.simulator.node import cards_asked, create_node, open_node

    cards = cards_asked(settings.simulate, facts)
    if not (settings.simulation / "gpus.json").exists():
        return create_node(settings.simulation, cards, facts.capabilities)
    node = open_node(settings.simulation)
    # their MIG layout may have changed since
    whole = [gpu.name for gpu in node.gpus if not gpu.parent]
    if whole != [card.name for card in cards]:
        there = ", ".join(whole)
        problem = Problem(
            "simulation-differs",
            "--simulate",
            settings.simulate,
            f"is not what {settings.simulation} holds: {there}",
            "ask for the same GPUs, or stop mpsd there and remove that folder",
        )
        raise InvalidInput("simulated GPUs", [problem])
    return node
