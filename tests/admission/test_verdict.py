"""Whether an object may have what it asks for: every rule, in every kind of container."""

import itertools

import pytest
from hypothesis import given

from mpsd.admission.rules.verdict import AdmissionVerdict, claims_in, modes_in, review, review_all
from mpsd.model.fields import MOST_FIELDS
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.problem import Problem
from tests.admission.cases import KINDS, asking, in_kind
from tests.admission.reviews import review_of, validated
from tests.model.manifests import (
    ANY_JSON,
    FACTS,
    MEMORY,
    POLICY,
    Fields,
    broken_objects,
    container,
    pod,
)


def judge(thing: object, policy: Policy = POLICY) -> AdmissionVerdict:
    return review(thing, policy, FACTS)


def rules(problems: tuple[Problem, ...]) -> list[str]:
    return [found.rule for found in problems]


def test_a_sound_pod_is_admitted_with_its_requests() -> None:
    verdict = judge(asking())
    assert verdict.admitted
    assert verdict.object_name == "Pod default/train"
    assert [request.memory_mib for request in verdict.requests] == [7168]
    assert not verdict.remark


@pytest.mark.parametrize(
    "thing",
    [
        pod(container()),
        {"kind": "ConfigMap", "apiVersion": "v1"},
        {"kind": "Ingress", "apiVersion": "networking.k8s.io/v1"},
    ],
)
def test_what_asks_for_no_gpu_is_admitted_with_a_word_that_says_so(thing: Fields) -> None:
    verdict = judge(thing)
    assert verdict.admitted
    assert verdict.remark == "asks for no GPU"


@pytest.mark.parametrize(
    ("version", "kind"), [("ray.io/v1", "RayJob"), ("v1", "Job"), (None, "RayJob")]
)
def test_of_a_kind_that_is_not_read_nobody_says_that_it_asks_for_no_gpu(
    version: str | None, kind: str
) -> None:
    verdict = judge({"apiVersion": version, "kind": kind, "spec": {"template": asking()}})
    assert verdict.admitted
    named = f"{kind} of {version or 'no apiVersion'}"
    assert verdict.remark.startswith(
        f"mpsd does not know {named}, and has looked for no pods in it; it reads Pod, "
    )


HUGE = {
    "containers": pod(*[container(f"c{number}", {MEMORY: 7}) for number in range(30_000)]),
    "what is no container": pod(*[7] * 700_000),  # type: ignore[arg-type]
    "resources": pod(
        container(limits={MEMORY: 7, **{f"nvidia.com/gpu{number}": 1 for number in range(80_000)}})
    ),
    "volumes": pod(container(), volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}] * 50_000),
}


@pytest.mark.parametrize("thing", HUGE.values(), ids=HUGE)
def test_an_object_of_too_many_fields_is_refused_in_one_sentence(thing: Fields) -> None:
    (problem,) = judge(thing).problems
    assert problem.rule == "too-many-fields"
    assert f"over {MOST_FIELDS} fields" in problem.message
    assert len(str(problem)) < 300


def test_of_a_pod_that_runs_already_it_is_said_which_rules_a_new_one_would_break() -> None:
    """Whose status is its writer's own word; the webhook judges the pod as a new one."""
    thing = asking(nodeName="node-1")
    thing["metadata"]["annotations"] = {"mpsd.io/gpu": "GPU-1"}
    assert rules(judge(thing).problems) == ["node-name", "placement-annotation"]
    assert not validated(review_of(thing)).allowed
    runs = judge({**thing, "status": {"startTime": "2026-11-20T06:12:01Z"}})
    assert runs.admitted
    assert "status.startTime" in runs.remark
    assert runs.remark.endswith("node-name, placement-annotation")
    assert not validated(
        review_of({**thing, "status": {"startTime": "2026-11-20T06:12:01Z"}})
    ).allowed
    plain = judge(
        {**pod(container(), nodeName="node-1"), "status": {"startTime": "2026-11-20T06:12:01Z"}}
    )
    assert plain.remark == "asks for no GPU"


BLOCKED = ["NVIDIA_GPU_MEMORY_LIMIT", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_", "NVIDIA_MPS_X"]
BLOCKED += ["ALIYUN_COM_GPU_MEM_CONTAINER", "GPU_MEM_PER_DEVICE", "GPU_UTIL_PER_DEVICE"]
BLOCKED += ["AMP_VGPU_ENABLE", "AMP_USE_HOST_DAEMON", "EGPU"]


@pytest.mark.parametrize("name", BLOCKED)
def test_blocked_environment_is_refused_to_who_asks_for_a_gpu_alone(name: str) -> None:
    env = [{"name": "FINE", "value": "1"}, {"name": name, "value": "void"}]
    (found,) = judge(in_kind("containers", env=env)).problems
    assert (found.rule, found.value) == ("environment-blocked", '"void"')
    assert found.where == f"spec.containers[x].env[{name}]"
    assert judge(in_kind("containers", asks=False, env=env)).admitted


@pytest.mark.parametrize(
    "name",
    ["CUDA_MPS", "cuda_mps_pipe_directory", "EGPU_X", "MY_EGPU", "NVIDIA_DRIVER_CAPABILITIES_X"],
)
def test_other_environment_is_the_pods_own(name: str) -> None:
    assert judge(in_kind("containers", env=[{"name": name, "value": "x"}])).admitted


@pytest.mark.parametrize("value", ["compute,utility", "utility", "compute", ""])
def test_a_pod_may_ask_for_the_libraries_whose_memory_is_counted(value: str) -> None:
    entry = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": value}
    assert judge(in_kind("containers", env=[entry])).admitted


@pytest.mark.parametrize(
    "entry",
    [
        {"value": "compute,graphics"},
        {"value": "Compute"},
        {"valueFrom": {"fieldRef": {"fieldPath": "x"}}},
    ],
)
def test_a_pod_may_ask_for_no_library_whose_memory_is_not_counted(entry: Fields) -> None:
    (found,) = judge(
        in_kind("initContainers", env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", **entry}])
    ).problems
    assert found.rule == "environment-blocked"
    assert found.remedy == "remove it, or write compute,utility"


@pytest.mark.parametrize("beside", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("source", "rule", "value", "named"),
    [
        ({"configMapRef": {"name": "train"}}, "environment-unseen", 'ConfigMap "train"', "EGPU"),
        ({"secretRef": {"name": "keys"}}, "environment-secret", 'Secret "keys"', "EGPU"),
        (
            {"prefix": "CUDA_", "secretRef": {"name": "x"}},
            "environment-secret",
            'Secret "x"',
            "CUDA_MPS_*",
        ),
        (
            {"prefix": "CUDA_MPS_P", "configMapRef": {"name": "x"}},
            "environment-unseen",
            'ConfigMap "x"',
            "CUDA_MPS_*",
        ),
    ],
)
def test_environment_that_is_not_seen_is_warned_of(
    beside: str, source: Fields, rule: str, value: str, named: str
) -> None:
    asking = container("asks", limits={MEMORY: 7}, envFrom=[source])
    verdict = judge(pod(container(), **{beside: [asking]}))
    assert verdict.admitted
    (found,) = verdict.warnings
    assert (found.rule, found.value) == (rule, value)
    assert found.where == f"spec.{beside}[asks].envFrom[0]"
    assert named in found.message


@pytest.mark.parametrize("beside", KINDS)
def test_what_a_container_without_a_gpu_takes_from_elsewhere_is_no_matter(beside: str) -> None:
    sources = [{"configMapRef": {"name": "train"}}, {"secretRef": {"name": "keys"}}]
    assert not judge(in_kind(beside, envFrom=sources)).warnings


@given(ANY_JSON)
def test_any_json_has_a_verdict(document: object) -> None:
    check_verdicts(document)


@given(broken_objects())
def test_any_json_inside_a_good_object_has_a_verdict(thing: Fields) -> None:
    check_verdicts(thing)


def check_verdicts(document: object) -> None:
    for verdict in (*review_all(document, POLICY, FACTS), judge(document)):
        assert verdict.object_name.isprintable()
        assert verdict.admitted != bool(verdict.problems)
        assert verdict.admitted or not verdict.requests
        assert verdict.problems or verdict.requests or verdict.remark
        assert all(str(found).isprintable() for found in (*verdict.problems, *verdict.warnings))


# How hard each rule is taken: the policy, and what a namespace's labels make of it.

MODES = {
    RuleId.PRIVILEGED: RuleMode.ENFORCE,
    RuleId.HOST_PID: RuleMode.WARN,
    RuleId.HOST_ROOT: RuleMode.AUDIT,
}
ENFORCED, WARNED, AUDITED = MODES


def modes(**labels: str) -> list[str]:
    """What becomes of the enforced, the warned and the audited rule; empty for nothing."""
    found = modes_in({f"mpsd.io/{name}": value for name, value in labels.items()}, MODES).modes
    return [str(found.get(rule, "")) for rule in MODES]


def test_a_namespace_that_says_nothing_gets_the_policy() -> None:
    assert modes_in({}, MODES).modes is MODES
    assert modes_in({"team": "a", "mpsd.io/exempt": "false"}, MODES).modes == MODES


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"enforce": "all"}, ["enforce", "enforce", "enforce"]),
        ({"enforce": "none"}, ["warn", "warn", "audit"]),
        ({"enforce": "none", "warn": "none", "audit": "none"}, ["", "", ""]),
        ({"warn": "all"}, ["enforce", "warn", "warn"]),
        ({"warn": "none"}, ["enforce", "audit", "audit"]),
        ({"audit": "none"}, ["enforce", "warn", ""]),
        ({"enforce": "default", "warn": "default"}, ["enforce", "warn", "audit"]),
    ],
)
def test_each_label_says_which_rules_are_taken_so(
    labels: dict[str, str], expected: list[str]
) -> None:
    assert modes(**labels) == expected


@pytest.mark.parametrize("value", ["strict", "", "ALL"])
def test_a_label_that_says_nothing_known_is_the_default_and_is_told(value: str) -> None:
    there = modes_in({"mpsd.io/enforce": value}, MODES)
    assert there.modes == MODES
    assert there.changes_pods
    assert there.remarks == (
        f'the namespace\'s label mpsd.io/enforce is "{value}": write all, none or default',
    )


def test_a_stronger_label_never_makes_a_rule_weaker() -> None:
    strength = ["", "audit", "warn", "enforce"]
    values = ["none", "default", "all"]
    for combination in itertools.product(values, repeat=3):
        labels = dict(zip(map(str, RuleMode), combination, strict=True))
        for mode, value in labels.items():
            for stronger in values[values.index(value) :]:
                for weak, strong in zip(
                    modes(**labels), modes(**labels | {mode: stronger}), strict=True
                ):
                    assert strength.index(strong) >= strength.index(weak)


def test_a_claim_of_too_many_fields_hides_no_other() -> None:
    def claim(name: str, fields: int) -> Fields:
        metadata = {"name": name, **dict.fromkeys(map(str, range(fields)), "")}
        return {"kind": "ResourceClaim", "metadata": metadata}

    found = claims_in([claim("large", MOST_FIELDS + 1), claim("small", 1)])
    assert "small" in {one.name for one in found["default"]}
