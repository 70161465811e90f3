"""The sentences about files, settings, the API server and nodes, as people read them: `wording.txt`
has them all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from mpsd.model.problem import InvalidInput
from mpsd.platform.kube import Ask, Resource, refusal
from mpsd.platform.limits_files import read_gpu_facts, read_policy
from mpsd.platform.rules.certificates import Validity, why_invalid
from mpsd.platform.rules.readers import NO_TOKEN, NOT_KNOWN, OTHER_HOST, TOO_MANY, User, away
from mpsd.platform.settings import listen_settings, settings
from mpsd.platform.yaml_files import DEEPEST, parse_yaml, read_yaml
from tests.model.worlds import POLICY_DATA
from tests.platform.test_kubernetes_node import TAINT, why
from tests.platform.test_limits_files import CAPABILITY, CARD, FACTS_DATA
from tests.platform.test_yaml_files import BROKEN, bomb

_ADMISSION = POLICY_DATA["admission"]

REFUSED: dict[str, tuple[Callable[[], object], ...]] = {
    "YAML": (
        *(
            partial(parse_yaml, text if isinstance(text, bytes) else text.encode(), "a.yaml")
            for text, *_ in BROKEN
        ),
        partial(parse_yaml, b"[" * (DEEPEST + 1), "a.yaml"),
        partial(parse_yaml, bomb(40).encode(), "a.yaml"),
        *(
            partial(read_yaml, name)
            for name in ("/missing.yaml", "/", "/etc/passwd/x", "/nul\0nul", "/dev/zero")
        ),
    ),
    "limits": (
        partial(read_policy, [], "policy.yaml"),
        partial(
            read_policy,
            POLICY_DATA | {"version": "v2", "placement": "any", "placment": "x"},
            "policy.yaml",
        ),
        partial(
            read_policy,
            {key: POLICY_DATA[key] for key in POLICY_DATA if key != "graces"},
            "policy.yaml",
        ),
        partial(read_policy, POLICY_DATA | {"domains": [[0, 1], [1]]}, "policy.yaml"),
        partial(
            read_policy,
            POLICY_DATA | {"admission": _ADMISSION | {"host_ipc": False}},
            "policy.yaml",
        ),
        partial(
            read_policy,
            POLICY_DATA | {"compute": {"policy": 0, "max_inst": None, "cards": {}}},
            "policy.yaml",
        ),
        partial(read_gpu_facts, FACTS_DATA | {"cards": [CARD, CARD]}, "gpus.yaml"),
        partial(
            read_gpu_facts, FACTS_DATA | {"capabilities": [CAPABILITY, CAPABILITY]}, "gpus.yaml"
        ),
        partial(
            read_gpu_facts,
            FACTS_DATA | {"cards": [CARD | {"compute_capability": "8.0"}]},
            "gpus.yaml",
        ),
    ),
    "settings": (
        partial(settings, run_directory="/" + 120 * "r", log_format="xml", environment={}),
        partial(settings, log_level="debug", environment={}),
        partial(settings, simulate=" ", environment={}),
        partial(listen_settings, {"listen": "9447"}, {}, in_cluster=True),
        partial(listen_settings, {"listen": "0.0.0.0:9447"}, {}, in_cluster=False),
    ),
}


def problems(refused: Callable[[], object]) -> Iterator[str]:
    try:
        refused()
    except InvalidInput as error:
        for one in error.problems:  # the parser's own message is another in C
            yield f"{one.rule}: {replace(one, message='…') if one.rule == 'yaml-syntax' else one}"


def others() -> Iterator[str]:
    """Of the API server's answers, of readers, and of nodes where a pod may not go."""
    ask = Ask("update", Resource("v1", "configmaps"), "b", "a")
    terminating = {"message": "namespace a is being terminated"}
    for status, answer in (
        (401, {"message": "Unauthorized"}),
        (403, {"message": "no"}),
        (403, terminating),
        (500, None),
    ):
        yield f"HTTP {status}: {refusal(ask, status, answer)}"
    expired = Validity(0.0, 86_400.0)
    yield f"certificate: {why_invalid(expired, 90_000.0, 0.0)}"
    for verdict in (
        NO_TOKEN,
        NOT_KNOWN,
        TOO_MANY,
        OTHER_HOST,
        away("WHY"),
        User("ann").verdict("/metrics", allowed=False),
    ):
        yield f"reader {verdict.status}: {verdict.reason}"
    selected, gone = (
        {"nodeSelector": {"zone": "a"}},
        {"nodeSelectorTerms": [{"matchExpressions": []}]},
    )
    affinity = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": gone}}
    }
    for away_from in (
        why({}, ready="False"),
        why({}, unschedulable=True),
        why({}, taints=[TAINT]),
        why(selected),
    ):
        yield f"node: {away_from}"
    yield f"node: {why(affinity)}"


def wording() -> str:
    lines = []
    for subject, each in REFUSED.items():
        lines += [
            subject,
            *dict.fromkeys(f"  {said}" for refused in each for said in problems(refused)),
        ]
    return "\n".join([*lines, *others()]) + "\n"
