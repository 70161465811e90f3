"""Asks the admission webhooks that are registered, over TLS, as an API server does.

One rule: a webhook that cannot be asked counts as its failurePolicy says, and only webhooks with a url can be: nothing
routes services here.
"""

import asyncio
import base64
import json
import ssl
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from mpsd.simulator.api_server.kinds import MUTATING, NAMESPACES, VALIDATING, Object, ObjectKind
from mpsd.simulator.api_server.objects import Objects
from mpsd.simulator.api_server.patches import edited
from mpsd.simulator.api_server.refusals import ApiRefusal
from mpsd.simulator.api_server.selectors import labels_of, matches

_LONGEST_S = 10.0  # of a webhook that names no time-out


@dataclass(frozen=True, slots=True)
class Attempt:
    """What somebody tries to do. thing: as it would be stored. before: None for what is created."""

    operation: str
    kind: ObjectKind
    version: str
    thing: Object
    before: Object | None
    user: str
    subresource: str = ""
    dry_run: bool = False

    @property
    def namespace(self) -> str:
        return str(self.thing["metadata"].get("namespace", ""))


@dataclass(slots=True)
class Admitted:
    thing: Object
    warnings: list[str] = field(default_factory=list)


class WebhookAdmission:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._session: aiohttp.ClientSession | None = None  # None until a webhook is asked
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def admit(self, attempt: Attempt) -> Admitted:
        """What may be stored. Refused with the words of the webhook that says no."""
        admitted = Admitted(attempt.thing)
        for webhook in self._asked(MUTATING, attempt):
            response = await self._ask(webhook, attempt, admitted)
            if response.get("patch"):
                admitted.thing = edited(admitted.thing, json.loads(base64.b64decode(response["patch"])))
        validating = [self._ask(webhook, attempt, admitted) for webhook in self._asked(VALIDATING, attempt)]
        for outcome in await asyncio.gather(*validating, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return admitted

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    def _asked(self, kind: ObjectKind, attempt: Attempt) -> Iterator[Object]:
        for _key, configuration in self._objects.store.all(kind):
            for webhook in configuration.get("webhooks") or []:
                if self._concerns(webhook, attempt):
                    yield webhook

    def _concerns(self, webhook: Object, attempt: Attempt) -> bool:
        if not any(_is_ruled(rule, attempt) for rule in webhook.get("rules") or []):
            return False
        if not matches(webhook.get("objectSelector") or {}, labels_of(attempt.thing)):
            return False
        named = attempt.thing["metadata"]["name"] if attempt.kind is NAMESPACES else attempt.namespace
        if not named:
            return True
        namespace = self._objects.store.get(self._objects.key(NAMESPACES, "", named)) or attempt.thing
        return matches(webhook.get("namespaceSelector") or {}, labels_of(namespace))

    async def _ask(self, webhook: Object, attempt: Attempt, admitted: Admitted) -> Mapping[str, Any]:
        """The response of one webhook that lets it pass."""
        try:
            response = await self._exchange(webhook, _review(attempt, admitted.thing))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return {}
            why = "context deadline exceeded" if isinstance(error, TimeoutError) else str(error)
            message = f'Internal error occurred: failed calling webhook "{webhook["name"]}": {why}'
            raise ApiRefusal(500, "InternalError", message) from None
        admitted.warnings += response.get("warnings") or []
        if response.get("allowed"):
            return response
        status = response.get("status") or {}
        said = f": {status['message']}" if status.get("message") else " without explanation"
        message = f'admission webhook "{webhook["name"]}" denied the request{said}'
        raise ApiRefusal(int(status.get("code") or 400), str(status.get("reason") or "Forbidden"), message)

    async def _exchange(self, webhook: Object, review: Object) -> Mapping[str, Any]:
        client = webhook["clientConfig"]
        context = self._context(client.get("caBundle") or "")
        timeout = aiohttp.ClientTimeout(total=float(webhook.get("timeoutSeconds") or _LONGEST_S))
        if self._session is None:
            self._session = aiohttp.ClientSession()
        url = client.get("url") or ""
        if not url:
            raise ValueError("services are not routed in the simulation; register the webhook by url")
        async with self._session.post(url, json=review, ssl=context, timeout=timeout) as answer:
            if answer.status != 200:
                raise ValueError(f"the webhook answered {answer.status}")
            response: Mapping[str, Any] = (await answer.json())["response"]
        if response["uid"] != review["request"]["uid"]:
            raise ValueError("the webhook answered another request")
        return response

    def _context(self, bundle: str) -> ssl.SSLContext:
        if bundle not in self._contexts:
            authorities = base64.b64decode(bundle).decode()
            self._contexts = {bundle: ssl.create_default_context(cadata=authorities or None)}
        return self._contexts[bundle]


def _is_ruled(rule: Object, attempt: Attempt) -> bool:
    resource = f"{attempt.kind.plural}/{attempt.subresource}" if attempt.subresource else attempt.kind.plural
    scope = rule.get("scope", "*")
    return (
        _names(rule["operations"], attempt.operation)
        and _names(rule["apiGroups"], attempt.kind.group)
        and _names(rule["apiVersions"], attempt.version)
        and (resource in rule["resources"] or ("*" in rule["resources"] and not attempt.subresource))
        and (scope == "*" or (scope == "Namespaced") is attempt.kind.namespaced)
    )


def _names(listed: list[str], one: str) -> bool:
    return one in listed or "*" in listed


def _review(attempt: Attempt, thing: Object) -> Object:
    kind = {"group": attempt.kind.group, "version": attempt.version, "kind": attempt.kind.name}
    resource = {"group": attempt.kind.group, "version": attempt.version, "resource": attempt.kind.plural}
    request = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "requestKind": kind,
        "resource": resource,
        "requestResource": resource,
        "name": thing["metadata"].get("name", ""),
        "operation": attempt.operation,
        "userInfo": {"username": attempt.user, "groups": ["system:masters", "system:authenticated"]},
        "object": thing,
        "oldObject": attempt.before,
        "dryRun": attempt.dry_run,
        "options": {"kind": f"{attempt.operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    request |= {"namespace": attempt.namespace} if attempt.namespace else {}
    request |= {"subResource": attempt.subresource} if attempt.subresource else {}
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
