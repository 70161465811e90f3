"""The machine that the test of ends runs on: a simulated one, or with `--gpu` this one, of whose
GPUs no setting is changed whatever the policy says."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mpsd.bench import cuda_client
from mpsd.simulator.gpus import MIB
from tests.whole.machine.conftest import ended
from tests.whole.machine.machine import Machine, Program


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


class SimulatedMachine(Machine):
    @property
    def cuda(self) -> Sequence[str]:
        return ("sim-cuda",)


AnyMachine = RealMachine | SimulatedMachine


def cuda(machine: AnyMachine, gib: int, *actions: str) -> Program:
    return machine.run(f"--gpu-mem {gib}", *machine.cuda, *actions)


def assert_within(machine: AnyMachine, promised_s: float, took_s: float) -> None:
    """On a card alone: who shares processors with others keeps no time there."""
    assert isinstance(machine, SimulatedMachine) or took_s < promised_s


def here(request: pytest.FixtureRequest) -> Iterator[AnyMachine]:
    yield from ended(
        RealMachine() if request.config.getoption("--gpu") else SimulatedMachine("A30")
    )
