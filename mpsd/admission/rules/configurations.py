"""What a webhook configuration must say, and what to change where it does not. `Fail` comes last,
when the API server has called us, and is taken back only where it cannot call a webhook that
serves: killing the webhook opens no door."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

EXEMPT = "mpsd.io/exempt"
_EXEMPTION = {"key": EXEMPT, "operator": "NotIn", "values": ["true"]}


class FailurePolicy(StrEnum):
    """While no webhook answers."""

    FAIL = "Fail"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class WebhookRegistration:
    """What a configuration must say. url: empty for the Service. authorities: base64 of the PEM
    bundle that verifies it; None where somebody else writes that, such as cert-manager.
    failure_policy: in the end."""

    service: str
    namespace: str
    path: str
    url: str
    authorities: str | None
    failure_policy: FailurePolicy


@dataclass(frozen=True, slots=True)
class Repair:
    """webhooks: the whole list. changes: in words."""

    webhooks: list[Any]
    changes: tuple[str, ...]


# -- whether the API server calls the webhook
# Every replica asks the API server now and then, in a dry run, to create an object that the webhook
# refuses with the word that is written on it. Whichever replica answers, only one that was called
# has that word in its answer.

PROBE = "mpsd.io/probe"  # the annotation with that word
# of the kinds that are reviewed the one that nothing in a cluster acts on
PROBE_KIND = "PodTemplate"
PROBE_NAMESPACE = "default"  # which every cluster has, and which is no namespace that mpsd exempts
# an annotation of the configurations, while API servers cannot call the webhook
NOT_CALLED = "mpsd.io/not-called"
_FAILED_CALL = re.compile(r'failed calling webhook "[^"]*\bmpsd\.io"')


class Called(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def probe(word: str) -> dict[str, Any]:
    """It requests a resource, since match conditions may leave out what requests none."""
    container = {"name": "probe", "image": "none", "resources": {"limits": {PROBE: "1"}}}
    metadata = {"name": "mpsd-probe", "namespace": PROBE_NAMESPACE, "annotations": {PROBE: word}}
    return {
        "apiVersion": "v1",
        "kind": PROBE_KIND,
        "metadata": metadata,
        "template": {"spec": {"containers": [container]}},
    }


def called(refusal: str, word: str, *, fails: bool) -> Called:
    """What the API server's answer to a probe proves. refusal: empty where the object would have
    been created. fails: whether the configuration says `Fail`; then an API server that creates the
    object has not tried to call, such as in an exempt namespace."""
    if word in refusal:
        return Called.YES
    if not refusal:
        return Called.UNKNOWN if fails else Called.NO
    return Called.NO if _FAILED_CALL.search(refusal) else Called.UNKNOWN


def why_uncalled(found: Called, refusal: str, place: str) -> str:
    """Empty where it was called. place: where API servers must reach it."""
    if found is Called.YES:
        return ""
    said = "whether API servers call is not known"
    if found is Called.NO:
        said = (
            f"API servers cannot call the webhook: let the control plane reach {place}, and leave"
            f" {PROBE_NAMESPACE} without {EXEMPT}"
        )
    return f"{said}: {refusal}" if refusal else said


@dataclass(frozen=True, slots=True)
class Calls:
    """The last probe that proved anything, and since when (of a monotonic clock) they came to
    nothing; None where the last one succeeded."""

    last: Called = Called.UNKNOWN
    failing_since: float | None = None

    def after(self, found: Called, now: float) -> "Calls":
        if found is Called.UNKNOWN:
            return self
        if found is Called.YES:
            return Calls(found)
        return Calls(found, now if self.failing_since is None else self.failing_since)

    def must_ignore(self, now: float, patience_s: float) -> bool:
        return self.failing_since is not None and now - self.failing_since >= patience_s


def repair(
    configuration: Mapping[str, Any],
    wanted: WebhookRegistration,
    *,
    may_fail: bool,
    must_ignore: bool = False,
) -> Repair | None:
    """The change that a configuration needs, None where it needs none. may_fail: whether `Fail` may
    be set now. must_ignore: whether it must be taken back. Rules, timeouts and match conditions
    stay as the manifests have them."""
    if must_ignore:
        wanted = replace(wanted, failure_policy=FailurePolicy.IGNORE)
    repaired = []
    changes = []
    for webhook in configuration.get("webhooks") or []:
        if isinstance(webhook, dict):
            differing = _differing(webhook, wanted, may_fail=may_fail)
            changes += [f"{webhook.get('name', '')}: {field}" for field in differing]
            webhook = webhook | differing
        repaired.append(webhook)
    return Repair(repaired, tuple(changes)) if changes else None


def is_registered(configuration: Mapping[str, Any], wanted: WebhookRegistration) -> bool:
    """Whether the API server asks us, whatever it does when we do not answer."""
    webhooks = _webhooks(configuration)
    return bool(webhooks) and not any(
        _differing(webhook, wanted, may_fail=False) for webhook in webhooks
    )


def fails(configuration: Mapping[str, Any]) -> bool:
    """Whether what a webhook is not asked about is refused."""
    return any(
        webhook.get("failurePolicy", "Fail") == FailurePolicy.FAIL
        for webhook in _webhooks(configuration)
    )


def authorities_named(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The caBundle of each webhook, or empty."""
    clients = (webhook.get("clientConfig") or {} for webhook in _webhooks(configuration))
    return tuple(str(client.get("caBundle") or "") for client in clients)


def _webhooks(configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [webhook for webhook in configuration.get("webhooks") or [] if isinstance(webhook, dict)]


def exemption(namespace: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where it is exempt."""
    labels = (namespace.get("metadata") or {}).get("labels") or {}
    if labels.get(EXEMPT) == "true":
        return None
    return {"metadata": {"labels": {EXEMPT: "true"}}}


def _differing(
    webhook: Mapping[str, Any], wanted: WebhookRegistration, *, may_fail: bool
) -> dict[str, Any]:
    differing: dict[str, Any] = {}
    client = webhook.get("clientConfig") or {}
    if (right := _client_config(client, wanted)) != client:
        differing["clientConfig"] = right
    selector = webhook.get("namespaceSelector") or {}
    expressions = selector.get("matchExpressions") or []
    if not any(map(_exempts, expressions)):
        differing["namespaceSelector"] = selector | {"matchExpressions": [*expressions, _EXEMPTION]}
    policy = wanted.failure_policy
    may_set = policy is FailurePolicy.IGNORE or (may_fail and not differing)
    if may_set and webhook.get("failurePolicy") != policy:
        differing["failurePolicy"] = policy.value
    return differing


def _client_config(seen: Mapping[str, Any], wanted: WebhookRegistration) -> dict[str, Any]:
    if wanted.url:
        right: dict[str, Any] = {"url": wanted.url.rstrip("/") + wanted.path}
    else:
        service = {"name": wanted.service, "namespace": wanted.namespace, "path": wanted.path}
        right = {"service": {"port": 443, **(seen.get("service") or {}), **service}}
    authorities = seen.get("caBundle") if wanted.authorities is None else wanted.authorities
    if authorities:
        right["caBundle"] = authorities
    return right


def _exempts(expression: Mapping[str, Any]) -> bool:
    """Both ways of writing it."""
    operator = expression.get("operator")
    values = expression.get("values") or []
    return expression.get("key") == EXEMPT and (
        operator == "DoesNotExist" or (operator == "NotIn" and "true" in values)
    )
