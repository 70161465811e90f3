"""Who may read what mpsd serves on a port: what the API server is asked, and what its answers mean.

Whoever is not known to have the right is refused.
https://kubernetes.io/docs/reference/access-authn-authz/webhook/, authorization/
"""

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpsd.model.fields import as_mapping

KEPT_S = 60.0  # of an answer, and of a right that was taken away
_MOST_KEPT = 1024
_HOST = re.compile(r"(?:(?P<plain>[^\[\]:]+)|\[(?P<v6>[^\[\]]+)\])(?::[0-9]+)?")


@dataclass(frozen=True, slots=True)
class ReaderVerdict:
    status: int  # of HTTP; 200 for who may read
    reason: str = ""  # why not, one sentence without a full stop
    user: str = ""  # who may

    @property
    def may_read(self) -> bool:
        return self.status == 200


NO_TOKEN = ReaderVerdict(
    401, "a token is required; send one of Kubernetes: Authorization: Bearer TOKEN"
)
NOT_KNOWN = ReaderVerdict(401, "the API server does not accept this token; send a valid one")
TOO_MANY = ReaderVerdict(503, "too many tokens are being reviewed; try again")
_OTHER_HOST = "this address answers to its IP address and to localhost alone"
OTHER_HOST = ReaderVerdict(403, f"{_OTHER_HOST}, so that no web page reads it by another name")


def away(reason: str) -> ReaderVerdict:
    return ReaderVerdict(503, f"the API server cannot be asked who may read this: {reason}")


@dataclass(frozen=True, slots=True)
class User:
    """The owner of a token, in the API server's words. extra: what authenticators add."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, path: str, *, allowed: bool) -> ReaderVerdict:
        if allowed:
            return ReaderVerdict(200, user=self.name)
        remedy = 'bind it to the ClusterRole mpsd-reader, or to another with "get" on the'
        why = f"{self.name} may not get {path}; {remedy} nonResourceURL {path}"
        return ReaderVerdict(403, why)


def bearer_token(authorization: str) -> str:
    """The token in a header `Authorization`; empty where there is none."""
    scheme, _space, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_own_host(host: str) -> bool:
    """Whether `Host` names this machine by an IP address or as localhost: any other name may be one
    that a foreign web page has let point here (DNS rebinding)."""
    found = _HOST.fullmatch(host)
    if not found:
        return False
    if found["plain"] and found["plain"].lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(found["plain"] or found["v6"])
    except ValueError:
        return False
    return (address.version == 6) == bool(found["v6"])


def token_review(token: str) -> dict[str, Any]:
    return _review("authentication.k8s.io/v1", "TokenReview", {"token": token})


def reviewed_user(answer: Mapping[str, Any]) -> User | None:
    """None where it is nobody's, or the answer does not say."""
    status = as_mapping(answer.get("status"))
    user = as_mapping(status.get("user"))
    name = user.get("username")
    if status.get("authenticated") is not True or not isinstance(name, str) or not name:
        return None
    groups = user.get("groups")
    if not isinstance(groups, list):
        groups = []
    uid = str(user.get("uid") or "")
    return User(name, uid, tuple(map(str, groups)), as_mapping(user.get("extra")))


def access_review(user: User, path: str) -> dict[str, Any]:
    spec = {
        "user": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": dict(user.extra),
        "nonResourceAttributes": {"path": path, "verb": "get"},
    }
    return _review("authorization.k8s.io/v1", "SubjectAccessReview", spec)


def _review(api: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {}, "spec": spec}


def is_allowed(answer: Mapping[str, Any]) -> bool:
    status = as_mapping(answer.get("status"))
    return status.get("allowed") is True and status.get("denied") is not True


class Verdicts:
    """The last answers, by the hash of a token and the path; a 503 is none.

    Who may not read is kept apart, so that made-up tokens push no reader's out.
    """

    def __init__(self) -> None:
        # by whether he may read: when it was asked, the oldest first
        self._kept: dict[bool, dict[tuple[bytes, str], tuple[float, ReaderVerdict]]]
        self._kept = {True: {}, False: {}}

    def known(self, token: str, path: str, now: float) -> ReaderVerdict | None:
        """None where it must be asked. now: monotonic."""
        key = _key(token, path)
        for kept in self._kept.values():
            if (known := kept.get(key)) and now - known[0] < KEPT_S:
                return known[1]
        return None

    def keep(self, token: str, path: str, verdict: ReaderVerdict, now: float) -> None:
        """now: when it was asked."""
        if verdict.status == 503:
            return
        key = _key(token, path)
        kept = self._kept[verdict.may_read]
        for one in self._kept.values():
            one.pop(key, None)
        kept[key] = (now, verdict)
        while len(kept) > _MOST_KEPT:
            del kept[next(iter(kept))]


def _key(token: str, path: str) -> tuple[bytes, str]:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), path
