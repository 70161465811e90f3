"""The rights of the parts of mpsd in a cluster: those of the manifests (rights.yaml of each part of
the chart), no more and no less; tests/manifests compares the two.
"""

from dataclasses import dataclass
from typing import Any

from mpsd.model.names import AGENT, NAMESPACE, SCHEDULER, WEBHOOK


@dataclass(frozen=True, slots=True)
class Right:
    """component: also the service account's name. resource: with its subresource behind a slash.
    names: to which it is bounded; empty for all. namespace: empty for the whole cluster.
    """

    component: str
    verb: str
    group: str
    resource: str
    names: tuple[str, ...]
    namespace: str

    @property
    def is_for_registration(self) -> bool:
        """The webhook does without it where cert-manager serves."""
        return self.resource in ("secrets", "podtemplates") or (self.group, self.verb) == (
            _HOOKS,
            "patch",
        )

    @property
    def is_for_claims(self) -> bool:
        """Everybody does without it where no agent serves resource claims."""
        return self.group == _CLAIMS

    def __str__(self) -> str:
        full = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {full}{' ' + self.names[0] if self.names else ''}{where}"

    @property
    def review(self) -> dict[str, Any]:
        resource, _slash, subresource = self.resource.partition("/")
        wanted = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "name": self.names[0] if self.names else "",
            "namespace": self.namespace,
        }
        accounts = "system:serviceaccounts"
        spec = {
            "user": f"system:serviceaccount:{NAMESPACE}:{self.component}",
            "groups": [accounts, f"{accounts}:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": wanted,
        }
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        return {**kind, "metadata": {}, "spec": spec}


_HOOKS = "admissionregistration.k8s.io"
_NAMES = ("mpsd-webhook",)
_CLAIMS = "resource.k8s.io"
# Service account, group, resource, verbs, names, namespace.
_ROWS: tuple[tuple[str, str, str, str, tuple[str, ...], str], ...] = (
    (AGENT, "", "pods", "list watch", (), ""),
    (AGENT, "", "pods/status", "patch", (), ""),
    (AGENT, "", "pods/eviction", "create", (), ""),
    (AGENT, "", "nodes", "get list watch", (), ""),
    (AGENT, "", "nodes/status", "patch", (), ""),
    (AGENT, "", "events", "create patch", (), ""),
    (AGENT, "mpsd.io", "mpsnodes", "get list watch create patch", (), ""),
    (AGENT, "mpsd.io", "mpsnodes/status", "patch", (), ""),
    (AGENT, "authentication.k8s.io", "tokenreviews", "create", (), ""),
    (AGENT, "authorization.k8s.io", "subjectaccessreviews", "create", (), ""),
    (WEBHOOK, _HOOKS, "validatingwebhookconfigurations", "get patch", _NAMES, ""),
    (WEBHOOK, _HOOKS, "mutatingwebhookconfigurations", "get patch", _NAMES, ""),
    (WEBHOOK, "", "namespaces", "patch", ("kube-system", NAMESPACE), ""),
    (WEBHOOK, "", "namespaces", "get", (), ""),
    (WEBHOOK, "", "configmaps", "get", (), ""),
    (WEBHOOK, "", "secrets", "get update", ("mpsd-webhook-certificates",), NAMESPACE),
    (WEBHOOK, "", "secrets", "create", (), NAMESPACE),
    (WEBHOOK, "", "podtemplates", "create", (), ""),
    (SCHEDULER, "mpsd.io", "mpsnodes", "get list watch patch", (), ""),
    (SCHEDULER, "", "pods", "get list watch", (), ""),
    (SCHEDULER, "", "nodes", "get list watch", (), ""),
    (SCHEDULER, "", "pods/binding", "create", (), ""),
    (SCHEDULER, "authentication.k8s.io", "tokenreviews", "create", (), ""),
    (SCHEDULER, "authorization.k8s.io", "subjectaccessreviews", "create", (), ""),
    (AGENT, _CLAIMS, "resourceslices", "list watch create update", (), ""),
    (AGENT, _CLAIMS, "resourceclaims", "get", (), ""),
    (WEBHOOK, _CLAIMS, "resourceclaims", "get", (), ""),
    (WEBHOOK, _CLAIMS, "resourceclaimtemplates", "get list create patch delete", (), ""),
    (SCHEDULER, _CLAIMS, "resourceclaims", "get", (), ""),
    (SCHEDULER, _CLAIMS, "resourceclaimtemplates", "get", (), ""),
    (SCHEDULER, _CLAIMS, "deviceclasses", "list", (), ""),
    (SCHEDULER, _CLAIMS, "resourceslices", "list", (), ""),
)
RIGHTS = tuple(
    Right(component, verb, group, resource, names, namespace)
    for component, group, resource, verbs, names, namespace in _ROWS
    for verb in verbs.split()
)
