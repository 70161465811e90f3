"""NVML on the simulated machine, against pynvml's own shapes and the transcripts' figures."""

import inspect
import os
import re
from collections.abc import Iterator

import pytest

from mpsd.simulator.card import OUTSIDE_MPS, CardView, ContextClaim, create_card
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import SimulatedNode
from mpsd.simulator.nvml import SimulatedNvml
from tests.contract.world import Daemon, World
from tests.simulator.transcripts import transcript

pynvml = pytest.importorskip("pynvml", reason="the shapes are compared with nvidia-ml-py's")

FUNCTIONS = [
    name
    for name in vars(SimulatedNvml)
    if name.startswith("nvml") and callable(getattr(SimulatedNvml, name))
]
CONSTANTS = [name for name in vars(SimulatedNvml) if name.startswith("NVML_")] + ["nvmlMemory_v2"]
ERRORS = [name for name in vars(SimulatedNvml) if name.startswith("NVMLError_")]


@pytest.fixture
def nvml(node: SimulatedNode) -> Iterator[SimulatedNvml]:
    opened = SimulatedNvml(node.folder)
    opened.nvmlInit()
    yield opened
    opened.nvmlShutdown()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_what_pynvml_s_takes(name: str) -> None:
    theirs = inspect.unwrap(getattr(pynvml, name))
    ours = inspect.signature(getattr(SimulatedNvml, name)).parameters
    names = [parameter for parameter in ours if parameter != "self"]
    if theirs.__code__.co_varnames[: theirs.__code__.co_argcount]:
        assert names == list(theirs.__code__.co_varnames[: theirs.__code__.co_argcount])


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_has_pynvml_s_value(name: str) -> None:
    assert getattr(SimulatedNvml, name) == getattr(pynvml, name)


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_has_pynvml_s_code_and_words(name: str) -> None:
    ours, theirs = getattr(SimulatedNvml, name)(), getattr(pynvml, name)()
    assert (ours.value, str(ours)) == (theirs.value, str(theirs))
    assert isinstance(ours, SimulatedNvml.NVMLError)


def test_before_init_and_after_shutdown_everything_fails(node: SimulatedNode) -> None:
    nvml = SimulatedNvml(node.folder)
    with pytest.raises(SimulatedNvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlShutdown()
    with pytest.raises(SimulatedNvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetUUID(handle)


def test_a_gpu_is_described_as_an_h200_was(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByUUID(node.gpus[0].uuid)
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA H200"
    assert nvml.nvmlDeviceGetUUID(handle) == node.gpus[0].uuid
    assert nvml.nvmlDeviceGetNumGpuCores(handle) == 132 * 128
    assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == (9, 0)
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]
    # nvidia-smi, transcript 1
    assert nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).total == 143771 * 2**20
    assert nvml.nvmlSystemGetDriverVersion() == "580.159.04"
    assert nvml.nvmlSystemGetCudaDriverVersion_v2() == 13000


def test_unknown_gpus_are_refused_as_pynvml_refuses_them(nvml: SimulatedNvml) -> None:
    with pytest.raises(SimulatedNvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID("GPU-0")
    with pytest.raises(SimulatedNvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(7)


def test_used_memory_is_that_of_the_transcript(daemon: Daemon, nvml: SimulatedNvml) -> None:
    """Transcript 2, P3: one client with 1 GiB at a quarter of the SMs, one with 512 MiB."""
    quarter = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    for megabytes, environment in ((1024, quarter), (512, {})):
        daemon.ready_client(f"alloc={megabytes}", "hold", environment=environment)
    section = transcript(2, "P3")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for function, server_is_listed in (
        ("nvmlDeviceGetComputeRunningProcesses", True),
        ("nvmlDeviceGetMPSComputeRunningProcesses", False),
    ):
        row = re.search(rf"^{function} (\[.*\])$", section, re.MULTILINE)
        assert row
        theirs = sorted(int(used) // 2**20 for used in re.findall(r", (\d+)\)", row[1]))
        seen = getattr(nvml, function)(handle)
        assert [
            abs(process.usedGpuMemory // 2**20 - mib) <= 2
            for process, mib in zip(
                sorted(seen, key=lambda it: it.usedGpuMemory), theirs, strict=True
            )
        ]
        assert (daemon.server in [process.pid for process in seen]) == server_is_listed
    first_version = re.search(
        r"c_nvmlMemory_t\(total: (\d+) B, free: (\d+) B, used: (\d+) B\)", section
    )
    assert first_version
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    for ours, bytes_there in zip(
        (memory.total, memory.free, memory.used), first_version.groups(), strict=True
    ):
        assert abs(ours - int(bytes_there)) <= 8 * 2**20


def test_the_compute_mode_stays_for_the_next_who_looks(world: World, nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetComputeMode(handle) == nvml.NVML_COMPUTEMODE_DEFAULT
    nvml.nvmlDeviceSetComputeMode(handle, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert world.nvml.nvmlDeviceGetComputeMode(handle) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    with pytest.raises(SimulatedNvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceSetComputeMode(handle, 9)


def test_a_gpu_that_is_lost_answers_nothing_until_it_is_back(
    node: SimulatedNode, nvml: SimulatedNvml
) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.card(0).lost = True
    with pytest.raises(SimulatedNvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetUUID(handle)
    with pytest.raises(SimulatedNvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetMemoryInfo(handle)
    node.card(0).lost = False
    assert nvml.nvmlDeviceGetUUID(handle) == node.gpus[0].uuid


def test_mig_can_be_rehearsed(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    node.card(0).mig = True
    assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(0)) == [1, 1]


def test_a_machine_that_was_made_anew_is_the_one_that_is_seen(
    nvml: SimulatedNvml, node: SimulatedNode
) -> None:
    """As by an `mpsd control --simulate` that is started again beside an agent that goes on."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    path = node.folder / "card0"
    path.unlink()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    create_card(path, 1000 * MIB)
    made = CardView(path)
    made.claim(ContextClaim(os.getpid(), OUTSIDE_MPS, 100 * MIB))
    assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [
        os.getpid()
    ]
    made.close()
