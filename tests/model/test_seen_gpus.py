"""Which GPUs follow from what NVML says of each, and why one cannot serve."""

from dataclasses import replace

import pytest

from mpsd.model.seen_gpus import (
    KnownGpus,
    SeenGpu,
    UnreadGpu,
    capability_trouble,
    driver_trouble,
    gpus_of,
    known_after,
    never_read,
    trouble_of,
)
from mpsd.platform.limits_files import load_limits

FACTS = load_limits(None).facts
A30 = SeenGpu(1, "GPU-0123456789ab", "NVIDIA A30", "8.0", 24062, 3584)
DRIVER = "580.159.04"


def trouble(seen: SeenGpu, said: UnreadGpu | None = None, driver: str = DRIVER) -> str:
    return trouble_of(seen, said or seen, driver, FACTS)


def test_a_gpu_that_says_all_is_in_no_trouble() -> None:
    (gpu,) = gpus_of(A30, FACTS)
    assert (gpu.label, gpu.uuid, gpu.memory_mib, gpu.sms) == ("gpu1", A30.uuid, 24062, 56)
    assert trouble(A30) == ""
    assert trouble(A30, driver="") == "", "a driver whose version is unknown is not too old"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(A30, memory_mib=None), "Not Supported"),
        (replace(A30, cores=None), "cores"),
        (replace(A30, compute_capability="6.0"), "before 7.0"),
        (replace(A30, compute_capability="99.9"), "limits/gpus.yaml"),
        (replace(A30, mig=True, cores=None), "MIG is on"),
    ],
)
def test_what_a_gpu_lacks_is_named_with_the_gpu_and_a_remedy(seen: SeenGpu, words: str) -> None:
    said = trouble(seen)
    what, _semicolon, remedy = said.rpartition("; ")
    assert words in said
    assert "gpu1 (NVIDIA A30, GPU-01234567)" in what
    assert remedy


@pytest.mark.parametrize(
    ("capability", "is_too_old"), [("6.2", True), ("6.9", True), ("7.0", False), ("10.0", False)]
)
def test_volta_is_the_oldest_by_its_number(capability: str, *, is_too_old: bool) -> None:
    assert bool(capability_trouble(capability, FACTS)) is is_too_old


def test_a_card_before_volta_is_too_old_even_with_a_row() -> None:
    row = replace(FACTS.capabilities[0], compute_capability="6.0")
    listed = replace(FACTS, capabilities=[*FACTS.capabilities, row])
    assert "before 7.0" in capability_trouble("6.0", listed)


@pytest.mark.parametrize(("driver", "is_too_old"), [("494.99", True), ("495.29.05", False)])
def test_a_driver_without_memory_limits_is_everybody_s_trouble(
    driver: str, *, is_too_old: bool
) -> None:
    assert bool(driver_trouble(driver)) is is_too_old
    assert bool(trouble(A30, driver=driver)) is is_too_old


def test_what_is_not_known_is_no_number_that_could_be_granted() -> None:
    (unread,) = gpus_of(never_read(1), FACTS)
    (unlisted,) = gpus_of(replace(A30, compute_capability="99.9"), FACTS)
    (silent,) = gpus_of(replace(A30, memory_mib=None), FACTS)
    assert (unread.label, unread.memory_mib, unread.sms) == ("gpu1", 0, 0)
    assert (unlisted.memory_mib, unlisted.sms) == (24062, 0)
    assert (silent.memory_mib, silent.sms) == (0, 56)


def test_a_lost_gpu_is_told_by_its_name_and_another_silence_by_nvml_s_words() -> None:
    lost = trouble(A30, UnreadGpu("NVML: GPU is lost", is_lost=True))
    silent = trouble(A30, UnreadGpu("NVML: Unknown Error"))
    assert lost.startswith("gpu1 (NVIDIA A30, GPU-01234567) is lost (NVML: GPU is lost); reset")
    assert silent.startswith("gpu1 (NVIDIA A30, GPU-01234567) does not answer (NVML: Unknown Error")
    assert trouble(never_read(1), UnreadGpu("silence")).startswith("gpu1 does not answer")
    assert "is lost" in trouble(
        replace(A30, memory_mib=None), UnreadGpu("GPU is lost", is_lost=True)
    ), "what it said earlier is no trouble of now"


def test_a_gpu_is_known_by_the_ordinal_at_which_it_was_seen_last() -> None:
    other = replace(A30, uuid="GPU-other", ordinal=2)
    known = known_after(KnownGpus("boot"), [A30, other])
    assert (known.at(1), known.at(2), known.at(3)) == (A30, other, None)
    moved = replace(other, ordinal=1)
    known = known_after(known, [moved])
    assert (known.at(1), known.at(2)) == (moved, None)
