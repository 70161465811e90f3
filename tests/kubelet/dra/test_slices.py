"""The node's slice offers what the ledger can still promise to claims, and says which GPUs take
none."""

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.dra.rules.slices import (
    Pool,
    ServedBy,
    WayKnown,
    device_name,
    devices,
    next_serving,
    resource_slice,
    taint_of,
    trouble_of,
)
from mpsd.model.domain import State
from mpsd.model.node_view import HeldGrant, UnreadableGrant
from mpsd.model.policy import EvictingState
from tests.kubelet.dra.claims import DRIVER, NODE, prepared
from tests.model.worlds import GPUS, POLICY, UUIDS, grant, record, view


@pytest.mark.parametrize("now", ServedBy)
def test_a_node_changes_how_it_serves_only_while_nobody_holds_a_gpu(now: ServedBy) -> None:
    for label, claims, devices_held in product(
        ("true", "false", "", None), (True, False), (True, False, None)
    ):
        found = next_serving(now, WayKnown(label, claims, devices_held))
        if claims:
            assert found is ServedBy.CLAIMS, "kubelet ends claims through the driver alone"
        elif devices_held:
            assert found is ServedBy.PLUGINS
        elif label is None or devices_held is None:
            assert found is now, "nothing changes on a guess"
        else:
            assert found is (ServedBy.CLAIMS if label == "true" else ServedBy.PLUGINS)


def held(*grants: Any) -> tuple[HeldGrant, ...]:
    return tuple(HeldGrant(one, holder_alive=True) for one in grants)


def test_a_gpu_is_a_device_that_claims_share() -> None:
    first, _second = devices(view(), (), POLICY)
    assert first == {
        "name": UUIDS[0].lower(),
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": UUIDS[0]},
            "productName": {"string": "NVIDIA A30"},
            "architecture": {"string": "Ampere"},
            "domain": {"string": "gpu0"},
            "cudaComputeCapability": {"version": "8.0.0"},
            "driverVersion": {"version": "580.159.4"},
        },
        "capacity": {
            "memory": {
                "value": "23552Mi",
                "requestPolicy": {
                    "default": "23552Mi",
                    "validRange": {"min": "1024Mi", "max": "23552Mi", "step": "1024Mi"},
                },
            },
            "threads": {
                "value": "100",
                "requestPolicy": {
                    "default": "0",
                    "validRange": {"min": "0", "max": "100", "step": "5"},
                },
            },
            "clients": {
                "value": "48",
                "requestPolicy": {
                    "default": "8",
                    "validRange": {"min": "1", "max": "48", "step": "1"},
                },
            },
        },
    }


def test_where_a_gpu_is_has_kubernetes_own_names_and_what_is_unknown_has_none() -> None:
    placed = replace(view(), gpus=(replace(GPUS[0], pci_bus="0000:06:00.0", numa_node=0), GPUS[1]))
    first, second = ({**one["attributes"]} for one in devices(placed, (), POLICY))
    standard = {
        name: value for name, value in first.items() if name.startswith("resource.kubernetes.io/")
    }
    assert standard == {
        "resource.kubernetes.io/pciBusID": {"string": "0000:06:00.0"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }
    assert not any("/" in name for name in second)


def test_what_claims_hold_is_counted_by_the_scheduler_alone() -> None:
    """A capacity that sank with each claim would count every claim twice."""
    claim = prepared()
    assert devices(view(grants=held(claim.grant(claim.pods))), [claim.uid], POLICY) == devices(
        view(), (), POLICY
    )


def test_what_others_hold_is_no_capacity() -> None:
    first, second = devices(view(grants=held(grant("a", 7, reserved_percent=30))), (), POLICY)
    values = {name: capacity["value"] for name, capacity in first["capacity"].items()}
    assert values == {"memory": f"{16 * 1024}Mi", "threads": "70", "clients": "40"}
    assert second["capacity"]["memory"]["value"] == f"{23 * 1024}Mi"


def test_one_claim_gets_no_more_than_a_card_has_though_more_is_promised() -> None:
    twice = replace(POLICY, oversubscription=replace(POLICY.oversubscription, memory_percent=200))
    memory = devices(view(), (), twice)[0]["capacity"]["memory"]
    whole = f"{23 * 1024}Mi"
    assert memory["value"] == f"{46 * 1024}Mi"
    assert (memory["requestPolicy"]["default"], memory["requestPolicy"]["validRange"]["max"]) == (
        whole,
        whole,
    )


def test_a_gpu_that_others_fill_is_no_device() -> None:
    assert [one["name"] for one in devices(view(grants=held(grant("a", 23))), (), POLICY)] == [
        UUIDS[1].lower()
    ]


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_a_gpu_that_takes_no_client_is_tainted_with_the_reason(state: State) -> None:
    first, second = devices(view(records=(record(0, state), record(1))), (), POLICY)
    assert first["taints"] == [{"key": "mpsd.io/gpu", "value": state.value, "effect": "NoSchedule"}]
    assert "taints" not in second


@pytest.mark.parametrize("state", get_args(EvictingState))
def test_a_taint_evicts_pods_in_the_states_that_the_policy_names(state: EvictingState) -> None:
    seen = view(records=(record(0, State(state)), record(1)))
    first, second = devices(seen, (), replace(POLICY, evict_claims_when=(state,)))
    assert first["taints"] == [{"key": "mpsd.io/gpu", "value": state, "effect": "NoExecute"}]
    assert "taints" not in second
    others = tuple(other for other in get_args(EvictingState) if other != state)
    kept, _second = devices(seen, (), replace(POLICY, evict_claims_when=others))
    assert kept["taints"][0]["effect"] == "NoSchedule"


def test_a_gpu_without_a_daemon_or_with_an_unknown_grant_is_tainted() -> None:
    assert taint_of(GPUS[1], view(records=(record(0),))) == "no-daemon"
    unreadable = replace(
        view(), unreadable=(UnreadableGrant("a", "/run/mpsd/grants/a.json", "is empty", "gpu0"),)
    )
    assert taint_of(GPUS[0], unreadable) == "grant-unreadable"
    assert taint_of(GPUS[1], unreadable) == ""


@pytest.mark.parametrize("state", State)
def test_a_gpu_is_sick_only_where_its_programs_cannot_run(state: State) -> None:
    found = trouble_of(GPUS[0], view(records=(record(0, state), record(1))))
    sick = state in {State.FAULT, State.WEDGED, State.DOWN, State.REFUSED}
    assert bool(found) is sick
    assert not sick or (GPUS[0].label in found and GPUS[0].uuid in found and state in found)


def test_a_gpu_in_trouble_is_sick_also_where_its_domain_was_drained_for_it() -> None:
    drained = view(records=(record(0, State.DRAINED), record(1)))
    troubled = replace(drained, troubles={GPUS[0].uuid: "gpu0 is lost; reset it"})
    assert trouble_of(GPUS[0], troubled) == "gpu0 is lost; reset it"
    assert trouble_of(GPUS[1], troubled) == ""


def test_a_device_is_named_by_a_label_whatever_the_uuid_is() -> None:
    assert device_name(replace(GPUS[0], uuid="MIG GPU/1")) == "gpu0"


@given(st.text(max_size=20), st.integers(0, 40), st.integers(0, 100))
def test_every_capacity_is_one_that_kubernetes_takes(driver: str, gib: int, percent: int) -> None:
    """The default, the least and the most lie in the range, and are whole steps from its
    beginning."""
    seen = replace(view(grants=held(grant("a", gib, reserved_percent=percent))), driver=driver)
    for device in devices(seen, (), POLICY):
        for capacity in device["capacity"].values():
            ranged = capacity["requestPolicy"]["validRange"]
            least, most, default, value = (
                int(text.removesuffix("Mi"))
                for text in (
                    ranged["min"],
                    ranged["max"],
                    capacity["requestPolicy"]["default"],
                    capacity["value"],
                )
            )
            assert least <= default <= most <= value
            if "step" in ranged:
                step = int(ranged["step"].removesuffix("Mi"))
                assert least + step <= value
                assert (default - least) % step == (most - least) % step == 0
        version = device["attributes"].get("driverVersion", {"version": "1.0.0"})["version"]
        assert all(part == str(int(part)) for part in version.split("."))


def test_the_slice_belongs_to_its_node() -> None:
    made = resource_slice(Pool(DRIVER, NODE, "uid-of-node1"), 3, devices(view(), (), POLICY))
    assert made["metadata"]["name"] == "node1-gpu.mpsd.io"
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-of-node1"}
    ]
    assert made["spec"]["pool"] == {"name": NODE, "generation": 3, "resourceSliceCount": 1}
    assert (made["spec"]["driver"], made["spec"]["nodeName"], len(made["spec"]["devices"])) == (
        DRIVER,
        NODE,
        2,
    )
