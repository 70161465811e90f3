"""What NVML says of each GPU, and what follows: the GPUs of mpsd, and why one cannot serve now. The
trouble of one GPU is of that GPU alone, and what NVML does not say is never a number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mpsd.model.gpu_facts import Capability, GpuFacts
from mpsd.model.grants import Gpu, MigInstance

OLDEST_CAPABILITY = (7, 0)  # Volta: before it a client has no limits (NVIDIA's manual of MPS)
# The first driver whose MPS takes memory limits of clients: they came with CUDA 11.5, which shipped
# with R495 (developer.nvidia.com/blog/revealing-new-features-in-the-cuda-11-5-toolkit); its release
# notes ask for 495.29.05.
OLDEST_DRIVER = 495
READ_OFF_DRIVER = 580  # what docs/mps-observed.md was read off
_SHORT_UUID = len("GPU-12345678")
_UNREAD = "GPU-unread-"  # begins the UUID of a GPU that was never read


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """A MIG device. memory_mib: of its GPU instance. slices: its compute slices; of_slices: those
    of its GPU instance."""

    uuid: str
    profile: str
    memory_mib: int
    sms: int
    slices: int
    of_slices: int
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """compute_capability: such as 9.0. memory_mib: that CUDA can use; None, as for `cores`: Not
    Supported. pci_bus, numa_node: as of `Gpu`. most_instances: that MIG can make of it."""

    ordinal: int
    uuid: str
    name: str
    compute_capability: str = ""
    memory_mib: int | None = None
    cores: int | None = None
    pci_bus: str = ""
    numa_node: int | None = None
    mig: bool = False
    most_instances: int = 0
    instances: tuple[SeenInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadGpu:
    """why: what NVML said instead. is_lost: by its own word."""

    why: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """What NVML said of each GPU that it has told of in this boot, the last time."""

    boot_id: str
    gpus: tuple[SeenGpu, ...] = ()

    def at(self, ordinal: int) -> SeenGpu | None:
        return next((one for one in self.gpus if one.ordinal == ordinal), None)


def never_read(ordinal: int) -> SeenGpu:
    """Stands for a GPU of which NVML has told nothing in this boot."""
    return SeenGpu(ordinal, f"{_UNREAD}{ordinal}", "unknown")


def gpus_of(seen: SeenGpu, facts: GpuFacts) -> tuple[Gpu, ...]:
    """The GPU, or its MIG instances in its place; 0 MiB or SMs where they are not known."""
    capability = facts.capability(seen.compute_capability)
    sms = 0
    if capability is None:
        capability = _unlisted(seen)
    elif seen.cores:
        sms = seen.cores // capability.cores_per_sm
    whole = Gpu(
        seen.uuid,
        seen.ordinal,
        seen.name,
        seen.memory_mib or 0,
        sms,
        capability,
        seen.pci_bus,
        seen.numa_node,
    )
    parts = [_instance(whole, one, seen.most_instances) for one in seen.instances]
    if not parts:
        return (whole,)
    return tuple(sorted(parts, key=lambda gpu: (len(gpu.instance), gpu.instance)))


def _unlisted(seen: SeenGpu) -> Capability:
    """For a GPU that serves nobody."""
    source = "not listed"
    return Capability(seen.compute_capability, 1, 1, 0, 0, 0, 1, 1, measured=False, source=source)


def _instance(whole: Gpu, seen: SeenInstance, most: int) -> Gpu:
    """Documented, not observed."""
    mig = MigInstance(whole.uuid, seen.profile, seen.gpu_instance, seen.compute_instance)
    return Gpu(
        seen.uuid,
        whole.ordinal,
        f"{whole.name} MIG {seen.profile}",
        # the compute instances of one GPU instance share its memory: divided as its slices are
        seen.memory_mib * seen.slices // seen.of_slices,
        seen.sms,
        whole.capability.of_part(Fraction(seen.slices, max(seen.slices, most))),
        whole.pci_bus,
        whole.numa_node,
        mig,
        instance=mig.label,
    )


def trouble_of(known: SeenGpu, said: SeenGpu | UnreadGpu, driver: str, facts: GpuFacts) -> str:
    """Why no program can be given this GPU now, with the remedy behind the last semicolon; empty
    where one can. said: at the last look. driver: its version, empty where that is not known."""
    who = _named(known)
    if isinstance(said, UnreadGpu):
        if said.is_lost:
            return f"{who} is lost ({said.why}); reset it or restart the machine"
        look = "see `dmesg | grep -i nvrm`, reset it or restart the machine"
        return f"{who} does not answer ({said.why}); {look}"
    if too_old := driver_trouble(driver):
        return too_old
    return next(_troubles(who, said, facts), "")


def _named(seen: SeenGpu) -> str:
    if seen.uuid.startswith(_UNREAD):
        return f"gpu{seen.ordinal}"
    return f"gpu{seen.ordinal} ({seen.name}, {seen.uuid[:_SHORT_UUID]})"


def driver_trouble(driver: str) -> str:
    """Why MPS cannot limit anybody's memory under this driver, or empty."""
    branch = driver.partition(".")[0]
    if branch.isascii() and branch.isdigit() and int(branch) < OLDEST_DRIVER:
        old = f"driver {driver} is too old: MPS has memory limits since driver {OLDEST_DRIVER}"
        return f"{old}; install driver {READ_OFF_DRIVER} or newer"
    return ""


def capability_trouble(compute_capability: str, facts: GpuFacts) -> str:
    """Why MPS cannot limit programs on such a GPU, as far as mpsd knows, or empty."""
    major, _dot, minor = compute_capability.partition(".")
    what = f"has compute capability {compute_capability}"
    if (int(major), int(minor)) < OLDEST_CAPABILITY:
        oldest = ".".join(map(str, OLDEST_CAPABILITY))
        return f"{what}: MPS enforces no limits before {oldest}; use it without mpsd"
    if facts.capability(compute_capability) is None:
        add = "add a row for it under capabilities in limits/gpus.yaml, and restart mpsd"
        return f"{what}, which limits/gpus.yaml does not list; {add}"
    return ""


def _troubles(who: str, seen: SeenGpu, facts: GpuFacts) -> Iterator[str]:
    """The one that nothing else can cure first."""
    if why := capability_trouble(seen.compute_capability, facts):
        yield f"{who} {why}"
    if seen.mig and not seen.instances:
        remedy = (
            "create one (nvidia-smi mig -cgi PROFILE -C), or switch MIG off (nvidia-smi -mig 0)"
        )
        yield f"MIG is on for {who}, which has no instance yet; {remedy}"
    if seen.memory_mib is None:
        why = "NVML: Not Supported, as where CPU and GPU share one memory (GB10)"
        yield f"no part of the memory of {who} can be promised ({why}); use it without mpsd"
    if seen.cores is None and not seen.instances:
        yield f"the number of cores of {who} is not known (Not Supported); use it without mpsd"


def known_after(known: KnownGpus, seen: Sequence[SeenGpu]) -> KnownGpus:
    """With what was seen now. A GPU has one ordinal: the one at which it was seen last."""
    ordinals = {one.ordinal for one in seen}
    uuids = {one.uuid for one in seen}
    kept = [one for one in known.gpus if one.ordinal not in ordinals and one.uuid not in uuids]
    gpus = sorted([*kept, *seen], key=lambda one: one.ordinal)
    return KnownGpus(known.boot_id, tuple(gpus))
