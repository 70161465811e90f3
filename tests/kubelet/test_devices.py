"""The devices of a node: as many as there are whole units, with names that say the same after every restart."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.devices import (
    gpu_of,
    healthy,
    is_percent,
    memory_devices,
    number_of,
    percent_devices,
    units_by_gpu,
)
from mpsd.model.domain import State
from mpsd.model.grants import Gpu, promised_mib
from mpsd.model.problem import InvalidInput
from tests.model.worlds import CAPABILITY, GPUS, POLICY, UUIDS

_KUBELET_S_LIMIT = 4 * 1024 * 1024  # bytes of one gRPC message
H200 = Gpu("GPU-aa3b8f7e-9d2c-4f7a-8f3e-5b1c2d3e4f50", 0, "NVIDIA H200", 143155, 132, CAPABILITY)


def test_143155_mib_are_139_devices_and_the_rest_has_none() -> None:
    devices = memory_devices([H200], POLICY)
    assert len(devices) == 139
    assert devices[0] == f"{H200.uuid}/0"
    assert devices[-1] == f"{H200.uuid}/138"


def test_eight_large_gpus_fit_one_message_to_kubelet() -> None:
    eight = [replace(H200, uuid=f"{H200.uuid[:-1]}{ordinal}", ordinal=ordinal) for ordinal in range(8)]
    memory, percent = memory_devices(eight, POLICY), percent_devices(eight, POLICY)
    assert (len(memory), len(percent)) == (8 * 139, 800)
    assert sum(len(device) + 16 for device in memory) < _KUBELET_S_LIMIT / 50


def test_a_percent_is_of_no_gpu() -> None:
    percent = percent_devices(GPUS, POLICY)
    assert len(percent) == 200
    assert {gpu_of(device) for device in percent} == {None}
    assert all(map(is_percent, percent))


def test_what_may_be_promised_more_than_once_has_more_devices() -> None:
    twice = replace(POLICY, oversubscription=replace(POLICY.oversubscription, memory_percent=200, thread_percent=200))
    assert len(memory_devices(GPUS, twice)) == 2 * len(memory_devices(GPUS, POLICY))
    assert len(percent_devices(GPUS, twice)) == 400


def test_a_card_that_the_server_fills_has_no_device() -> None:
    tiny = replace(H200, memory_mib=CAPABILITY.server_mib - 1)
    assert memory_devices([tiny], POLICY) == ()


@given(
    st.integers(0, 400_000),
    st.integers(1, 100_000),
    st.integers(1, 300),
    st.text(min_size=1).filter(lambda uuid: uuid != "percent"),
)
def test_every_id_parses_back_and_no_unit_is_promised_that_is_not_there(
    memory_mib: int, unit_mib: int, percent: int, uuid: str
) -> None:
    policy = replace(
        POLICY,
        resources=replace(POLICY.resources, memory_unit_mib=unit_mib),
        oversubscription=replace(POLICY.oversubscription, memory_percent=percent),
    )
    gpu = replace(H200, uuid=uuid, memory_mib=min(memory_mib, unit_mib * 200))
    devices = memory_devices([gpu], policy)
    assert len(devices) * unit_mib <= max(0, promised_mib(gpu, policy)) < (len(devices) + 1) * unit_mib
    assert [gpu_of(device) for device in devices] == [uuid] * len(devices)
    assert [number_of(device) for device in devices] == list(range(len(devices)))
    assert units_by_gpu(devices) == ({uuid: len(devices)} if devices else {})


@given(st.text())
def test_no_name_whatever_is_taken_for_two_kinds(device_id: str) -> None:
    assert not (is_percent(device_id) and gpu_of(device_id))
    assert number_of(device_id) >= 0


@pytest.mark.parametrize("device_id", ["", "/", "GPU-1", "GPU-1/", "/3", "GPU-1/-1", "GPU-1/01", "GPU-1/1 ", "GPU-1/٣"])
def test_other_names_are_no_devices_of_ours(device_id: str) -> None:
    assert gpu_of(device_id) is None
    with pytest.raises(InvalidInput, match="no device of this resource has such a name"):
        units_by_gpu([f"{UUIDS[0]}/1", device_id])


def test_many_wrong_names_make_a_short_message() -> None:
    with pytest.raises(InvalidInput) as caught:
        units_by_gpu([f"x{n}" for n in range(1000)])
    assert "x0, x1, x2 and 997 more" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_units_are_counted_by_gpu() -> None:
    ids = [f"{UUIDS[1]}/5", f"{UUIDS[0]}/1", f"{UUIDS[1]}/6"]
    assert units_by_gpu(ids) == {UUIDS[1]: 2, UUIDS[0]: 1}


HEALTHY = {
    State.STARTING: (False, True),
    State.READY: (True, True),
    State.FAULT: (False, True),
    State.WEDGED: (False, False),
    State.DOWN: (False, True),
    State.DRAINING: (False, False),
    State.DRAINED: (False, False),
    State.REFUSED: (False, False),
    None: (False, False),
}


@pytest.mark.parametrize("state", [*State, None])
def test_a_domain_on_its_way_back_keeps_its_devices_and_a_closed_one_does_not(state: State | None) -> None:
    """The pair: before it was ever ready, and after."""
    assert (healthy(state, was_ready=False), healthy(state, was_ready=True)) == HEALTHY[state]
