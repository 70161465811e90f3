"""The machine that the tests of times run on: a simulated one, or with `--gpu` this machine's GPUs
and driver.

One rule: nothing of a GPU's settings is changed here, whatever the policy that is shipped says.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mpsd.mps import cuda_client
from mpsd.platform.processes import mapped_bytes
from mpsd.simulator.gpus import MIB
from mpsd.simulator.nvml import SimulatedNvml
from mpsd.simulator.programs import wait_until
from tests.whole.machine.machine import SOON_S, Machine, Program

_LOOK_S = 0.002
_MAPPED_BY_A_CONTEXT_MIB = 2  # of nvidia-uvm, without any managed memory


class RealMachine(Machine):
    """mpsd on the GPUs of this machine, which must be idle and in compute mode Default."""

    def __init__(self) -> None:
        import pynvml  # the simulator does without

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            pytest.exit(
                f"--gpu: this machine has no NVIDIA driver that answers: {error}", returncode=1
            )
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
        for handle in handles:
            busy = [use.pid for use in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            if busy or pynvml.nvmlDeviceGetComputeMode(handle) != pynvml.NVML_COMPUTEMODE_DEFAULT:
                pytest.fail(
                    f"a GPU is in use by {busy}, or not in compute mode Default; the tests never"
                    " change it"
                )
        total_mib = sum(pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles) // MIB
        assert total_mib, "the driver shows no GPU"
        self.nvml: Any = pynvml
        self._uuids = {pynvml.nvmlDeviceGetUUID(handle) for handle in handles}
        super().__init__(f"A30×{len(handles)}", tried=False)
        shutil.rmtree(self.run_directory / "simulation")

    @property
    def uuids(self) -> set[str]:
        return self._uuids

    @property
    def environment(self) -> dict[str, str]:
        ours = super().environment | {"CUDA_CACHE_DISABLE": "1"}
        del ours["MPSD_SIMULATE"]
        return ours

    def set_policy(self, **changes: Any) -> None:
        super().set_policy(**changes | {"exclusive_process": False})

    @property
    def cuda(self) -> Sequence[str]:
        return sys.executable, cuda_client.__file__

    @property
    def clients(self) -> int:
        """How many MPS accepts on a GPU (an H200 with driver 580)."""
        return 48


class SimulatedMachine(Machine):
    def __init__(self, gpus: str) -> None:
        super().__init__(gpus)
        self.nvml: Any = SimulatedNvml(self.simulation.folder)
        self.nvml.nvmlInit()

    def destroy(self) -> None:
        self.nvml.nvmlShutdown()
        super().destroy()

    @property
    def cuda(self) -> Sequence[str]:
        return ("sim-cuda",)

    @property
    def clients(self) -> int:
        return self.simulation.gpus[0].clients


AnyMachine = RealMachine | SimulatedMachine


def cuda(machine: AnyMachine, gib: int, *actions: str) -> Program:
    """A CUDA client that does this, under a grant of so many GiB."""
    return machine.run(f"--gpu-mem {gib}", *machine.cuda, *actions)


def used_mib(machine: AnyMachine, pid: int) -> int:
    """What this process uses, on all GPUs together: what NVML says, and the managed memory that it
    maps."""
    nvml = machine.nvml
    handles = [
        nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())
    ]
    listed = [
        use for handle in handles for use in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ]
    return (
        int(sum(use.usedGpuMemory for use in listed if use.pid == pid) + _managed_bytes(pid)) // MIB
    )


def _managed_bytes(pid: int) -> int:
    return max(0, (mapped_bytes(pid, b"nvidia-uvm") or 0) - _MAPPED_BY_A_CONTEXT_MIB * MIB)


def seconds_over(most_mib: int, used_mib: Callable[[], int], is_over: Callable[[], bool]) -> float:
    """How long more than that is used, from the first byte over until it is not: looked at every 2
    ms.

    is_over: whether whoever was to use it has been ended. That may come between two looks, as far
    apart as others want the processors; then it is less than the time between them.
    """
    looked, began = time.monotonic(), 0.0
    deadline = looked + SOON_S
    while not began:
        ended, is_used, before, looked = is_over(), used_mib() > most_mib, looked, time.monotonic()
        if is_used:
            began = looked
        elif ended:
            return looked - before
        assert looked < deadline, f"never more than {most_mib} MiB are used"
        time.sleep(_LOOK_S)
    wait_until(lambda: used_mib() <= most_mib, SOON_S, f"no more than {most_mib} MiB are used")
    return time.monotonic() - began


def here(request: pytest.FixtureRequest, simulated: str = "A30") -> Iterator[AnyMachine]:
    made = RealMachine() if request.config.getoption("--gpu") else SimulatedMachine(simulated)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()
