"""What each part of mpsd must be allowed to do, for who looks whether it is.

One rule: what the manifests give (rights.yaml of each part) is all here, and nothing else; tests/manifests holds one
against the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mpsd.model.installed import AGENT, NAMESPACE, SCHEDULER, WEBHOOK


@dataclass(frozen=True, slots=True)
class Right:
    """component: also the service account's name. resource: with its subresource behind a slash. names: to which it is
    bounded; empty for all. namespace: empty for the whole cluster.
    """

    component: str
    verb: str
    group: str
    resource: str
    names: tuple[str, ...] = ()
    namespace: str = ""

    def __str__(self) -> str:
        full = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {full}{' ' + self.names[0] if self.names else ''}{where}"

    @property
    def review(self) -> dict[str, Any]:
        """A SubjectAccessReview."""
        resource, _slash, subresource = self.resource.partition("/")
        wanted = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource}
        wanted |= {"name": self.names[0]} if self.names else {}
        wanted |= {"namespace": self.namespace} if self.namespace else {}
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": f"system:serviceaccount:{NAMESPACE}:{self.component}",
                "groups": groups,
                "resourceAttributes": wanted,
            },
        }


_HOOKS = "admissionregistration.k8s.io"
_REVIEWS = (
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
)


def _rights(
    component: str, *rows: tuple[str, str, str], names: tuple[str, ...] = (), namespace: str = ""
) -> Iterator[Right]:
    """rows: group, resource, verbs."""
    for group, resource, verbs in rows:
        for verb in verbs.split():
            yield Right(component, verb, group, resource, names, namespace)


RIGHTS: tuple[Right, ...] = (
    *_rights(
        AGENT,
        ("", "pods", "list watch patch"),
        ("", "pods/eviction", "create"),
        ("", "nodes", "get"),
        ("", "nodes/status", "patch"),
        ("", "events", "create patch"),
        ("mpsd.io", "mpsnodes", "get list watch create patch"),
        ("mpsd.io", "mpsnodes/status", "patch"),
        *_REVIEWS,
    ),
    *_rights(
        WEBHOOK,
        (_HOOKS, "validatingwebhookconfigurations", "get patch"),
        (_HOOKS, "mutatingwebhookconfigurations", "get patch"),
        names=("mpsd-webhook",),
    ),
    *_rights(WEBHOOK, ("", "namespaces", "patch"), names=("kube-system", NAMESPACE)),
    *_rights(WEBHOOK, ("", "namespaces", "get"), ("", "configmaps", "get")),
    *_rights(WEBHOOK, ("", "secrets", "get update"), names=("mpsd-webhook-certificates",), namespace=NAMESPACE),
    *_rights(WEBHOOK, ("", "secrets", "create"), namespace=NAMESPACE),
    *_rights(
        SCHEDULER,
        ("mpsd.io", "mpsnodes", "get list watch patch"),
        ("", "pods", "get list watch"),
        ("", "nodes", "get list watch"),
        ("", "pods/binding", "create"),
        *_REVIEWS,
    ),
)
