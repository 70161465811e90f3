"""Checks of `kubectl mps doctor` of the webhook. A cluster that does without one has no fault here."""

import binascii
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from mpsd.admission.rules.configurations import NOT_CALLED, FailurePolicy
from mpsd.model.names import APPLY, NAME_LABEL, NAMESPACE, WEBHOOK
from mpsd.model.times import DAY_S, lasting
from mpsd.operations.doctor.rules.checks import CheckTable, Finding, NotApplicable, Severity, Unknown, each, known
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, inside
from mpsd.platform.rules.certificates import ANNOTATION, read_annotation
from mpsd.status.rules.pods import quoted

_MOST_REFUSALS = 3
_NEAR_S = 14 * DAY_S  # mpsd and cert-manager renew theirs when a third of its life is left, 30 days of 90
_NEAR_PART = 6  # of the life that a serving certificate has, which operators choose: half of what renewal has
_RENEW = "see in the webhook's log why it was not renewed; with cert-manager, renew it there"
_OPEN = (
    f"let the control plane reach TCP port {{port}} of the pods of deploy/{WEBHOOK}: see firewall rules and security "
    "groups of the nodes (above all of a private GKE or EKS cluster), and network policies"
)
_CONFIGURATIONS = f"webhook configurations {WEBHOOK}"
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


@_check("webhook-unregistered", _BREAKS, "admission is registered, by one authority", how=_CONFIGURATIONS)
def _unregistered(facts: ClusterFacts) -> Iterator[Finding]:
    webhooks = _webhooks(facts)
    for kind, found in (("Validating", facts.validating), ("Mutating", facts.mutating)):
        if not any(one.get("webhooks") for one in known(found)):
            yield Finding(f"{kind}WebhookConfiguration {WEBHOOK} is missing: every pod is admitted", APPLY)
    bundles = {one["name"]: inside(one, "clientConfig", "caBundle") for one in webhooks}
    restart = f"restart the webhook, which writes its own: kubectl -n {NAMESPACE} rollout restart deploy/{WEBHOOK}"
    for name, bundle in bundles.items():
        if not bundle:
            yield Finding(f"webhook {name} has no caBundle: no API server can verify the webhook", restart)
    if len(set(filter(None, bundles.values()))) > 1:
        yield Finding("the two webhook configurations name different CAs (caBundle)", restart)


@_check(
    "webhook-certificate",
    _BREAKS,
    "the webhook's certificates last",
    how=f"caBundle and annotation {ANNOTATION} of {_CONFIGURATIONS}",
)
def _certificate(facts: ClusterFacts) -> Iterator[Finding]:
    configurations, bundles = _configurations(facts), [_bundle(one) for one in _webhooks(facts)]
    for authorities in map(_authorities, dict.fromkeys(filter(None, bundles))):
        if not authorities:
            yield Finding(f"a caBundle of {WEBHOOK} contains no CA certificate", f"restart deploy/{WEBHOOK}")
            continue
        ends_at, subject = max(authorities)
        if ends_at - facts.now < _NEAR_S:
            yield Finding(f"the webhook's CA certificate ({subject}) {_ends(ends_at - facts.now)}", _RENEW)
            break
    if facts.is_injected:  # the serving one is cert-manager's
        return
    unreported = f"no webhook has reported it (annotation {ANNOTATION}): it has not registered itself yet"
    if not configurations:
        raise Unknown(unreported)
    for _thing, life in each(configurations, lambda one: read_annotation(one) or Unknown(unreported)):
        left_s = life.ends_at - facts.now
        if left_s < (life.ends_at - life.begins_at) / _NEAR_PART:
            yield Finding(f"a serving certificate of the webhook {_ends(left_s)}", _RENEW)
            return


def _bundle(webhook: Object) -> str:
    return inside(webhook, "clientConfig", "caBundle") or ""


def _authorities(bundle: str) -> list[tuple[float, str]]:
    """What OpenSSL takes for certificates of authorities: when each ends, and whose it is. bundle: base64 of PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=b64decode(bundle, validate=True).decode())
    except (ssl.SSLError, ValueError, binascii.Error):
        return []
    return [(ssl.cert_time_to_seconds(str(one["notAfter"])), _subject(one)) for one in context.get_ca_certs()]


def _subject(certificate: Mapping[str, Any]) -> str:
    pairs = [pair for row in certificate.get("subject", ()) for pair in row]
    return next((str(value) for key, value in pairs if key == "commonName"), str(pairs))


def _ends(left_s: float) -> str:
    return f"expires in {lasting(left_s)}" if left_s > 0 else "has expired"


@_check("webhook-unreachable", _BREAKS, "API servers reach the webhook", how="Endpoints of its Service, and events")
def _unreachable(facts: ClusterFacts) -> Iterator[Finding]:
    webhooks = _webhooks(facts)
    messages = dict.fromkeys(str(event.get("message")) for event in known(facts.warnings))
    refusals = [one for one in messages if "failed calling webhook" in one and "mpsd.io" in one]
    for refusal in map(quoted, refusals[:_MOST_REFUSALS]):
        what = f"an API server cannot call the webhook: {refusal}"
        yield Finding(what, "see its pods, its Service, and network policies")
    behind = [subset for one in known(facts.endpoints) for subset in one.get("subsets") or ()]
    if any(NOT_CALLED in (inside(one, "metadata", "annotations") or {}) for one in _configurations(facts)):
        number = next((port["port"] for subset in behind for port in subset.get("ports") or ()), 9443)
        what = f"API servers cannot call the webhook, so its failurePolicy is {FailurePolicy.IGNORE}"
        yield Finding(f"{what}: pods are admitted without review", _OPEN.format(port=number))
    if not any(one.get("addresses") for one in behind):
        fails = any(one.get("failurePolicy") == "Fail" for one in webhooks)
        then = "the pods that it reviews are refused" if fails else "pods are admitted without review"
        see = f"see kubectl -n {NAMESPACE} get pods,endpoints -l {NAME_LABEL}={WEBHOOK}"
        yield Finding(f"no ready pod is behind the Service {WEBHOOK}: {then}", see)


@_check("webhook-fail-open", _NOTE, "nothing is admitted without review", how=_CONFIGURATIONS)
def _fail_open(facts: ClusterFacts) -> Iterator[Finding]:
    """Where cert-manager serves the webhook may not set Fail."""
    ignoring = [one for one in _webhooks(facts) if one.get("failurePolicy") == FailurePolicy.IGNORE]
    if ignoring and facts.is_injected:
        what = f"failurePolicy is {FailurePolicy.IGNORE}: while no webhook answers, pods are admitted without review"
        see = f"once API servers call it, set webhook.failClosed, and {APPLY}"
        yield Finding(what, see)


@_check("policy-missing", _BREAKS, "the policy on what agents write is in force", how="ValidatingAdmissionPolicies")
def _policy(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.get("matchConditions") for one in _webhooks(facts)):
        raise NotApplicable("mpsd is installed as for Kubernetes before 1.30")
    untied, name = "an agent's token writes to every node", "mpsd-agent-writes"
    if facts.kubernetes < (1, 30):
        what = "mpsd is installed as for Kubernetes 1.30, from which on ValidatingAdmissionPolicies are served"
        yield Finding(f"{what}: {untied}", "render the chart for this version (docs/install.md)")
    elif name not in {one["metadata"]["name"] for one in known(facts.policies)}:
        yield Finding(f"ValidatingAdmissionPolicy {name} is missing: {untied}", APPLY)
