"""Checks of the webhook. A cluster that does without one has no fault here."""

import binascii
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from mpsd.admission.rules.configurations import NOT_CALLED, FailurePolicy
from mpsd.model.names import APPLY, NAME_LABEL, NAMESPACE, WEBHOOK
from mpsd.model.times import DAY_S, lasting
from mpsd.operations.doctor.rules.checks import (
    CheckTable,
    Finding,
    NotApplicable,
    Severity,
    Unknown,
    each,
    known,
)
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, inside
from mpsd.platform.rules.certificates import ANNOTATION, read_annotation
from mpsd.status.rules.pods import quoted

_MOST_REFUSALS = 3
# mpsd and cert-manager renew theirs when a third of its life is left, 30 days of 90
_NEAR_S = 14 * DAY_S
# of the life that a serving certificate has, which operators choose: half of what renewal has
_NEAR_PART = 6
_RENEW = "see in the webhook's log why it was not renewed; with cert-manager, renew it there"
_OPEN = (
    f"let the control plane reach TCP port {{port}} of the pods of deploy/{WEBHOOK}: see firewall"
    " rules and security groups of the nodes (above all of a private GKE or EKS cluster), and"
    " network policies"
)
_CONFIGURATIONS = f"webhook configurations {WEBHOOK}"
_WRITES = "mpsd-agent-writes"
_STOPS, _BREAKS, _NOTE = Severity

WEBHOOK_CHECKS = CheckTable[ClusterFacts]()
_check = WEBHOOK_CHECKS.check


def _configurations(facts: ClusterFacts) -> list[Object]:
    is_installed = any(one.component == WEBHOOK for one in facts.workloads)
    found = [*known(facts.validating), *known(facts.mutating)]
    if not found and not is_installed:  # by choice
        raise NotApplicable("this cluster has no webhook of mpsd's")
    return found


def _webhooks(facts: ClusterFacts) -> list[Object]:
    return [one for thing in _configurations(facts) for one in thing.get("webhooks") or ()]


@_check(_BREAKS, "admission is registered, by one authority", _CONFIGURATIONS)
def webhook_unregistered(facts: ClusterFacts) -> Iterator[Finding]:
    webhooks = _webhooks(facts)
    for kind, found in (("Validating", facts.validating), ("Mutating", facts.mutating)):
        if not any(one.get("webhooks") for one in known(found)):
            what = f"{kind}WebhookConfiguration {WEBHOOK} is missing"
            yield Finding(f"{what}: every pod is admitted", APPLY)
    bundles = {one["name"]: _bundle(one) for one in webhooks}
    command = f"kubectl -n {NAMESPACE} rollout restart deploy/{WEBHOOK}"
    restart = f"restart the webhook, which writes its own: {command}"
    for name, bundle in bundles.items():
        if not bundle:
            what = f"webhook {name} has no caBundle: no API server can verify the webhook"
            yield Finding(what, restart)
    if len(set(filter(None, bundles.values()))) > 1:
        yield Finding("the two webhook configurations name different CAs (caBundle)", restart)


@_check(_BREAKS, "the webhook's certificates last", f"{_CONFIGURATIONS}: caBundle, {ANNOTATION}")
def webhook_certificate(facts: ClusterFacts) -> Iterator[Finding]:
    configurations = _configurations(facts)
    bundles = [_bundle(one) for one in _webhooks(facts)]
    for authorities in map(_authorities, dict.fromkeys(filter(None, bundles))):
        if not authorities:
            what = f"a caBundle of {WEBHOOK} contains no CA certificate"
            yield Finding(what, f"restart deploy/{WEBHOOK}")
            continue
        ends_at, subject = max(authorities)
        if ends_at - facts.now < _NEAR_S:
            what = f"the webhook's CA certificate ({subject}) {_ends(ends_at - facts.now)}"
            yield Finding(what, _RENEW)
            break
    if facts.is_injected:  # the serving one is cert-manager's
        return
    unreported = Unknown(f"no webhook has reported it yet (annotation {ANNOTATION})")
    if not configurations:
        raise unreported
    for _thing, life in each(configurations, lambda one: read_annotation(one) or unreported):
        left_s = life.ends_at - facts.now
        if left_s < (life.ends_at - life.begins_at) / _NEAR_PART:
            yield Finding(f"a serving certificate of the webhook {_ends(left_s)}", _RENEW)
            return


def _bundle(webhook: Object) -> str:
    return inside(webhook, "clientConfig", "caBundle") or ""


def _authorities(bundle: str) -> list[tuple[float, str]]:
    """When the certificate of each ends, and whose it is. bundle: base64 of PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=b64decode(bundle, validate=True).decode())
    except (ssl.SSLError, ValueError, binascii.Error):
        return []
    return [
        (ssl.cert_time_to_seconds(str(one["notAfter"])), _subject(one))
        for one in context.get_ca_certs()
    ]


def _subject(certificate: Mapping[str, Any]) -> str:
    for row in certificate.get("subject", ()):
        for key, value in row:
            if key == "commonName":
                return str(value)
    return str(certificate.get("subject"))


def _ends(left_s: float) -> str:
    if left_s > 0:
        return f"expires in {lasting(left_s)}"
    return "has expired"


@_check(_BREAKS, "API servers reach the webhook", "Endpoints of its Service, and events")
def webhook_unreachable(facts: ClusterFacts) -> Iterator[Finding]:
    webhooks = _webhooks(facts)
    messages = {str(event.get("message")): None for event in known(facts.warnings)}
    refusals = [one for one in messages if "failed calling webhook" in one and "mpsd.io" in one]
    for refusal in refusals[:_MOST_REFUSALS]:
        what = f"an API server cannot call the webhook: {quoted(refusal)}"
        yield Finding(what, "see its pods, its Service, and network policies")
    behind = [subset for one in known(facts.endpoints) for subset in one.get("subsets") or ()]
    if any(inside(one, "metadata", "annotations", NOT_CALLED) for one in _configurations(facts)):
        ports = [port["port"] for subset in behind for port in subset.get("ports") or ()]
        what = (
            f"API servers cannot call the webhook, so its failurePolicy is {FailurePolicy.IGNORE}"
        )
        to_do = _OPEN.format(port=next(iter(ports), 9443))
        yield Finding(f"{what}: pods are admitted without review", to_do)
    if not any(one.get("addresses") for one in behind):
        then = "pods are admitted without review"
        if any(one.get("failurePolicy") == "Fail" for one in webhooks):
            then = "the pods that it reviews are refused"
        see = f"see kubectl -n {NAMESPACE} get pods,endpoints -l {NAME_LABEL}={WEBHOOK}"
        yield Finding(f"no ready pod is behind the Service {WEBHOOK}: {then}", see)


@_check(_NOTE, "nothing is admitted without review", _CONFIGURATIONS)
def webhook_fail_open(facts: ClusterFacts) -> Iterator[Finding]:
    """Where cert-manager serves the webhook may not set Fail."""
    ignoring = [one for one in _webhooks(facts) if one.get("failurePolicy") == FailurePolicy.IGNORE]
    if ignoring and facts.is_injected:
        then = "while no webhook answers, pods are admitted without review"
        see = f"once API servers call it, set webhook.failClosed, and {APPLY}"
        yield Finding(f"failurePolicy is {FailurePolicy.IGNORE}: {then}", see)


@_check(_BREAKS, "the policy on what agents write is in force", "ValidatingAdmissionPolicies")
def policy_missing(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.get("matchConditions") for one in _webhooks(facts)):
        raise NotApplicable("mpsd is installed as for Kubernetes before 1.30")
    untied = "an agent's token writes to every node"
    if facts.kubernetes < (1, 30):
        what = "mpsd is installed as for Kubernetes 1.30, which serves ValidatingAdmissionPolicies"
        yield Finding(f"{what}: {untied}", "render the chart for this version (docs/install.md)")
    elif _WRITES not in [one["metadata"]["name"] for one in known(facts.policies)]:
        yield Finding(f"ValidatingAdmissionPolicy {_WRITES} is missing: {untied}", APPLY)
