"""The answer to an AdmissionReview, as Kubernetes reads it.

One rule: the sentences are those of `mpsd explain`; only their lines are cut to the length that Kubernetes asks for.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mpsd.admission.rules.admission import of_mode
from mpsd.admission.rules.admission_modes import NamespaceModes
from mpsd.admission.rules.admission_patch import Change
from mpsd.admission.rules.admission_request import API_VERSION, KIND
from mpsd.admission.rules.table import Finding
from mpsd.model.policy import Mode
from mpsd.model.problem import Problem

# Kubernetes asks for warnings of at most 120 characters, and cuts them once all together pass 4096.
_WARNING_LENGTH = 119
_MOST_WARNINGS = 30
_MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """One answer. message: every problem, empty where it is allowed. audit: rules by mode, for the audit log.

    verdicts: each rule that found something, and how hard it is taken, for metrics.
    """

    uid: str
    allowed: bool = True
    code: int = 200
    message: str = ""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    patch: tuple[Change, ...] = ()
    verdicts: tuple[tuple[str, str], ...] = ()

    def record(self) -> dict[str, object]:
        """The AdmissionReview that is sent back."""
        response: dict[str, object] = {"uid": self.uid, "allowed": self.allowed}
        if not self.allowed:
            response["status"] = {"code": self.code, "reason": "Forbidden", "message": self.message}
        if self.warnings:
            response["warnings"] = list(self.warnings)
        if self.audit:
            response["auditAnnotations"] = dict(self.audit)
        if self.patch:
            encoded = base64.b64encode(json.dumps(self.patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def answer_to(uid: str, name: str, found: Iterable[Finding], there: NamespaceModes) -> AdmissionAnswer:
    """What is said about the findings in an object of this name, in a namespace where these modes count."""
    taken = tuple(finding for finding in found if finding.rule in there.modes)
    refused = of_mode(Mode.ENFORCE, taken, there.modes)
    verdicts = tuple(dict.fromkeys((str(finding.rule), str(there.modes[finding.rule])) for finding in taken))
    return AdmissionAnswer(
        uid,
        allowed=not refused,
        code=403 if refused else 200,
        message=refusal(name, [finding.problem for finding in refused]) if refused else "",
        warnings=warnings_of(taken, there),
        audit=_audit(verdicts),
        verdicts=verdicts,
    )


def warnings_of(found: Iterable[Finding], there: NamespaceModes) -> tuple[str, ...]:
    """The lines for the findings that only warn, and for labels of the namespace that say nothing."""
    return tuple(_few(_warnings(of_mode(Mode.WARN, found, there.modes), there.remarks), _MOST_WARNINGS))


def refusal(name: str, problems: Iterable[Problem]) -> str:
    """Every problem of an object, a line each."""
    lines = list(map(str, problems))
    counted = f"{len(lines)} problem{'' if len(lines) == 1 else 's'}"
    return "\n  ".join([f"{name} is refused, {counted}", *_few(lines, _MOST_PROBLEMS)])


def _warnings(found: Iterable[Finding], remarks: Iterable[str]) -> Iterator[str]:
    """What is wrong and what to do, each led by the rule: kubectl shows a line that comes twice once."""
    for finding in found:
        for sentence in (finding.problem.fault, finding.problem.remedy):
            yield from _lines(f"{finding.rule}: {sentence}")
    for remark in remarks:
        yield from _lines(remark)


def _lines(sentence: str) -> Iterator[str]:
    """The sentence in lines that are short enough, cut between words where there are any; textwrap takes 40 µs."""
    while len(sentence) > _WARNING_LENGTH:
        blank = sentence.rfind(" ", 1, _WARNING_LENGTH + 1)
        end = blank if blank > 0 else _WARNING_LENGTH
        yield sentence[:end]
        sentence = sentence[end:].lstrip()
    yield sentence


def _few(lines: Iterable[str], most: int) -> Iterator[str]:
    shown = list(lines)
    yield from shown[:most]
    if len(shown) > most:
        yield f"and {len(shown) - most} more"


def _audit(verdicts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The rules by mode; the API server puts the webhook's name before each key."""
    by_mode = {mode: ",".join(rule for rule, taken in verdicts if taken == mode) for mode in map(str, Mode)}
    return {mode: named for mode, named in by_mode.items() if named}
