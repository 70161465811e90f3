"""The rules for requests, for who decides where a pod runs, and for variables."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.admission.rules.requests import BY_CLASS, PLACEMENT_ANNOTATIONS
from mpsd.admission.rules.rule import RequestContext
from mpsd.model.pod import CLAIM, ClaimName
from mpsd.model.policy import GpuPriority, RuleId
from tests.admission.cases import KINDS, PLACED, asking, broken, found, in_kind
from tests.model.manifests import MEMORY, POLICY, Fields, container, pod, with_admission


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("key", ["limits", "requests"])
@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"]
)
def test_gpu_memory_and_a_gpu_of_another_ledger_do_not_go_together(
    kind: str, key: str, name: str
) -> None:
    assert broken(in_kind(kind, resources={key: {name: "1"}})) == [
        ("other-gpu-too", f"spec.{kind}[x].resources.{key}[{name}]", '"1"')
    ]
    assert broken(in_kind(kind, asks=False, resources={key: {name: "1"}})) == []


@pytest.mark.parametrize("amount", [0, "0", "0.0", "0k", "0e9", "-0"])
def test_nothing_of_another_gpu_is_no_other_gpu(amount: object) -> None:
    assert broken(in_kind("containers", resources={"limits": {"nvidia.com/gpu": amount}})) == []


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("schedulerName", "my-scheduler", "scheduler-name"),
        ("schedulerName", "default-scheduler", ""),
        ("schedulerName", "mpsd-scheduler", ""),
        ("nodeName", "node-1", "node-name"),
        ("runtimeClassName", "kata", "runtime-class"),
        ("runtimeClassName", "nvidia", ""),
    ],
)
def test_who_decides_where_a_pod_runs_must_know_the_ledger(
    field: str, value: str, rule: str
) -> None:
    expected = [(rule, f"spec.{field}", f'"{value}"')] if rule else []
    assert broken(asking(**{field: value})) == expected
    assert broken(pod(container(), **{field: value})) == []


@pytest.mark.parametrize(
    ("grace_s", "is_found"), [(None, False), (-1, True), (0, True), (1, False)]
)
def test_a_gpu_pod_that_is_killed_at_once_or_nearly_so_is_found(
    grace_s: int | None, is_found: bool
) -> None:
    spec = {"terminationGracePeriodSeconds": grace_s}
    expected = (
        [("grace-zero", "spec.terminationGracePeriodSeconds", str(grace_s))] if is_found else []
    )
    assert broken(asking(**spec)) == expected
    assert broken(pod(container(), **spec)) == []


def test_what_stands_for_a_static_pod_names_the_node_that_has_its_file() -> None:
    """kubelet runs no pod with this annotation, whoever made it."""
    thing = asking(nodeName="node-1")
    thing["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "d4c1"}
    assert broken(thing) == []


def test_a_pod_that_a_node_runs_already_keeps_its_node() -> None:
    thing = asking(nodeName="node-1")
    assert broken(thing, known=RequestContext(is_placed=True)) == []


@pytest.mark.parametrize(
    ("before", "now", "values"),
    [
        ({}, PLACED, {"mpsd.io/gpu": '"GPU-1"', "scheduler.framework.gpushare.allocation": '"{}"'}),
        (PLACED, PLACED, {}),
        (PLACED, {**PLACED, "mpsd.io/gpu": "GPU-2"}, {"mpsd.io/gpu": '"GPU-2"'}),
        (PLACED, {}, {"mpsd.io/gpu": "gone", "scheduler.framework.gpushare.allocation": "gone"}),
        ({}, {"note": "x", "mpsd.io/gpus": "x"}, {}),
        (
            {"mpsd.io/gpu": "x" * 500 + "a"},
            {"mpsd.io/gpu": "x" * 500 + "b"},
            {"mpsd.io/gpu": f'"{"x" * 58}…'},
        ),
    ],
)
def test_only_those_who_keep_the_ledger_write_placements(
    before: Fields, now: Fields, values: Mapping[str, str]
) -> None:
    thing = asking()
    thing["metadata"]["annotations"] = now
    by_ann = broken(thing, known=RequestContext(writer="ann", annotations_before=before))
    assert {where: value for _, where, value in by_ann} == {
        f"metadata.annotations[{name}]": value for name, value in values.items()
    }
    scheduler = RequestContext(writer="system:kube-scheduler", annotations_before=before)
    assert broken(thing, known=scheduler) == []


def test_every_form_of_a_placement_is_known() -> None:
    names = [pattern.replace("*", "x") for pattern in PLACEMENT_ANNOTATIONS]
    thing = asking()
    thing["metadata"]["annotations"] = dict.fromkeys(names, "1")
    assert len(broken(thing)) == len(names)
    thing["spec"]["containers"] = [container()]
    assert broken(thing) == []


# Variables that would lift a container's limits, wherever they come from.


@pytest.mark.parametrize("value", ["void", "none", ""])
def test_a_container_may_not_hide_the_gpu_it_asks_for(value: str) -> None:
    thing = pod(
        container(limits={MEMORY: 7}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}])
    )
    (one,) = found(thing)
    assert one.rule is RuleId.ENVIRONMENT_BLOCKED
    assert "hides" in one.problem.message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("source", "keys", "blocked"),
    [
        ({}, {"EGPU", "BATCH"}, ["EGPU"]),
        ({"prefix": "CUDA_"}, {"MPS_PIPE_DIRECTORY", "VISIBLE_DEVICES"}, ["MPS_PIPE_DIRECTORY"]),
        ({"prefix": "NVIDIA_"}, {"VISIBLE_DEVICES", "MPS"}, ["MPS", "VISIBLE_DEVICES"]),
        ({"prefix": "nvidia_"}, {"VISIBLE_DEVICES"}, []),
        ({}, {"egpu", "cuda_mps_x"}, []),
        ({"prefix": "CUDA_MPS_PIPE_"}, {"anything"}, ["anything"]),
        ({"prefix": "MY_"}, {"EGPU"}, []),
    ],
)
def test_keys_of_a_known_config_map_are_variables_behind_their_prefix(
    kind: str, source: Fields, keys: set[str], blocked: list[str]
) -> None:
    known = RequestContext(config_maps={"train": frozenset(keys)})
    thing = in_kind(kind, envFrom=[{**source, "configMapRef": {"name": "train"}}])
    assert broken(thing, known=known) == [
        ("environment-blocked", f"spec.{kind}[x].envFrom[0]", 'ConfigMap "train"')
    ] * bool(blocked)
    assert (
        broken(in_kind(kind, envFrom=[{**source, "secretRef": {"name": "train"}}]), known=known)
        == []
    )


@given(st.frozensets(st.text("ABC_", min_size=9, max_size=20)))
def test_no_message_tells_a_key_of_a_config_map(keys: frozenset[str]) -> None:
    """Whoever writes a pod may not be allowed to read it."""
    keys = frozenset(f"CUDA_MPS_{key}" for key in keys)
    known = RequestContext(config_maps={"train": keys})
    thing = in_kind("containers", envFrom=[{"configMapRef": {"name": "train"}}])
    text = "".join(str(one.problem) for one in found(thing, known=known))
    assert bool(text) is bool(keys)
    assert not any(key in text for key in keys)


@pytest.mark.parametrize("where", ["limits", "requests"])
@pytest.mark.parametrize(
    ("name", "amount", "is_refused"),
    [
        ("nvidia.com/x", 1, True),
        ("nvidia.com/gpu", "1", True),
        ("nvidia.com/mig-1g.5gb", 1, True),
        ("aliyun.com/gpux", "1m", True),
        ("nvidia.com/x", 0, False),
        ("example.com/nic", 1, False),
        ("cpu", 1, False),
    ],
)
def test_who_asks_another_for_a_gpu_names_no_node_either(
    where: str, name: str, amount: object, is_refused: bool
) -> None:
    thing = pod(container(resources={where: {name: amount}}), nodeName="node-1")
    expected = [("node-name", "spec.nodeName", '"node-1"')] if is_refused else []
    assert broken(thing) == expected
    assert broken(thing, known=RequestContext(is_placed=True)) == []
    del thing["spec"]["nodeName"]
    assert broken(thing) == []


def test_a_claim_of_another_drivers_class_names_no_node() -> None:
    claims = [{"name": "gpu", "resourceClaimName": "one"}]
    thing = pod(container(), nodeName="node-1", resourceClaims=claims)
    kept = (f"{BY_CLASS}gpu.example.com",)
    policy = with_admission(visible_devices_kept_for=kept)
    for name, expected in (("gpu.example.com", ["node-name"]), ("nic.example.com", [])):
        known = RequestContext(claims={ClaimName(CLAIM, "one"): (name,)})
        assert [one[0] for one in broken(thing, policy, known)] == expected


@pytest.mark.parametrize(
    ("written", "is_refused"),
    [("normal", False), ("below-normal", False), ("low", True), ("", True), ("1", True)],
)
def test_a_priority_is_a_word_that_the_policy_knows_where_it_goes_by_annotations(
    written: str, is_refused: bool
) -> None:
    thing = asking()
    thing["metadata"]["annotations"] = {"mpsd.io/gpu-priority": written}
    where = "metadata.annotations[mpsd.io/gpu-priority]"
    by_annotation = replace(POLICY, gpu_priority=GpuPriority("annotation"))
    expected = [("request-impossible", where, f'"{written}"')] if is_refused else []
    assert broken(thing, by_annotation) == expected
    assert [one.problem.rule for one in found(thing, by_annotation)] == (
        ["priority-unknown"] if is_refused else []
    )
    assert broken(thing) == [], "an annotation that nobody goes by says nothing"
