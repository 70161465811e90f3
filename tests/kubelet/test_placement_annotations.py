"""Which GPU a pod's annotations name, in three formats, and what is written there once it has its
devices."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.cli import kubelet_node
from mpsd.kubelet.rules.gpu_choice import annotations_for, chosen_gpus
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.kubelet.rules.node_pods import NodePod
from tests.model.worlds import GPUS, POLICY, UUIDS
from tests.status.node_worlds import container, devices, mem_ids, named, node_pod, percent_ids

V1, V2 = "ALIYUN_COM_GPU_MEM_IDX", "scheduler.framework.gpushare.allocation"
NOW_NS = 1_767_225_600_123_456_789


@pytest.mark.parametrize(
    ("annotations", "chosen"),
    [
        ({}, ()),
        ({"mpsd.io/gpu": UUIDS[1]}, UUIDS[1:]),
        ({"mpsd.io/gpu": f"{UUIDS[1]}, {UUIDS[0]}"}, UUIDS),
        ({"mpsd.io/gpu": "GPU-of-another-node"}, ()),
        ({V1: "1"}, UUIDS[1:]),
        ({V1: "-1"}, ()),
        ({V1: "7"}, ()),
        ({V2: '{"0":{"1":5}}'}, UUIDS[1:]),
        ({V2: '{"0":{"0":1},"1":{"1":7}}'}, UUIDS),
        ({V2: '{"0":{"0":4,"1":4}}'}, UUIDS),
        ({V2: '{"0":{"1":0,"0":2}}'}, UUIDS[:1]),
        ({V2: '{"0":{"5":2}}'}, ()),
        ({"mpsd.io/gpu": UUIDS[0], V1: "1", V2: '{"0":{"1":5}}'}, UUIDS[:1]),
        ({"mpsd.io/gpu": "GPU-of-another-node", V1: "1"}, UUIDS[1:]),
        ({V1: "1", V2: '{"0":{"0":5}}'}, UUIDS[1:]),
    ],
)
def test_the_gpu_that_a_scheduler_wrote_is_read(
    annotations: dict[str, str], chosen: tuple[str, ...]
) -> None:
    assert chosen_gpus(annotations, GPUS) == chosen


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"0":{"x":1}}',
        "{",
        "[" * 100_000,
        '{"0":{"1":' + "9" * 9999,
    ],
)
def test_what_is_no_allocation_names_no_gpu(text: str) -> None:
    assert chosen_gpus({V2: text}, GPUS) == ()


NESTED = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("01x"), inner, max_size=3)
    ),
)


@given(NESTED)
def test_no_json_whatever_raises(allocation: object) -> None:
    assert set(chosen_gpus({V2: json.dumps(allocation)}, GPUS)) <= set(UUIDS)


def test_a_pod_that_has_its_devices_says_so_in_all_formats() -> None:
    pod = node_pod(
        "train-0", container("idle"), container(mem=7, percent=30), container("b", mem=2)
    )
    held = [
        devices(named(), mem_ids(7, gpu=1), percent_ids(30)),
        devices(named(container_name="b"), mem_ids(2, gpu=1, first=7)),
        devices(named("another"), mem_ids(9)),
    ]
    assert annotations_for(pod, held, GPUS, POLICY, NOW_NS) == {
        "mpsd.io/gpu": UUIDS[1],
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "9",
        "ALIYUN_COM_GPU_MEM_DEV": "23",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(NOW_NS),
        "ALIYUN_COM_GPU_MEM_ASSIGN_TIME": str(NOW_NS),
        "scheduler.framework.gpushare.allocation": '{"1":{"1":7},"2":{"1":2}}',
        "gpushare.alibabacloud.com/core-percentage": '{"1":{"1":30}}',
        "scheduler.framework.gpushare.assigned": "true",
        "scheduler.framework.gpushare.assume-time": str(NOW_NS),
    }


def test_what_is_written_is_read_again_and_stays_the_same() -> None:
    pod = node_pod()
    held = [devices(named(), mem_ids(7, gpu=1))]
    written = annotations_for(pod, held, GPUS, POLICY, NOW_NS)
    assert chosen_gpus(written, GPUS) == UUIDS[1:]
    for key in ("mpsd.io/gpu", V1, V2):
        assert chosen_gpus({key: written[key]}, GPUS) == UUIDS[1:]
    assert (
        annotations_for(replace(pod, annotations=written), held, GPUS, POLICY, NOW_NS + 1)
        == written
    )


def test_a_scheduler_s_time_stays_and_its_promise_becomes_true() -> None:
    bound = {V1: "1", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
    written = annotations_for(
        node_pod(annotations=bound), [devices(named(), mem_ids(7, gpu=1))], GPUS, POLICY, NOW_NS
    )
    assert written["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == "5"
    assert written["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


def test_a_pod_of_two_gpus_is_said_in_v2_and_not_in_v1() -> None:
    pod = node_pod("train-0", container(mem=8, percent=60), gpus=2)
    held = [devices(named(), (*mem_ids(4), *mem_ids(4, gpu=1)), percent_ids(60))]
    written = annotations_for(pod, held, GPUS, POLICY, NOW_NS)
    assert written["mpsd.io/gpu"] == ",".join(UUIDS)
    assert written[V2] == '{"0":{"0":4,"1":4}}'
    assert written["gpushare.alibabacloud.com/core-percentage"] == '{"0":{"0":30,"1":30}}'
    assert V1 not in written


def test_a_pod_that_holds_nothing_here_says_nothing() -> None:
    assert annotations_for(node_pod(), [], GPUS, POLICY, NOW_NS) == {}
    assert (
        annotations_for(node_pod(), [devices(named(), ("GPU-gone/1",))], GPUS, POLICY, NOW_NS) == {}
    )


@pytest.mark.parametrize("chosen", [{"mpsd.io/gpu": UUIDS[0]}, {V1: "0"}, {V2: '{"0":{"0":7}}'}])
def test_where_a_pod_lies_is_written_over_what_its_scheduler_chose(chosen: dict[str, str]) -> None:
    elsewhere = [devices(named(), mem_ids(7, gpu=1))]
    written = annotations_for(node_pod(annotations=chosen), elsewhere, GPUS, POLICY, NOW_NS)
    assert chosen_gpus({**chosen, **written}, GPUS) == UUIDS[1:]
    assert (written["mpsd.io/gpu"], written[V1], written[V2]) == (UUIDS[1], "1", '{"0":{"1":7}}')


def test_a_pod_s_annotations_follow_what_it_holds_itself_and_the_policy() -> None:
    policies = [POLICY]
    annotations = kubelet_node.HolderAnnotations(lambda: GPUS, lambda: policies[-1])

    def wants(pod: NodePod, held: ContainerDevices) -> Mapping[str, str | None]:
        (found,) = annotations.of([pod], [held], 1.0)
        return found.wants

    held = devices(named(), mem_ids(7))
    first = wants(node_pod(), held)
    assert wants(node_pod(), replace(held)) == first
    assert wants(node_pod(), devices(named(), mem_ids(7, gpu=1)))["mpsd.io/gpu"] == UUIDS[1]
    assumed = node_pod(annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7"})
    assert wants(assumed, held)["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == "7"
    policies.append(replace(POLICY, resources=replace(POLICY.resources, memory_unit_mib=512)))
    assert wants(assumed, held)["ALIYUN_COM_GPU_MEM_DEV"] == "46"
