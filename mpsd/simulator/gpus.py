"""The GPUs of a simulated machine, as its programs read them.

The standard library and what core knows of libcuda, and every table worked out beforehand, because
each simulated process reads this at its start. `node` writes the file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.cuda_limit_parser import visible_devices

FOLDER = "MPSD_SIMULATION"
DEVICE_NODES = "MPSD_SIMULATION_DEVICES"

GIB = 1024**3
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One GPU, or one MIG instance, which is a GPU of its own with the ordinal of its parent.

    memory_mib is what CUDA calls the total; NVML's total is that and reserved_mib.
    sms_by_percent[p] are the SMs that an active-thread percentage of p gives, context_mib_by_sms[n]
    what a context on n SMs costs (index 0 is not used), reserved_kib_by_sms[n] what it reserves in
    its process, 0 where nobody has seen that. parent: of an instance the UUID of the GPU that it is
    a part of, else empty. slices: its compute slices, of_slices those of its GPU instance.
    """

    ordinal: int
    uuid: str
    name: str
    pci_id: str
    compute_capability: str
    memory_mib: int
    reserved_mib: int
    sms: int
    cores_per_sm: int
    clients: int
    server_mib: int
    sms_by_percent: Sequence[int]
    context_mib_by_sms: Sequence[int]
    reserved_kib_by_sms: Sequence[int] = ()  # as in a file of an earlier simulator
    parent: str = ""
    profile: str = ""
    gpu_instance: int = 0
    compute_instance: int = 0
    slices: int = 0
    of_slices: int = 0


def gpus_path(folder: Path) -> Path:
    return folder / "gpus.json"


def read_gpus(folder: Path) -> tuple[SimulatedGpu, ...]:
    """Every GPU of the machine in this folder, by ordinal, and after them the MIG instances of
    now."""
    return tuple(SimulatedGpu(**gpu) for gpu in json.loads(gpus_path(folder).read_bytes()))


def simulated_folder(environment: Mapping[str, str]) -> Path:
    """The folder of the machine that a simulated program runs on; without one the program ends
    here."""
    if FOLDER not in environment:
        raise SystemExit(
            f"{FOLDER} is not set: start the program through the bin/ of a simulated machine's"
            " folder"
        )
    return Path(environment[FOLDER])


def card_path(folder: Path, gpu: SimulatedGpu) -> Path:
    """The file that says who holds how much of this GPU; of an instance by its UUID, since its ids
    may come again."""
    return folder / (f"card{gpu.ordinal}-{gpu.uuid}" if gpu.parent else f"card{gpu.ordinal}")


def uvm_path(folder: Path) -> Path:
    """The file in the place of the driver's /dev/nvidia-uvm, of which managed memory is mapped."""
    return folder / "nvidia-uvm"


def device_path(folder: Path, gpu: SimulatedGpu) -> Path:
    """The file in the place of the driver's /dev/nvidia0, of which every context maps something."""
    return folder / f"nvidia{gpu.ordinal}"


def present_gpus(folder: Path, environment: Mapping[str, str]) -> tuple[SimulatedGpu, ...]:
    """The GPUs whose device nodes the process has; of one with MIG instances these, and not itself.

    A container has the nodes of its own GPUs only. The simulated container runtime says which, by
    UUID, in MPSD_SIMULATION_DEVICES; where that is not set all are there.
    """
    nodes = environment.get(DEVICE_NODES)
    every = read_gpus(folder)
    divided = {gpu.parent for gpu in every}
    gpus = tuple(gpu for gpu in every if gpu.uuid not in divided)
    return gpus if nodes is None else tuple(gpu for gpu in gpus if gpu.uuid in nodes.split(","))


def visible_gpus(value: str | None, gpus: Sequence[SimulatedGpu]) -> tuple[SimulatedGpu, ...]:
    """What CUDA_VISIBLE_DEVICES leaves of `gpus`, in its order; None stands for a variable that is
    not set. CUDA sees one MIG instance, the first, and then no GPU without MIG ("CUDA device
    enumeration" of the MIG user guide; documented, not observed).
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    visible = tuple(by_uuid[uuid] for uuid in visible_devices(value, tuple(by_uuid)))
    return tuple(gpu for gpu in visible if gpu.parent)[:1] or visible
