"""What is fuzzed: for each target what must hold of any bytes, and bytes to begin with.

One rule: nothing here knows a fuzzer, so that `make check` holds every target to its seeds without
one.
"""

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    MalformedReview,
    Review,
    mutate,
    needed_to_mutate,
    needed_to_validate,
    read_review,
    validate,
)
from mpsd.admission.rules.verdict import review_all
from mpsd.model.cuda_limit_parser import memory_limit_as_read, thread_percent_as_read
from mpsd.model.problem import InvalidInput, Problem
from mpsd.mps.rules.control_protocol import NotUnderstood, read_line
from mpsd.platform.limits_files import read_gpu_facts, read_policy, shipped_folder
from mpsd.platform.yaml_files import parse_yaml
from tests.admission.reviews import review_of
from tests.model.manifests import (
    ANY_JSON,
    FACTS,
    POLICY,
    STEPS,
    broken_objects,
    container,
    inside,
    pod,
)
from tests.mps.test_control_daemon import EVERY_COMMAND

_DATA = Path(__file__).parents[1] / "data"
_MANIFESTS, _TRANSCRIPTS = (
    sorted((_DATA / "manifests").iterdir()),
    sorted((_DATA / "transcripts").iterdir()),
)
_LONGEST_WARNING = 120  # characters, which Kubernetes asks for
_LONG_PID = (
    b"[2026-01-01 00:00:00.000 Control " + b"9" * 5000 + b"] NEW SERVER " + b"9" * 5000 + b": Ready"
)
_UUIDS = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"]


@dataclass(frozen=True, slots=True)
class Target:
    """about: in a sentence. run: raises where something does not hold. seeds: bytes to begin
    with."""

    about: str
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def _review(body: bytes) -> None:
    """As `admission.review_api` takes a body; what it answers 400 to may be raised, and nothing
    else."""
    with contextlib.suppress(
        msgspec.DecodeError, UnicodeDecodeError, MalformedReview, RecursionError
    ):
        _answer(read_review(msgspec.json.decode(body)))


def _answer(review: Review) -> None:
    nothing = AdmissionContext()
    needs = needed_to_validate(review, POLICY, FACTS)
    strict = AdmissionContext(
        {"mpsd.io/enforce": "all"}, dict.fromkeys(needs.config_maps, ("CUDA_MPS_X",))
    )
    for seen in (nothing, strict):
        _is_well_formed(validate(review, POLICY, FACTS, seen), review.uid)
    needed_to_mutate(review, POLICY, FACTS)
    changed = mutate(review, POLICY, FACTS, nothing)
    assert changed.allowed, "nothing is refused by whoever only changes"
    _is_well_formed(changed, review.uid)


def _is_well_formed(answer: AdmissionAnswer, uid: str) -> None:
    """What an API server makes of an answer."""
    record = json.loads(msgspec.json.encode(answer.record()))
    assert (record["apiVersion"], record["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = record["response"]
    assert response["uid"] == uid
    if not response["allowed"]:
        assert response["status"]["code"] == 403
        assert response["status"]["message"]
    for warning in response.get("warnings", ()):
        assert 0 < len(warning) <= _LONGEST_WARNING
        assert warning.isprintable()
    assert all(response.get("auditAnnotations", {"": "x"}).values())
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        for change in json.loads(base64.b64decode(response["patch"])):
            assert change.keys() == {"op", "path", "value"}


@settings(database=None, deadline=None)
@given(broken_objects() | ANY_JSON, st.none() | broken_objects() | ANY_JSON)
def _object(thing: object, old: object) -> None:
    """The same by objects that are nearly right, which the fuzzer's bytes choose among."""
    kind = thing if isinstance(thing, dict) else {}
    typed = {
        "apiVersion": str(kind.get("apiVersion") or "v1"),
        "kind": str(kind.get("kind") or "Pod"),
    }
    review = review_of({**typed}, old=None if old is None else {})
    review["request"] |= {"object": thing, "oldObject": old}
    _review(json.dumps(review).encode())


def _manifest(data: bytes) -> None:
    """As `mpsd explain` takes a file."""
    with contextlib.suppress(InvalidInput):
        for document in parse_yaml(data, "a file"):
            for verdict in review_all(document.value, POLICY, FACTS):
                _are_said((*verdict.problems, *verdict.warnings, *verdict.noted))


def _limits(data: bytes) -> None:
    """As `mpsd check` takes a file."""
    with contextlib.suppress(InvalidInput):
        for document in parse_yaml(data, "a file"):
            for read in (read_policy, read_gpu_facts):
                _are_said(_problems_of(read, document.value))


def _problems_of(read: Callable[[object, str], object], value: object) -> tuple[Problem, ...]:
    try:
        read(value, "a file")
    except InvalidInput as error:
        return error.problems
    return ()


def _are_said(problems: Iterable[Problem]) -> None:
    for problem in problems:
        assert problem.rule
        assert problem.message
        assert problem.remedy


def _control(data: bytes) -> None:
    """What a control daemon answers, and what stands in its log."""
    text = data.decode(errors="replace")
    for command in EVERY_COMMAND:
        with contextlib.suppress(NotUnderstood):
            command.answer(text)
    for line in text.splitlines():
        read_line(line)


def _environment(data: bytes) -> None:
    """What a client's environment says of its limits."""
    text = data.decode(errors="replace")
    memory_limit_as_read(text, _UUIDS)
    assert 0 < thread_percent_as_read(text) <= 100


def _reviews() -> Iterable[bytes]:
    asking = container(
        limits={"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": 40},
        env=[
            {"name": "CUDA_MPS_X", "value": "1"},
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        ],
        envFrom=[{"prefix": "A", "configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        securityContext={
            "privileged": True,
            "runAsUser": 0,
            "capabilities": {"add": ["SYS_ADMIN"]},
        },
        volumeMounts=[{"name": "dev", "mountPath": "/run/mpsd"}],
    )
    volumes = [{"name": "dev", "hostPath": {"path": "/dev/../dev"}}]
    for version, kind in STEPS:
        thing = inside(
            version, kind, pod(asking, container("other"), labels={"aliyun.com/gpu-count": "2"})
        )
        old = inside(version, kind, pod(container(), volumes=volumes))
        for review in (review_of(thing), review_of(thing, old=old), review_of(thing, "DELETE")):
            yield json.dumps(review).encode()


def _files(paths: Iterable[Path]) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in paths)


TARGETS: Mapping[str, Target] = {
    "review": Target("a body becomes a well-formed answer, or a 400", _review, tuple(_reviews())),
    "object": Target(
        "so does a review of any object that is nearly right",
        _object.hypothesis.fuzz_one_input,
        (b"", bytes(4096)),
    ),
    "manifest": Target("a manifest becomes verdicts, or problems", _manifest, _files(_MANIFESTS)),
    "limits": Target(
        "a file of limits becomes limits, or problems",
        _limits,
        _files(shipped_folder().glob("*.yaml")),
    ),
    "control": Target(
        "a daemon's answer is understood, or is not", _control, (*_files(_TRANSCRIPTS), _LONG_PID)
    ),
    "environment": Target(
        "a client's limits are read as its driver does",
        _environment,
        (
            b"0=7168M,1=2G",
            b"GPU-aaaaaaaa=1.5G",
            b"-1G",
            b"0=" + b"9" * 5000 + b"M",
            b"30",
            b"1e-3",
            b"nan",
        ),
    ),
}
