"""What a pod asks for, and every problem in how it asks."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from mpsd.model.client_limits import ClientLimit
from mpsd.model.container import Role
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.request import ContainerRequest, PodRequest, asks_for_gpu, client_limit, read_share
from mpsd.platform.rules.kubernetes_objects import objects_in, read_object
from tests.model.manifests import (
    ANY_JSON,
    COUNT,
    FACTS,
    MEMORY,
    PERCENT,
    POLICY,
    STEPS,
    Fields,
    broken_objects,
    container,
    inside,
    pod,
)

SMALL_UNITS = replace(POLICY, resources=replace(POLICY.resources, memory_unit_mib=128))


def share(thing: Fields, policy: Policy = POLICY, facts: GpuFacts = FACTS) -> PodRequest:
    found = read_object(thing)
    assert found.pod is not None
    return read_share(found.pod, policy, facts)


def all_of(thing: Fields, policy: Policy = POLICY) -> tuple[Problem, ...]:
    return share(thing, policy).problems


def test_memory_alone_asks_for_one_gpu_and_reserves_no_threads() -> None:
    assert share(pod(container(limits={MEMORY: 7}))) == PodRequest(
        (
            ContainerRequest(
                "main", Role.MAIN, memory_units=7, memory_mib=7168, thread_percent=None, gpus=1
            ),
        ),
        (),
    )


def test_without_a_percent_the_policy_caps_the_threads() -> None:
    policy = replace(POLICY, requests=replace(POLICY.requests, default_thread_percent=50))
    (request,) = share(pod(container(limits={MEMORY: 7})), policy).requests
    assert client_limit(request, policy) == ClientLimit(memory_mib=7168, thread_percent=50)


@pytest.mark.parametrize(("version", "kind"), STEPS)
def test_the_pod_is_found_in_every_kind_that_holds_one(version: str, kind: str) -> None:
    thing = inside(version, kind, pod(container(limits={MEMORY: "7.5"})))
    (found,) = all_of(thing)
    path = ".".join([*STEPS[version, kind], "spec"])
    assert found.where == f"{path}.containers[main].resources.limits[{MEMORY}]"
    assert read_object(thing).name == f"{kind} default/train"


@pytest.mark.parametrize(
    "thing",
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}},
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {"tasks": []}},
    ],
)
def test_kinds_and_groups_that_mpsd_does_not_read_hold_no_pod(thing: Fields) -> None:
    found = read_object(thing)
    assert found.pod is None
    assert not found.problems


@pytest.mark.parametrize("kind", ["List", "PodList"])
def test_lists_are_taken_apart_and_typed_lists_say_the_kind_of_their_items(kind: str) -> None:
    items = [pod(container(limits={MEMORY: units})) for units in (1, 2)]
    if kind == "PodList":
        items = [
            {key: value for key, value in item.items() if key not in {"kind", "apiVersion"}}
            for item in items
        ]
    nested = {
        "kind": "List",
        "items": [{"apiVersion": "v1", "kind": kind, "items": items}, {"kind": "Secret"}],
    }
    found = list(objects_in(nested))
    assert [read_object(thing).name for thing in found] == [
        "Pod default/train",
        "Pod default/train",
        "Secret (no name)",
    ]
    assert [
        share(thing).requests[0].memory_units for thing in found[:2] if isinstance(thing, dict)
    ] == [1, 2]


@pytest.mark.parametrize("items", ["all", {"a": 1}, 7])
def test_a_list_whose_items_are_none_is_a_problem(items: object) -> None:
    (thing,) = objects_in({"kind": "PodList", "items": items})
    assert [found.rule for found in read_object(thing).problems] == ["wrong-type"]


def test_init_containers_and_sidecars_ask_too() -> None:
    thing = pod(
        container(limits={MEMORY: 2}),
        initContainers=[
            container("fetch", {MEMORY: 5}),
            container("proxy", {MEMORY: 1}, restartPolicy="Always"),
            container("warm", {MEMORY: 3}),
        ],
    )
    found = share(thing)
    assert [(request.container, request.role.value) for request in found.requests] == [
        ("fetch", "init"),
        ("proxy", "sidecar"),
        ("warm", "init"),
        ("main", "main"),
    ]
    assert found.memory_mib == 5 * 1024


@pytest.mark.parametrize(
    ("main", "init", "peak"),
    [
        ([7], [], 7),
        ([7, 2], [], 9),
        ([7], [("sidecar", 2), ("init", 8)], 10),
        ([7], [("init", 8), ("sidecar", 2)], 9),
        ([1], [("sidecar", 1), ("sidecar", 1), ("init", 1), ("init", 2)], 4),
    ],
)
def test_a_pod_holds_at_its_peak_what_kubernetes_counts(
    main: list[int], init: list[tuple[str, int]], peak: int
) -> None:
    always = {"sidecar": {"restartPolicy": "Always"}, "init": {}}
    found = share(
        pod(
            *(
                container(f"main-{n}", {MEMORY: gib, PERCENT: 5 * gib})
                for n, gib in enumerate(main)
            ),
            initContainers=[
                container(f"init-{n}", {MEMORY: gib, PERCENT: 5 * gib}, **always[role])
                for n, (role, gib) in enumerate(init)
            ],
        )
    )
    assert (found.memory_mib, found.thread_percent) == (peak * 1024, peak * 5)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({MEMORY: "7.5"}, [("quantity-fraction", '"7.5"')]),
        ({MEMORY: 7, PERCENT: 3}, [("percent-range", "3")]),
        ({MEMORY: 7, PERCENT: 105}, [("percent-range", "105")]),
        ({MEMORY: 7, PERCENT: 33}, [("percent-step", "33")]),
        ({PERCENT: 30}, [("percent-without-memory", "")]),
        ({COUNT: 1}, [("count-is-a-label", "")]),
        ({MEMORY: "40Gb", PERCENT: 33}, [("quantity-malformed", '"40Gb"'), ("percent-step", "33")]),
        ({MEMORY: 500, PERCENT: "x"}, [("quantity-malformed", '"x"'), ("memory-over-card", "500")]),
    ],
)
def test_amounts_that_cannot_be_are_all_said_with_their_values(
    limits: Fields, expected: list[tuple[str, str]]
) -> None:
    assert [
        (found.rule, found.value) for found in all_of(pod(container(limits=limits)))
    ] == expected


def test_the_largest_request_is_what_the_largest_card_has() -> None:
    assert not all_of(pod(container(limits={MEMORY: 267})))
    (found,) = all_of(pod(container(limits={MEMORY: 268})))
    assert (
        found.message
        == "is more than any GPU has: NVIDIA B300 SXM6 AC, the largest known, has 267 GiB"
    )
    assert found.remedy == "request at most 267"


def test_of_one_card_that_card_is_named() -> None:
    h200 = replace(FACTS, cards=[card for card in FACTS.cards if card.short == "H200"])
    (found,) = share(pod(container(limits={MEMORY: 200})), facts=h200).problems
    assert found.message == "is more than the GPU has: NVIDIA H200 has 139 GiB"


def test_memory_below_every_cards_context_is_refused() -> None:
    whole, part = container(limits={MEMORY: 1}), container(limits={MEMORY: 1, PERCENT: 50})
    (found,) = all_of(pod(whole), SMALL_UNITS)
    assert found.rule == "memory-below-context"
    assert found.message == "is 128 MiB, too small for a CUDA context, which takes at least 175 MiB"
    assert found.remedy == "request 2 or more"
    assert not all_of(pod(part), SMALL_UNITS), "with half of a T4's SMs the context takes 101 MiB"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {MEMORY: 7}, "requests": {MEMORY: 7}}, []),
        ({"limits": {MEMORY: 7}, "requests": {MEMORY: "7000m"}}, []),
        ({"limits": {MEMORY: 7}, "requests": {"cpu": 1}}, []),
        (
            {"limits": {MEMORY: 7}, "requests": {MEMORY: 6}},
            [("request-not-limit", f"requests[{MEMORY}]", "6")],
        ),
        (
            {"limits": {MEMORY: 7}, "requests": {MEMORY: "x"}},
            [("quantity-malformed", f"requests[{MEMORY}]", '"x"')],
        ),
        ({"requests": {MEMORY: 7}}, [("limit-missing", f"requests[{MEMORY}]", "7")]),
        (
            {"limits": {MEMORY: 7}, "requests": {PERCENT: 30}},
            [("limit-missing", f"requests[{PERCENT}]", "30")],
        ),
    ],
)
def test_requests_must_equal_limits_as_kubernetes_wants(
    resources: Fields, expected: list[tuple[str, str, str]]
) -> None:
    thing = pod(container(resources=resources))
    assert [
        (rule, where.removeprefix("resources."), value) for rule, where, value in problems_at(thing)
    ] == expected


def problems_at(thing: Fields) -> list[tuple[str, str, str]]:
    prefix = "spec.containers[main]."
    return [(found.rule, found.where.removeprefix(prefix), found.value) for found in all_of(thing)]


def test_the_label_divides_the_request_over_gpus() -> None:
    thing = pod(container(limits={MEMORY: 14, PERCENT: 60}), labels={COUNT: "2"})
    assert share(thing).requests == (
        ContainerRequest(
            "main", Role.MAIN, memory_units=14, memory_mib=7168, thread_percent=30, gpus=2
        ),
    )


@pytest.mark.parametrize(
    ("limits", "rule", "remedy"),
    [
        ({MEMORY: 7}, "memory-uneven", "write 6 or 8"),
        ({MEMORY: 1}, "memory-uneven", "write 2"),
        ({MEMORY: 536}, "memory-over-card", "request at most 534"),
        ({MEMORY: 14, PERCENT: 5}, "percent-range", "write 10 to 200, in steps of 10"),
        ({MEMORY: 14, PERCENT: 45}, "percent-step", "write 40 or 50"),
    ],
)
def test_what_two_gpus_cannot_share_is_refused(limits: Fields, rule: str, remedy: str) -> None:
    (found,) = all_of(pod(container(limits=limits), labels={COUNT: "2"}))
    assert (found.rule, found.remedy) == (rule, remedy)


@pytest.mark.parametrize("label", ["0", "two", "", "02", "٢", "33", "9" * 5000])
def test_a_label_that_is_no_number_of_gpus_is_refused(label: str) -> None:
    (found,) = all_of(pod(container(limits={MEMORY: 14}), labels={COUNT: label}))
    assert found.rule == "gpu-count-malformed"
    assert found.where == f"metadata.labels[{COUNT}]"


@pytest.mark.parametrize("label", [2, ["2"]])
def test_a_label_must_be_text_as_kubernetes_wants(label: object) -> None:
    (found,) = all_of(pod(container(limits={MEMORY: 14}), labels={COUNT: label}))
    assert (found.rule, found.remedy) == ("label-not-text", 'write it in quotes, such as "2"')


def on_gpus(gpus: int, init: int, main: int) -> Fields:
    thing = pod(
        container(limits={MEMORY: main}), initContainers=[container("first", limits={MEMORY: init})]
    )
    return {**thing, "metadata": {**thing["metadata"], "labels": {COUNT: str(gpus)}}}


def test_over_several_gpus_an_init_container_asks_for_no_more_than_the_next() -> None:
    """Kubelet gives the next any of its devices, not as many of each GPU, and Allocate would have
    to refuse the pod."""
    (problem,) = all_of(on_gpus(2, init=8, main=4))
    assert (problem.rule, problem.where, problem.value) == (
        "init-over-gpus",
        f"spec.initContainers[first].resources.limits[{MEMORY}]",
        "8",
    )
    assert "more than container main asks after it" in problem.message
    assert problem.remedy == "request 4 or less here, or for 8 there"
    assert not all_of(on_gpus(2, init=4, main=4))
    assert not all_of(on_gpus(2, init=4, main=8))
    assert not all_of(on_gpus(1, init=8, main=4))


def test_an_ephemeral_container_can_ask_for_nothing() -> None:
    thing = pod(container(), ephemeralContainers=[container("debug", {MEMORY: 1})])
    assert [found.rule for found in all_of(thing)] == ["ephemeral-asks"]


def test_containers_that_fit_no_gpu_together_are_refused_together() -> None:
    thing = pod(
        container("a", {MEMORY: 150, PERCENT: 60}), container("b", {MEMORY: 150, PERCENT: 60})
    )
    assert [(found.rule, found.where, found.value) for found in all_of(thing)] == [
        ("pod-memory-over-card", "spec", "307200 MiB"),
        ("pod-percent-over-gpu", "spec", "120 percent"),
    ]


def test_oversubscription_lets_containers_promise_more_together() -> None:
    generous = replace(
        POLICY,
        oversubscription=replace(POLICY.oversubscription, memory_percent=200, thread_percent=200),
    )
    thing = pod(
        container("a", {MEMORY: 150, PERCENT: 60}), container("b", {MEMORY: 150, PERCENT: 60})
    )
    assert not all_of(thing, generous)


def test_other_resource_names_come_from_the_policy() -> None:
    names = replace(
        POLICY.resources, memory="example.com/mem", percent="example.com/core", memory_unit_mib=256
    )
    policy = replace(POLICY, resources=names)
    (request,) = share(
        pod(container(limits={"example.com/mem": 8, "example.com/core": 10})), policy
    ).requests
    assert (request.memory_mib, request.thread_percent) == (2048, 10)
    assert not share(pod(container(limits={MEMORY: 8})), policy).requests


@pytest.mark.parametrize(
    ("thing", "rule", "where"),
    [
        (pod(container()) | {"spec": None}, "field-missing", "spec"),
        (pod(container()) | {"metadata": "x"}, "wrong-type", "metadata"),
        (pod(), "field-missing", "spec.containers"),
        (pod(container(resources="7")), "wrong-type", "spec.containers[main].resources"),
        ({"kind": "Job"}, "field-missing", "spec"),
        ({"kind": "CronJob", "spec": {"jobTemplate": []}}, "wrong-type", "spec.jobTemplate"),
        ({"kind": "Job", "spec": {"template": {}}}, "field-missing", "spec.template.spec"),
        ({"kind": ["Pod"]}, "wrong-type", "kind"),
        ({}, "field-missing", "kind"),
        (None, "not-an-object", "the document"),
    ],
)
def test_what_has_the_wrong_shape_is_named_by_its_path(thing: Any, rule: str, where: str) -> None:
    found = read_object(thing).problems
    assert [(problem.rule, problem.where) for problem in found] == [(rule, where)]


def test_a_container_whose_name_is_none_is_named_by_its_position() -> None:
    found = read_object(pod(container(name="Not A Name\x1b[31m", limits={MEMORY: 0})))
    assert found.pod is not None
    (problem,) = read_share(found.pod, POLICY, FACTS).problems
    assert problem.where.startswith("spec.containers[0].")


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"name": "a", "namespace": "b"}, "Pod b/a"),
        ({"generateName": "a-"}, "Pod default/a-*"),
        (None, "Pod default/(no name)"),
        ({"name": "a\x1b[2J\n"}, "Pod default/a\\x1b[2J\\n"),
    ],
)
def test_an_object_is_named_as_a_person_names_it(metadata: object, name: str) -> None:
    assert read_object(pod(container()) | {"metadata": metadata}).name == name


@given(ANY_JSON)
def test_any_json_gives_objects_with_requests_or_problems(document: object) -> None:
    check_readable(document)


@given(broken_objects())
def test_a_good_object_with_any_json_in_it_gives_requests_or_problems(thing: Fields) -> None:
    check_readable(thing)


def check_readable(document: object) -> None:
    for thing in objects_in(document):
        found = read_object(thing)
        problems = found.problems
        if found.pod is not None:
            reading = read_share(found.pod, POLICY, FACTS)
            problems += reading.problems
            assert bool(reading.requests or reading.problems) == asks_for_gpu(
                found.pod, POLICY.resources
            )
        for problem in problems:
            assert problem.rule
            assert problem.where
            assert problem.message
            assert problem.remedy
            assert str(problem).isprintable()
