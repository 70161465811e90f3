"""What `mpsd up` costs while nothing happens: 8 simulated GPUs with 20 clients each."""

import statistics
import time
from collections.abc import Iterator

import psutil

from mpsd.simulator.own_mpsd import OwnMpsd
from mpsd.simulator.programs import wait_until
from tests.bench.rows import Row, median_row

GPUS, GRANTS_A_GPU, CLIENTS_A_GRANT = 8, 5, 4
_WINDOWS, _WINDOW_S = 8, 4.0
_CLIENTS_OF_A_GRANT = " & ".join(["sim-cuda hold"] * (CLIENTS_A_GRANT - 1) + ["exec sim-cuda hold"])
_CLIENTS = GPUS * GRANTS_A_GPU * CLIENTS_A_GRANT


def idle(machine: OwnMpsd) -> Iterator[tuple[str, Row]]:
    """The share of a core and the memory of the one process, medians over windows."""
    for _grant in range(GPUS * GRANTS_A_GPU):
        machine.run_command(["--gpu-mem", "24"], ["sh", "-c", _CLIENTS_OF_A_GRANT])
    wait_until(
        lambda: len(machine.node().clients or ()) == _CLIENTS,
        120,
        f"{_CLIENTS} clients are there",
        0.2,
    )
    process = psutil.Process(machine.pid)
    own, nvml, commands = [], [], []
    for _window in range(_WINDOWS):
        before, nvml_s, began = process.cpu_times(), _nvml_s(machine), time.monotonic()
        time.sleep(_WINDOW_S)
        after, took_s = process.cpu_times(), time.monotonic() - began
        nvml.append((_nvml_s(machine) - nvml_s) / took_s)
        own.append((after.user - before.user + after.system - before.system) / took_s)
        spent_s = (
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system
        )
        commands.append(spent_s / took_s)
    about = f"mpsd up, {GPUS} GPUs × {_CLIENTS // GPUS} clients"
    yield "idle_cpu", median_row(own, "of a core", 0.015, None, about)
    yield (
        "idle_nvml",
        Row(
            statistics.median(nvml),
            "of a core",
            None,
            None,
            "its readers, with simulated NVML",
        ),
    )
    yield (
        "idle_memory",
        Row(process.memory_info().rss / 1024**2, "MiB", 65, None, f"{about}, resident"),
    )
    # A real command is a C program of about 1.5 ms; the simulator's is Python, so its cost is not
    # judged.
    about = "control commands it started (the simulator's, in Python)"
    yield "idle_commands_cpu", Row(statistics.median(commands), "of a core", None, None, about)


def _nvml_s(machine: OwnMpsd) -> float:
    """What mpsd has spent in simulated NVML so far."""
    violations = machine.node().violations
    assert violations is not None
    return violations.nvml_s
