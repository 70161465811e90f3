"""The parts of mpsd in a cluster: the rights of each, and which difference of versions matters.

The rights are those of the manifests (rights.yaml of each part of the chart), no more and no less;
tests/manifests compares the two.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from mpsd.model.names import AGENT, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.operations.doctor.rules.checks import Finding


@dataclass(frozen=True, slots=True)
class Right:
    """component: also the service account's name. resource: with its subresource behind a slash. names: to which it is
    bounded; empty for all. namespace: empty for the whole cluster.
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
        return self.resource in ("secrets", "podtemplates") or (self.group, self.verb) == (_HOOKS, "patch")

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
        wanted = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource}
        wanted |= {"name": next(iter(self.names), ""), "namespace": self.namespace}
        spec = {
            "user": f"system:serviceaccount:{NAMESPACE}:{self.component}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": wanted,
        }
        return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec}


_HOOKS, _NAMES = "admissionregistration.k8s.io", ("mpsd-webhook",)
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


# -- versions ------------------------------------------------------------------------------------


def skews(agent: str, controls: Iterable[str], node: str = "") -> Iterator[Finding]:
    """A control process that is newer than the agent.

    The other way is normal after an upgrade: its DaemonSet is OnDelete, and `kubectl mps upgrade`
    replaces it. agent, controls: versions; empty where not reported.
    """
    for version in sorted(set(filter(None, controls))):
        if compare(version, agent) > 0:
            where = f"{node}: " if node else ""
            what = f"{where}control is of version {version} and the agent of {agent}"
            why = "the agent reads records that a later version writes, and may not understand them"
            roll = f"roll the agents out: kubectl -n {NAMESPACE} rollout status ds/{AGENT}"
            yield Finding(f"{what}: {why}", roll)


def compare(one: str, other: str) -> int:
    """Below 0 where the first is older. Number by number, and a version that is about to be (1.0rc1) before itself."""
    for left, right in zip_longest(one.split("."), other.split("."), fillvalue="0"):
        if _rank(left) != _rank(right):
            return -1 if _rank(left) < _rank(right) else 1
    return 0


def _rank(part: str) -> tuple[int, bool, str]:
    digits = part[: len(part) - len(part.lstrip("0123456789"))]
    rest = part[len(digits) :]
    return int(digits[:9] or 0), not rest, rest
