"""Every target of the fuzzer holds for what the fuzzer begins with, and for what it found once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.__main__ import NAMES
from tests.fuzz.targets import TARGETS


def test_every_target_is_fuzzed() -> None:
    assert tuple(TARGETS) == NAMES


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_its_seeds(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "object"])
@given(st.binary())
def test_a_target_holds_for_a_few_bytes(name: str, data: bytes) -> None:
    TARGETS[name].run(data)
