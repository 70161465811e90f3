"""What the contract tests run on: the simulator, or this machine's GPUs and driver.

This file alone knows which of the two it is. Nothing here changes a card's settings.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpsd.bench import cuda_client
from mpsd.mps.node_gpus import NodeGpus
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from tests.contract.gpus import Gpu, facts

CONTROL = "nvidia-cuda-mps-control"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GPUS = 2  # as many as any test needs
SIMULATED = f"H200×{GPUS}"  # the card that the simulator was read off


class NotReady(Exception):
    """The real GPU cannot be tested on, and why."""


class NoInstances(Exception):
    """There is no MIG instance to test on, and why."""


@dataclass(frozen=True, slots=True)
class Program:
    """argv: as some user. options: what else subprocess has to be told."""

    argv: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def as_user(uid: int, *modules: str) -> Program:
    return Program((sys.executable, str(HERE / "as_user.py"), str(uid), ",".join(modules)))


def _base_environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CUDA_", "NVIDIA_"))
    }
    return kept | {"PYTHONPATH": str(ROOT)}


class Simulated:
    def __init__(self, folder: Path, cards: str = SIMULATED) -> None:
        rows = facts()
        self.node = node = create_node(folder, cards_asked(cards, rows), rows.capabilities)
        self.nvml: Any = SimulatedNvml(folder)
        self.nvml.nvmlInit()
        self.environment = _base_environment() | dict(node.environment)
        self.gpus = tuple(
            Gpu(gpu.uuid, gpu.name, gpu.memory_mib, gpu.sms, gpu.capability)
            for gpu in NodeGpus(Nvml(self.nvml), rows).now.gpus
        )

    def close(self) -> None:
        self.nvml.nvmlShutdown()

    def described(self) -> dict[str, Any]:
        return {"on": "the simulator", "gpus": [gpu.name for gpu in self.gpus]}

    def control(self, uid: int) -> Program:
        return (
            Program((CONTROL,))
            if uid == os.getuid()
            else as_user(uid, "mpsd.simulator.mps.control_daemon", "mpsd.simulator.mps.question")
        )

    def client(self, uid: int) -> Program:
        return (
            Program(("sim-cuda",))
            if uid == os.getuid()
            else as_user(uid, "mpsd.simulator.cuda_client")
        )


class Real:
    """The first two GPUs of this machine, idle and in compute mode Default, and the driver's own
    programs. instances: the first two MIG instances instead."""

    def __init__(self, *, instances: bool = False) -> None:
        if shutil.which(CONTROL) is None:
            raise NotReady(f"{CONTROL} is not on PATH")
        import pynvml

        self.nvml: Any = pynvml
        # No cache of compiled kernels: nothing is to be left behind.
        self.environment = _base_environment() | {"CUDA_CACHE_DISABLE": "1"}
        try:
            pynvml.nvmlInit()
            self.gpus = (
                self._instances()
                if instances
                else tuple(self._gpu(handle) for handle in self._handles())
            )
        except pynvml.NVMLError as error:
            raise NotReady(f"NVML says: {error}") from error
        if not self.gpus:
            raise NotReady("NVML knows no GPU")

    def close(self) -> None:
        """It is the same one for every world."""

    def described(self) -> dict[str, Any]:
        return {
            "on": "real GPUs",
            "gpus": [gpu.name for gpu in self.gpus],
            "memory_mib": [gpu.memory_mib for gpu in self.gpus],
            "sms": [gpu.sms for gpu in self.gpus],
            "driver": _text(self.nvml.nvmlSystemGetDriverVersion()),
            "cuda": self.nvml.nvmlSystemGetCudaDriverVersion(),
        }

    def control(self, uid: int) -> Program:
        options = {} if uid == os.getuid() else {"user": uid, "group": uid, "extra_groups": []}
        return Program((CONTROL,), options)

    def client(self, uid: int) -> Program:
        if uid == os.getuid():
            return Program((sys.executable, cuda_client.__file__))
        return as_user(uid, "mpsd.bench.cuda_client")

    def _handles(self) -> Iterator[Any]:
        for index in range(min(GPUS, self.nvml.nvmlDeviceGetCount())):
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            if self.nvml.nvmlDeviceGetComputeMode(handle) != self.nvml.NVML_COMPUTEMODE_DEFAULT:
                raise NotReady(
                    f"GPU {index} is not in compute mode Default; the tests never change it"
                )
            if busy := [
                process.pid for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ]:
                raise NotReady(
                    f"GPU {index} is in use by processes {busy}; the tests end clients and daemons"
                )
            yield handle

    def _instances(self) -> tuple[Gpu, ...]:
        """As mpsd reads them from NVML: what CUDA sees of them is for the tests. NoInstances."""
        try:
            found = [gpu for gpu in NodeGpus(Nvml(self.nvml), facts()).now.gpus if gpu.mig]
        except NvmlFailed as error:
            raise NotReady(str(error)) from error
        if len(found) < GPUS:
            why = f"this machine has {len(found)} MIG instances, and two are needed"
            raise NoInstances(
                f"{why}; the tests switch MIG on nowhere, as they change no setting of a card"
            )
        return tuple(
            Gpu(gpu.uuid, gpu.name, gpu.memory_mib, gpu.sms, gpu.capability) for gpu in found[:GPUS]
        )

    def _gpu(self, handle: Any) -> Gpu:
        uuid, name = (
            _text(self.nvml.nvmlDeviceGetUUID(handle)),
            _text(self.nvml.nvmlDeviceGetName(handle)),
        )
        version = ".".join(
            str(part) for part in self.nvml.nvmlDeviceGetCudaComputeCapability(handle)
        )
        capability = facts().capability(version)
        if capability is None:
            raise NotReady(
                f"limits/gpus.yaml has no row for compute capability {version} of {name}"
            )
        shown = self._alone(uuid)
        return Gpu(uuid, name, shown["total_MiB"], shown["sms"], capability)

    def _alone(self, uuid: str) -> dict[str, Any]:
        outside = {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
        answer = subprocess.run(
            self.client(os.getuid()).argv,
            env=self.environment | outside,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if answer.returncode:
            raise NotReady(f"CUDA does not work on {uuid}: {answer.stdout}{answer.stderr}")
        return json.loads(answer.stdout.splitlines()[0])


def _text(answer: bytes | str) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


Platform = Simulated | Real
