"""The parts of mpsd in a cluster: the rights that each needs, which differences between their versions matter, and what
a part that was removed leaves behind.

The rights are those of the manifests (rights.yaml of each part, and of components/dra), no more and no less;
tests/manifests compares the two.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from mpsd.model.cluster_status import pods_in_words
from mpsd.model.names import AGENT, APPLY, NAMESPACE, SCHEDULER, WEBHOOK
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


# -- resource claims ---------------------------------------------------------------------------------------------------


def claim_left(claim: str, pod: str, shared_with: Sequence[str], where: str) -> Finding:
    """A prepared claim on a node that serves claims no longer."""
    whose = f"claim {claim} of {pods_in_words(pod, shared_with)}"
    what = f"{whose} keeps its share, though {where} serves no claims any more"
    return Finding(what, "delete its pods, or apply components/dra again so that kubelet can end it (docs/dra.md)")


# -- versions ----------------------------------------------------------------------------------------------------------


class Component(StrEnum):
    CONTROL = "control"
    AGENT = "agent"
    COMMAND = "this command line"


@dataclass(frozen=True, slots=True)
class Skew:
    """Two parts that talk to each other, `older` being of an older version than `newer`.

    normal: nothing has to be done at once. why: what it means. remedy: what ends it.
    """

    older: Component
    newer: Component
    normal: bool
    why: str
    remedy: str


# A row for each pair of parts that talk to each other.
SKEWS = (
    Skew(
        Component.CONTROL,
        Component.AGENT,
        normal=True,
        why="normal after an upgrade: the DaemonSet mps-control-daemon is OnDelete, because a new pod of it ends every"
        " program on its GPUs",
        remedy="when it suits, `kubectl mps upgrade` replaces it without a program losing its GPU",
    ),
    Skew(
        Component.AGENT,
        Component.CONTROL,
        normal=False,
        why="the agent reads records that a later version writes, and may not understand them",
        remedy=f"roll the agents out: kubectl -n {NAMESPACE} rollout status ds/{AGENT}",
    ),
    Skew(
        Component.COMMAND,
        Component.AGENT,
        normal=True,
        why="what only later versions report is not shown",
        remedy="pip install '.[kubectl]' in a checkout of the agent's version",
    ),
    Skew(
        Component.AGENT,
        Component.COMMAND,
        normal=True,
        why="what the node does not report yet is shown as unknown",
        remedy=f"upgrade the cluster when it suits: {APPLY}",
    ),
)


def skew_of(one: tuple[Component, str], other: tuple[Component, str]) -> Skew | None:
    """The row of these two; None where they are of one version, or no row is about them."""
    order = compare(one[1], other[1])
    pair = (one[0], other[0]) if order < 0 else (other[0], one[0])
    return next((row for row in SKEWS if order and (row.older, row.newer) == pair), None)


def skews(agent: str, controls: Iterable[str], command: str, node: str = "") -> Iterator[tuple[Skew, Finding]]:
    """Every difference that a row is about. agent, controls, command: versions; of control empty where not reported."""
    of_node, on_node = (f"{node}: ", f" of {node}") if node else ("", "")
    for version in sorted(set(filter(None, controls))):
        if row := skew_of((Component.CONTROL, version), (Component.AGENT, agent)):
            what = f"{of_node}control is of version {version} and the agent of {agent}: {row.why}"
            yield row, Finding(what, row.remedy)
    if row := skew_of((Component.COMMAND, command), (Component.AGENT, agent)):
        what = f"{Component.COMMAND} is of version {command} and the agent{on_node} of {agent}: {row.why}"
        yield row, Finding(what, row.remedy)


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
