"""A MIG instance is a GPU with a name, a domain and limits of its own, and never one of several
GPUs of a program."""

from dataclasses import replace
from fractions import Fraction

import pytest

from mpsd.grants.rules.placement import InsufficientResources, place
from mpsd.kubelet.dra.rules.slices import devices
from mpsd.kubelet.rules.allocation import (
    Allocation,
    DeviceListStrategy,
    NodeConditions,
    memory_answer,
)
from mpsd.kubelet.rules.gpu_choice import chosen_gpus
from mpsd.model.domain import Domain, DomainKind, domains
from mpsd.model.grants import Gpu, MigInstance, Request, gpu_named, is_instance, rooms
from mpsd.simulator.node import why_not_together
from mpsd.status.rules.mpsnode import node_labels
from mpsd.status.rules.node_report import node_report
from tests.model.manifests import FACTS
from tests.model.worlds import GPUS, POLICY, view

WHOLE = replace(GPUS[1], ordinal=1)


def instance(number: int, compute: int = 0, profile: str = "1g.10gb") -> Gpu:
    mig = MigInstance("GPU-parent", profile, number, compute)
    name = f"NVIDIA A100-SXM4-80GB MIG {profile}"
    return replace(
        GPUS[0],
        uuid=f"MIG-{number}-{compute}",
        ordinal=0,
        instance=mig.label,
        name=name,
        memory_mib=9728,
        mig=mig,
    )


PARTS = (instance(7), instance(8), instance(1, 2, "1c.3g.40gb"))
HERE = (*PARTS, WHOLE)


def test_a_label_has_the_ids_that_stay_and_can_be_read_back() -> None:
    assert [gpu.label for gpu in HERE] == ["gpu0-mig7", "gpu0-mig8", "gpu0-mig1-2", "gpu1"]
    for gpu in HERE:
        named = gpu_named(gpu.uuid, gpu.label)
        assert (named.uuid, named.ordinal, named.instance) == (gpu.uuid, gpu.ordinal, gpu.instance)
        assert is_instance(gpu.uuid) is bool(gpu.instance)


@pytest.mark.parametrize(
    "label", ["", "gpu", "GPU-1", "gpu0-", "gpu0-1", "gpu0-mig", "gpu0-mig7/..", "gpu-mig7"]
)
def test_what_is_no_label_of_a_gpu_names_none(label: str) -> None:
    assert gpu_named("u", label).ordinal == -1


def test_each_instance_is_a_domain_whatever_is_joined() -> None:
    alone = [Domain(gpu.label, (gpu.uuid,), DomainKind.INSTANCE) for gpu in PARTS]
    assert domains(HERE, POLICY) == (Domain("gpu1", (WHOLE.uuid,)), *alone)
    assert domains(HERE, POLICY, ((PARTS[0].uuid, WHOLE.uuid),)) == domains(HERE, POLICY)


def test_no_request_gets_two_instances_and_the_reason_says_so() -> None:
    domain_of = {gpu.uuid: gpu.label for gpu in HERE}
    free = rooms(HERE, domain_of, (), POLICY, on_demand={WHOLE.uuid})
    found = place(Request(1024, None, 2), free, POLICY)
    assert isinstance(found, InsufficientResources)
    assert not found.ever
    assert (
        "MIG instances are not joined, since a CUDA program sees one at most: gpu0-mig7, gpu0-mig8"
        in found.reason
    )


def test_gpushare_s_ordinals_name_no_instance_and_a_uuid_does() -> None:
    assert chosen_gpus({"ALIYUN_COM_GPU_MEM_IDX": "0"}, HERE) == ()
    assert chosen_gpus({"ALIYUN_COM_GPU_MEM_IDX": "1"}, HERE) == (WHOLE.uuid,)
    assert chosen_gpus({"mpsd.io/gpu": "MIG-8-0"}, HERE) == ("MIG-8-0",)


def test_a_capability_serves_clients_in_proportion_to_the_compute_slices() -> None:
    capability = FACTS.capability("8.0")
    assert capability
    assert [capability.of_part(Fraction(n, 7)).clients for n in (1, 2, 3, 4, 7)] == [
        6,
        13,
        20,
        27,
        48,
    ]
    assert replace(capability, clients=3).of_part(Fraction(1, 7)).clients == 1


def test_every_profile_is_of_a_card_and_fits_on_it_as_often_as_nvidia_says() -> None:
    most = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
    for row in FACTS.mig:
        assert FACTS.card(row.card)
        assert "documented, not observed" in row.source
        assert not row.measured
        number = most.get(row.profile, 0)
        assert why_not_together([row] * number) == ""
        assert number == 0 or why_not_together([row] * (number + 1))


def test_an_instance_is_a_card_with_the_name_that_cuda_gives_it() -> None:
    whole = FACTS.card("A100")
    assert whole
    (row,) = (row for row in FACTS.profiles(whole) if row.profile == "3g.40gb")
    only = FACTS.of_only(whole, row)
    (card,) = only.cards
    assert (card.name, card.short) == ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100:3g.40gb")
    assert (only.fewest_clients, only.largest_room.mib) == (20, 40192 - 76)


def test_a_slice_names_the_parent_and_the_profile_as_nvidia_s_driver_does() -> None:
    first = devices(replace(view(), gpus=HERE), (), POLICY)[0]
    texts = {name: one["string"] for name, one in first["attributes"].items() if "string" in one}
    assert first["name"] == "mig-7-0"
    assert texts["parentUUID"] == "GPU-parent"
    assert texts["profile"] == "1g.10gb"
    assert texts["productName"] == "NVIDIA A100-SXM4-80GB"


def test_a_container_asks_for_an_instance_by_its_uuid_in_nvidia_s_words() -> None:
    """NVIDIA's runtime and its CDI file then add the nodes of /dev/nvidia-caps
    (docs/hardware.md)."""
    allocation = Allocation("gpu0-mig7", (PARTS[0].uuid,), 7168, 30)
    by_variable, by_cdi = (
        memory_answer(allocation, NodeConditions("/run/mpsd", strategy, {}))
        for strategy in (DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI)
    )
    assert by_variable.environment["NVIDIA_VISIBLE_DEVICES"] == "MIG-7-0"
    assert by_cdi.cdi == ("nvidia.com/gpu=MIG-7-0",)
    assert [node.source for node in by_cdi.devices] == ["/run/mpsd/gpu0-mig7/gate"]
    assert by_cdi.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"


def test_a_node_of_equal_instances_has_their_product_for_a_label() -> None:
    """As NVIDIA's GPU feature discovery writes it."""
    labels = node_labels(PARTS[:2], POLICY)
    assert labels["mpsd.io/gpu.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert (labels["mpsd.io/gpu.memory"], labels["mpsd.io/gpu.count"]) == ("9", "2")


def test_a_status_names_the_profile_and_the_whole_gpu() -> None:
    told = [
        (gpu.label, gpu.parent, gpu.mig_profile)
        for gpu in node_report(replace(view(), gpus=HERE), POLICY).gpus
    ]
    assert told[0] == ("gpu0-mig7", "GPU-parent", "1g.10gb")
    assert told[-1] == ("gpu1", "", "")
