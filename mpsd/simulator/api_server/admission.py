"""Asks the admission webhooks that are registered, over TLS, as an API server does.

A webhook that cannot be asked counts as its failurePolicy says, and only webhooks with a url can
be: nothing routes services here.
"""

import asyncio
import base64
import json
import secrets
import ssl
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from mpsd.simulator.api_server.bodies import edited
from mpsd.simulator.api_server.kinds import (
    MUTATING,
    NAMESPACES,
    VALIDATING,
    ApiRefusal,
    Kinds,
    Object,
    ObjectKind,
    bad_request,
    labels_of,
    matches,
    not_found,
)
from mpsd.simulator.api_server.objects import Objects

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
        """What may be stored. ApiRefusal with the message of the webhook that denied it."""
        admitted = Admitted(attempt.thing)
        for webhook in self._asked(MUTATING, attempt):
            response = await self._ask(webhook, attempt, admitted)
            if response.get("patch"):
                admitted.thing = edited(
                    admitted.thing, json.loads(base64.b64decode(response["patch"]))
                )
        validating = [
            self._ask(webhook, attempt, admitted) for webhook in self._asked(VALIDATING, attempt)
        ]
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
        named = (
            attempt.thing["metadata"]["name"] if attempt.kind is NAMESPACES else attempt.namespace
        )
        if not named:
            return True
        namespace = (
            self._objects.store.get(self._objects.key(NAMESPACES, "", named)) or attempt.thing
        )
        return matches(webhook.get("namespaceSelector") or {}, labels_of(namespace))

    async def _ask(
        self, webhook: Object, attempt: Attempt, admitted: Admitted
    ) -> Mapping[str, Any]:
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
        raise ApiRefusal(
            int(status.get("code") or 400), str(status.get("reason") or "Forbidden"), message
        )

    async def _exchange(self, webhook: Object, review: Object) -> Mapping[str, Any]:
        client = webhook["clientConfig"]
        context = self._context(client.get("caBundle") or "")
        timeout = aiohttp.ClientTimeout(total=float(webhook.get("timeoutSeconds") or _LONGEST_S))
        if self._session is None:
            self._session = aiohttp.ClientSession()
        url = client.get("url") or ""
        if not url:
            raise ValueError(
                "services are not routed in the simulation; register the webhook by url"
            )
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
    resource = (
        f"{attempt.kind.plural}/{attempt.subresource}"
        if attempt.subresource
        else attempt.kind.plural
    )
    scope = rule.get("scope", "*")
    return (
        _names(rule["operations"], attempt.operation)
        and _names(rule["apiGroups"], attempt.kind.group)
        and _names(rule["apiVersions"], attempt.version)
        and (
            resource in rule["resources"] or ("*" in rule["resources"] and not attempt.subresource)
        )
        and (scope == "*" or (scope == "Namespaced") is attempt.kind.namespaced)
    )


def _names(listed: list[str], one: str) -> bool:
    return one in listed or "*" in listed


def _review(attempt: Attempt, thing: Object) -> Object:
    kind = {"group": attempt.kind.group, "version": attempt.version, "kind": attempt.kind.name}
    resource = {
        "group": attempt.kind.group,
        "version": attempt.version,
        "resource": attempt.kind.plural,
    }
    request = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "requestKind": kind,
        "resource": resource,
        "requestResource": resource,
        "name": thing["metadata"].get("name", ""),
        "operation": attempt.operation,
        "userInfo": {
            "username": attempt.user,
            "groups": ["system:masters", "system:authenticated"],
        },
        "object": thing,
        "oldObject": attempt.before,
        "dryRun": attempt.dry_run,
        "options": {
            "kind": f"{attempt.operation.capitalize()}Options",
            "apiVersion": "meta.k8s.io/v1",
        },
    }
    request |= {"namespace": attempt.namespace} if attempt.namespace else {}
    request |= {"subResource": attempt.subresource} if attempt.subresource else {}
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


# -- TokenRequest, TokenReview and SubjectAccessReview
# Tokens are those that it gave out for service accounts, and rights are what the ClusterRoles and
# Roles that it has say. A token opens no other door here: all that is the kubeconfig's.

_WHOSE = "TokenReview"
REVIEWS: Mapping[str, str] = {
    "/apis/authentication.k8s.io/v1/tokenreviews": _WHOSE,
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": "SubjectAccessReview",
}
_RBAC = "rbac.authorization.k8s.io"
_EVERYBODY = "system:authenticated"


@dataclass(frozen=True, slots=True)
class _Account:
    """A service account, and the uid that it had when the token was given."""

    namespace: str
    name: str
    uid: str

    @property
    def user(self) -> Object:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", _EVERYBODY]
        return {
            "username": f"system:serviceaccount:{self.namespace}:{self.name}",
            "uid": self.uid,
            "groups": groups,
        }


class Reviews:
    def __init__(self, objects: Objects, kinds: Kinds) -> None:
        self._objects = objects
        self._kinds = kinds
        self._accounts: dict[str, _Account] = {}  # by token

    def give_token(self, namespace: str, name: str, body: Object) -> Object:
        """Answers a TokenRequest. It is in force for as long as its service account is there."""
        found = self._account(namespace, name)
        if found is None:
            raise not_found("serviceaccounts", name)
        token = secrets.token_urlsafe(32)
        self._accounts[token] = found
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": body.get("spec") or {},
            "status": {"token": token},
        }

    def answer(self, path: str, body: Object) -> Object:
        """path: one of REVIEWS."""
        kind = REVIEWS[path]
        if body.get("kind") != kind or not isinstance(body.get("spec"), dict):
            raise bad_request(f"the body is no {kind} with a spec")
        spec = body["spec"]
        return {
            **body,
            "status": self._whose(spec.get("token", "")) if kind == _WHOSE else self._access(spec),
        }

    def _whose(self, token: str) -> Object:
        account = self._accounts.get(token)
        if account is None or self._account(account.namespace, account.name) != account:
            return {"user": {}, "error": "[invalid bearer token, unknown]"}
        return {
            "authenticated": True,
            "user": account.user,
            "audiences": ["https://kubernetes.default.svc"],
        }

    def _account(self, namespace: str, name: str) -> _Account | None:
        kind = self._kinds.find("", "v1", "serviceaccounts")
        assert kind is not None
        try:
            thing = self._objects.found(kind, namespace, name)
        except ApiRefusal:
            return None
        return _Account(namespace, name, thing["metadata"]["uid"])

    def _access(self, spec: Mapping[str, Any]) -> Object:
        path = spec.get("nonResourceAttributes")
        thing = spec.get("resourceAttributes")
        if bool(path) is bool(thing):
            raise bad_request(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            )
        user = str(spec.get("user", ""))
        groups = set(spec.get("groups") or ())
        namespace = str(thing.get("namespace", "")) if thing else ""
        for role in self._roles_of(user, groups, namespace):
            rules = role.get("rules") or ()
            if any(
                _allows(rule, path["verb"], path["path"]) if path else _allows_of(rule, thing)
                for rule in rules
            ):
                return {"allowed": True, "reason": f"RBAC: allowed by {role['metadata']['name']}"}
        return {"allowed": False}

    def _roles_of(self, user: str, groups: set[str], namespace: str) -> Iterator[Object]:
        """namespace: empty for the whole cluster, where only ClusterRoleBindings count."""
        places = [("clusterrole", "")] + ([("role", namespace)] if namespace else [])
        for stem, place in places:
            bindings, roles = (
                self._kinds.find(_RBAC, "v1", f"{stem}{end}") for end in ("bindings", "s")
            )
            assert bindings is not None
            assert roles is not None
            by_name = {
                thing["metadata"]["name"]: thing
                for _key, thing in self._objects.store.all(roles, place)
            }
            for _key, binding in self._objects.store.all(bindings, place):
                role = by_name.get(binding["roleRef"]["name"])
                if role and any(
                    _is(subject, user, groups) for subject in binding.get("subjects") or ()
                ):
                    yield role


def _is(subject: Mapping[str, Any], user: str, groups: set[str]) -> bool:
    match subject.get("kind"):
        case "ServiceAccount":
            return user == f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
        case "User":
            return user == str(subject["name"])
        case "Group":
            return str(subject["name"]) in groups
        case _:
            return False


def _allows(rule: Mapping[str, Any], verb: str, path: str) -> bool:
    """A path of a rule may end in `*`."""
    if not {verb, "*"} & set(rule.get("verbs") or ()):
        return False
    paths = rule.get("nonResourceURLs") or ()
    return any(path == one or (one.endswith("*") and path.startswith(one[:-1])) for one in paths)


def _allows_of(rule: Mapping[str, Any], wanted: Any) -> bool:
    """A rule that names objects allows nothing that is asked without a name."""
    below = wanted.get("subresource")
    resource = f"{wanted['resource']}/{below}" if below else wanted["resource"]
    parts = (
        ("verbs", wanted["verb"]),
        ("apiGroups", wanted.get("group", "")),
        ("resources", resource),
    )
    names = rule.get("resourceNames")
    is_named = not names or wanted.get("name") in names
    return is_named and all({word, "*"} & set(rule.get(key) or ()) for key, word in parts)
