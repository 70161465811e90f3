"""Variables that would lift a container's limits, wherever they come from."""

import pytest

from mpsd.admission.rules.rule import RequestContext
from mpsd.model.policy import RuleId
from tests.admission.cases import KINDS, broken, found, in_kind
from tests.model.manifests import MEMORY, Fields, container, pod


@pytest.mark.parametrize("value", ["void", "none", ""])
def test_a_container_may_not_hide_the_gpu_it_asks_for(value: str) -> None:
    thing = pod(container(limits={MEMORY: 7}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]))
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
        ("environment-blocked", f"spec.{kind}[x].envFrom[0]", f'ConfigMap "train" with the key "{key}"')
        for key in blocked
    ]
    assert broken(in_kind(kind, envFrom=[{**source, "secretRef": {"name": "train"}}]), known=known) == []


def test_a_config_map_that_is_known_is_not_warned_of() -> None:
    thing = pod(container(limits={MEMORY: 7}, envFrom=[{"configMapRef": {"name": "train"}}]))
    assert broken(thing, known=RequestContext(config_maps={"train": frozenset()})) == []
    assert [rule for rule, _, _ in broken(thing, known=RequestContext(config_maps={"other": frozenset()}))] == [
        "environment-unseen"
    ]
