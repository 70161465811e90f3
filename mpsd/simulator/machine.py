"""What every role on a node starts from: the GPUs, NVML, and the environment that commands and programs run in.

One rule: the only place that knows whether the GPUs are real or simulated; from here on it makes no difference.
"""

from types import ModuleType
from typing import Any

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.problem import InvalidInput, Problem
from mpsd.mps import canary as canary_client
from mpsd.mps.control_daemon import clean_environment
from mpsd.mps.node import Node, Tools
from mpsd.platform.nvml import Nvml
from mpsd.platform.settings import Settings
from mpsd.simulator.gpus import DEVICE_NODES
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node, open_node
from mpsd.simulator.nvml import SimulatedNvml


def find_tools(settings: Settings) -> Tools:
    """Those of this machine, whatever its limits files say. OSError for simulated GPUs that are not there."""
    if not settings.simulate:
        return Tools(Nvml(_pynvml()), clean_environment({}))
    simulated = open_node(settings.simulation)
    return Tools(Nvml(SimulatedNvml(simulated.folder)), clean_environment(simulated.environment))


def find_node(settings: Settings, facts: GpuFacts) -> Node:
    """The node's GPUs. NvmlFailed where the driver does not answer; InvalidInput for simulated GPUs that cannot be."""
    simulated = _simulated(settings, facts) if settings.simulate else None
    nvml = Nvml(SimulatedNvml(simulated.folder) if simulated else _pynvml())
    nvml.open()
    extra = dict(simulated.environment) if simulated else {}
    path = extra.pop("PATH", "")
    return Node(
        nvml=nvml,
        gpus=nvml.gpus(facts),
        environment=clean_environment(extra | ({"PATH": path} if path else {})),
        canary=("sim-cuda",) if simulated else canary_client.PROGRAM,
        extra=extra,
        path_first=path.split(":", 1)[0],
        shared=(str(simulated.folder),) if simulated else (),
        device_lists=(DEVICE_NODES,) if simulated else (),
    )


def _pynvml() -> ModuleType | Any:
    import pynvml  # only where the GPUs are real

    return pynvml


def _simulated(settings: Settings, facts: GpuFacts) -> SimulatedNode:
    """The simulated machine of this run directory, made on first use."""
    cards = cards_asked(settings.simulate, facts)
    if not (settings.simulation / "gpus.json").exists():
        return create_node(settings.simulation, cards, facts.capabilities)
    node = open_node(settings.simulation)
    if [gpu.name for gpu in node.gpus] != [card.name for card in cards]:
        there = ", ".join(gpu.name for gpu in node.gpus)
        problem = Problem(
            "simulation-differs",
            "--simulate",
            settings.simulate,
            f"is not what {settings.simulation} holds: {there}",
            "ask for the same GPUs, or stop mpsd there and remove that folder",
        )
        raise InvalidInput("simulated GPUs", [problem])
    return node
