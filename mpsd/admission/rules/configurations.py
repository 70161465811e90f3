"""What a webhook configuration must say, and what to change where it does not.

One rule: `Fail` comes last, when the API server can reach us, verify us, and leave the namespaces alone that we
ourselves need to start. It is never taken back here, or else killing the webhook would open the door.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

EXEMPT = "mpsd.io/exempt"
_EXEMPTION = {"key": EXEMPT, "operator": "NotIn", "values": ["true"]}


class FailurePolicy(StrEnum):
    """What the API server does with an object while no webhook answers."""

    FAIL = "Fail"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class WebhookRegistration:
    """What a configuration must say. url: empty where the webhook is reached through its Service. authorities: base64
    of the PEM bundle that verifies it; None where somebody else writes that, such as cert-manager. failure_policy: what
    the operator wants in the end."""

    service: str
    namespace: str
    path: str
    url: str
    authorities: str | None
    failure_policy: FailurePolicy


@dataclass(frozen=True, slots=True)
class Repair:
    """webhooks: the whole list as it must be. changes: what differs from what was seen, in words."""

    webhooks: list[Any]
    changes: tuple[str, ...]


def repair(configuration: Mapping[str, Any], wanted: WebhookRegistration, *, may_fail: bool) -> Repair | None:
    """The change that a configuration needs, None where it needs none. may_fail: whether `Fail` may be set now. Rules,
    timeouts and match conditions are the manifests' business and stay as they are."""
    repaired, changes = [], []
    for webhook in configuration.get("webhooks") or []:
        differing = _differing(webhook, wanted, may_fail=may_fail) if isinstance(webhook, dict) else {}
        changes += [f"{webhook.get('name', '')}: {field}" for field in differing]
        repaired.append({**webhook, **differing} if differing else webhook)
    return Repair(repaired, tuple(changes)) if changes else None


def is_registered(configuration: Mapping[str, Any], wanted: WebhookRegistration) -> bool:
    """Whether the API server asks us, by this configuration, whatever it does when we do not answer."""
    webhooks = _webhooks(configuration)
    return bool(webhooks) and not any(_differing(webhook, wanted, may_fail=False) for webhook in webhooks)


def authorities_named(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The caBundle of each webhook, in base64, empty where there is none."""
    clients = (webhook.get("clientConfig") or {} for webhook in _webhooks(configuration))
    return tuple(str(client.get("caBundle") or "") for client in clients)


def _webhooks(configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [webhook for webhook in configuration.get("webhooks") or [] if isinstance(webhook, dict)]


def exemption(namespace: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch that exempts a namespace; None where it is exempt."""
    labels = (namespace.get("metadata") or {}).get("labels") or {}
    return None if labels.get(EXEMPT) == "true" else {"metadata": {"labels": {EXEMPT: "true"}}}


def _differing(webhook: Mapping[str, Any], wanted: WebhookRegistration, *, may_fail: bool) -> dict[str, Any]:
    """The fields of one webhook that must change, with their new values."""
    differing: dict[str, Any] = {}
    client = webhook.get("clientConfig") or {}
    if (right := _client_config(client, wanted)) != client:
        differing["clientConfig"] = right
    selector = webhook.get("namespaceSelector") or {}
    expressions = selector.get("matchExpressions") or []
    if not any(map(_exempts, expressions)):
        differing["namespaceSelector"] = {**selector, "matchExpressions": [*expressions, _EXEMPTION]}
    policy = wanted.failure_policy
    if webhook.get("failurePolicy") != policy and (policy is FailurePolicy.IGNORE or (may_fail and not differing)):
        differing["failurePolicy"] = policy.value
    return differing


def _client_config(seen: Mapping[str, Any], wanted: WebhookRegistration) -> dict[str, Any]:
    if wanted.url:
        right: dict[str, Any] = {"url": wanted.url.rstrip("/") + wanted.path}
    else:
        service = {"name": wanted.service, "namespace": wanted.namespace, "path": wanted.path}
        right = {"service": {"port": 443, **(seen.get("service") or {}), **service}}
    authorities = seen.get("caBundle") if wanted.authorities is None else wanted.authorities
    return right | ({"caBundle": authorities} if authorities else {})


def _exempts(expression: Mapping[str, Any]) -> bool:
    """Both ways of writing it; another key's expression, or `In`, does not exempt."""
    operator, values = expression.get("operator"), expression.get("values") or []
    return expression.get("key") == EXEMPT and (
        operator == "DoesNotExist" or (operator == "NotIn" and "true" in values)
    )
