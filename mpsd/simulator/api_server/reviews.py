"""Whose token it is and what its owner may get: TokenRequest, TokenReview and SubjectAccessReview.

One rule: tokens are those that it gave out for service accounts, and rights are what the ClusterRoles and Roles that it
has say. A token opens no other door here: all that is the kubeconfig's.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpsd.simulator.api_server.kinds import Kinds, Object
from mpsd.simulator.api_server.objects import Objects
from mpsd.simulator.api_server.refusals import ApiRefusal, bad_request, not_found

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
        return {"username": f"system:serviceaccount:{self.namespace}:{self.name}", "uid": self.uid, "groups": groups}


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
        return {**body, "status": self._whose(spec.get("token", "")) if kind == _WHOSE else self._access(spec)}

    def _whose(self, token: str) -> Object:
        account = self._accounts.get(token)
        if account is None or self._account(account.namespace, account.name) != account:
            return {"user": {}, "error": "[invalid bearer token, unknown]"}
        return {"authenticated": True, "user": account.user, "audiences": ["https://kubernetes.default.svc"]}

    def _account(self, namespace: str, name: str) -> _Account | None:
        kind = self._kinds.find("", "v1", "serviceaccounts")
        assert kind is not None
        try:
            thing = self._objects.found(kind, namespace, name)
        except ApiRefusal:
            return None
        return _Account(namespace, name, thing["metadata"]["uid"])

    def _access(self, spec: Mapping[str, Any]) -> Object:
        path, thing = spec.get("nonResourceAttributes"), spec.get("resourceAttributes")
        if bool(path) is bool(thing):
            raise bad_request("exactly one of nonResourceAttributes or resourceAttributes must be specified")
        user, groups = str(spec.get("user", "")), set(spec.get("groups") or ())
        namespace = str(thing.get("namespace", "")) if thing else ""
        for role in self._roles_of(user, groups, namespace):
            rules = role.get("rules") or ()
            if any(_allows(rule, path["verb"], path["path"]) if path else _allows_of(rule, thing) for rule in rules):
                return {"allowed": True, "reason": f"RBAC: allowed by {role['metadata']['name']}"}
        return {"allowed": False}

    def _roles_of(self, user: str, groups: set[str], namespace: str) -> Iterator[Object]:
        """namespace: empty for the whole cluster, where only ClusterRoleBindings count."""
        places = [("clusterrole", "")] + ([("role", namespace)] if namespace else [])
        for stem, place in places:
            bindings, roles = (self._kinds.find(_RBAC, "v1", f"{stem}{end}") for end in ("bindings", "s"))
            assert bindings is not None
            assert roles is not None
            by_name = {thing["metadata"]["name"]: thing for _key, thing in self._objects.store.all(roles, place)}
            for _key, binding in self._objects.store.all(bindings, place):
                role = by_name.get(binding["roleRef"]["name"])
                if role and any(_is(subject, user, groups) for subject in binding.get("subjects") or ()):
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
    parts = (("verbs", wanted["verb"]), ("apiGroups", wanted.get("group", "")), ("resources", resource))
    names = rule.get("resourceNames")
    is_named = not names or wanted.get("name") in names
    return is_named and all({word, "*"} & set(rule.get(key) or ()) for key, word in parts)
