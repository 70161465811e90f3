"""The checks of `mpsd doctor` of the driver and of what the GPUs are.

One rule: a driver that passed the canary on this machine was tried there, which is worth more than a number here.
"""

from collections.abc import Iterator

from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong, each
from mpsd.operations.doctor.rules.doctor_facts import NodeFacts, known

# The first driver whose MPS takes memory limits of clients: they came with CUDA 11.5, which shipped with R495
# (developer.nvidia.com/blog/revealing-new-features-in-the-cuda-11-5-toolkit); its release notes ask for 495.29.05.
OLDEST_DRIVER = 495
READ_OFF_DRIVER = 580  # what docs/mps-observed.md was read off
_OLDEST_CAPABILITY = (7, 0)  # from Volta on a client has limits of its own (NVIDIA's manual of MPS)


def _nvml_silent(facts: NodeFacts) -> Iterator[Wrong]:
    if error := known(facts.nvml):
        what, _semicolon, remedy = error.rpartition("; ")
        yield Wrong(what or error, remedy if what else "`nvidia-smi` says whether the driver works")


def _gpu_lost(facts: NodeFacts) -> Iterator[Wrong]:
    gpus = known(facts.gpus)
    if not gpus:
        yield Wrong("the driver answers and shows no GPU", "see `dmesg | grep -i nvrm`, and that one is plugged in")
    for gpu in gpus:
        if gpu.lost:
            yield Wrong(f"gpu{gpu.ordinal} does not answer: {gpu.lost}", "reset it or restart the machine")


def _driver_old(facts: NodeFacts) -> Iterator[Wrong]:
    driver = known(facts.driver)
    branch = _branch(driver)
    if branch is not None and branch < OLDEST_DRIVER:
        yield Wrong(
            f"driver {driver} is too old: MPS takes memory limits from {OLDEST_DRIVER} on",
            f"install driver {READ_OFF_DRIVER} or newer",
        )


def _driver_untested(facts: NodeFacts) -> Iterator[Wrong]:
    """A driver that passed the canary here was tried here, which is worth more than our word."""
    driver = known(facts.driver)
    passed = any(
        one.record.canary and one.record.canary.driver == driver and not one.record.canary.problem
        for one in known(facts.domains)
    )
    if _branch(driver) != READ_OFF_DRIVER and not passed:
        yield Wrong(
            f"nobody has tried driver {driver}: mpsd was written for {READ_OFF_DRIVER}, and no canary has passed here",
            "let `mpsd up` run its canary (policy.yaml: canary)",
        )


def _branch(driver: str) -> int | None:
    """The number before the first point; None where there is none."""
    number = driver.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else None


def _capability_old(facts: NodeFacts) -> Iterator[Wrong]:
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if _number(capability) < _OLDEST_CAPABILITY:
            yield Wrong(
                f"{gpu} has compute capability {capability}: before 7.0 MPS holds no client to limits",
                "take the card out of this machine, or leave the machine to others",
            )


def _capability_unlisted(facts: NodeFacts) -> Iterator[Wrong]:
    limits = known(facts.limits)
    listed = known(limits.capabilities)
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if capability not in listed and _number(capability) >= _OLDEST_CAPABILITY:
            yield Wrong(
                f"{gpu} has compute capability {capability}, which gpus.yaml does not list",
                f"add a row for it under capabilities in {limits.folder}/gpus.yaml",
            )


def _number(capability: str) -> tuple[int, int]:
    major, _point, minor = capability.partition(".")
    return int(major), int(minor)


def _mig(facts: NodeFacts) -> Iterator[Wrong]:
    for gpu, is_on in each(known(facts.gpus), lambda gpu: gpu.mig):
        if is_on:
            remedy = f"switch it off (nvidia-smi -i {gpu.ordinal} -mig 0), or leave this GPU to others"
            yield Wrong(f"MIG is on for {gpu}, and MPS does not share such a GPU", remedy)


_NVML = "NVML"
_STOPS = Severity.STOPS

DRIVER_CHECKS = (
    Check("driver-silent", _STOPS, "the driver answers", ("nvml",), f"{_NVML}: nvmlInit", _nvml_silent),
    Check("gpu-lost", _STOPS, "every GPU answers", ("gpus",), f"{_NVML}: each GPU by its number", _gpu_lost),
    Check("driver-old", _STOPS, "the driver is new enough", ("driver",), f"{_NVML}: its version", _driver_old),
    Check("capability-old", _STOPS, "MPS can limit every GPU", ("gpus",), f"{_NVML}: capability", _capability_old),
    Check(
        "capability-unlisted",
        _STOPS,
        "gpus.yaml lists every GPU's compute capability",
        ("gpus", "limits"),
        f"{_NVML} and gpus.yaml",
        _capability_unlisted,
    ),
    Check("mig-on", _STOPS, "MIG is off", ("gpus",), f"{_NVML}: nvmlDeviceGetMigMode", _mig),
)

UNTESTED_CHECK = Check(
    "driver-untested",
    Severity.NOTE,
    "this driver was tried",
    ("driver", "domains"),
    "NVML: its version, and record.json of each domain in the run directory",
    _driver_untested,
)
