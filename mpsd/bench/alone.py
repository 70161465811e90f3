"""Whether this machine's GPUs are free for a benchmark.

One rule: it looks and changes nothing; what is in the way is named, with what to do about it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mpsd.model.grants import Gpu
from mpsd.model.problem import printable
from mpsd.mps import control_pipe, control_process
from mpsd.platform import local_api, processes, run_directory
from mpsd.platform.nvml import Nvml

_DEFAULT_MODE = 0  # of NVML
_LONGEST_COMMAND = 100
_ANSWER_S = 3.0


class CannotBegin(Exception):
    """Nothing was started; the message has a line for each obstacle."""


def require_alone(nvml: Nvml, gpus: Sequence[Gpu], socket: Path | None) -> None:
    """socket: where an mpsd of this machine would answer; None where that does not matter. CannotBegin, NvmlFailed."""
    found = [*_on_gpus(nvml, gpus), *(_on_socket(socket) if socket else ())]
    if found:
        begin = "others use this machine's GPUs, and what they do would be measured too:"
        remedy = "end them, or measure beside them with --beside-others"
        raise CannotBegin("\n  ".join([begin, *found, remedy]))


def _on_gpus(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[str]:
    for gpu in gpus:
        for pid, _used in nvml.uses(gpu.uuid):
            command = printable(processes.command_of(pid), _LONGEST_COMMAND)
            yield f"{gpu.label}: pid {pid}: {command or 'a process that is not seen from here'}"


def _on_socket(socket: Path) -> Iterator[str]:
    try:
        local_api.ask(socket, "GET", "/v1/node", timeout_s=_ANSWER_S)
        yield f"mpsd runs here and answers on {socket}"
    except TimeoutError:
        yield f"mpsd listens on {socket}, though it does not answer"
    except local_api.NotRunning:
        holder = run_directory.holder(socket.parent)
        if holder is not None:
            yield f"mpsd holds daemons here: pid {holder}, in {socket.parent}"


def require_mps(environment: Mapping[str, str]) -> None:
    """That control daemons can be started in this environment. CannotBegin."""
    if not control_process.program_found(environment):
        message = f"{control_pipe.PROGRAM} is not on PATH ({environment.get('PATH', '')})"
        raise CannotBegin(f"{message}: it comes with NVIDIA's driver; put its folder on PATH")


def require_turns(nvml: Nvml, gpu: Gpu) -> None:
    """That programs may use the GPU side by side without MPS. CannotBegin, NvmlFailed."""
    mode = nvml.compute_mode(gpu.uuid)
    if mode == _DEFAULT_MODE:
        return
    name = {nvml.exclusive_process: "EXCLUSIVE_PROCESS"}.get(mode, str(mode))
    message = f"{gpu.label} is in compute mode {name}, in which programs cannot take turns; mpsd bench changes no card"
    raise CannotBegin(f"{message}: set it to Default (nvidia-smi -i {gpu.ordinal} -c DEFAULT), and back afterwards")
