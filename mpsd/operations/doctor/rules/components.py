"""The parts of mpsd in a cluster: the rights that each needs, and which differences between their versions matter.

The rights are those of the manifests (rights.yaml of each part), no more and no less; tests/manifests compares the two.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from mpsd.model.names import AGENT, NAMESPACE, SCHEDULER, WEBHOOK


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
        why="normal after an upgrade, for the DaemonSet mps-control-daemon is OnDelete: control's end would end every"
        " program on its GPUs",
        remedy="when it suits, `kubectl mps upgrade` replaces it without a program losing its GPU",
    ),
    Skew(
        Component.AGENT,
        Component.CONTROL,
        normal=False,
        why="the agent reads records that a later version writes, and may not know what they say",
        remedy=f"roll the agents out: kubectl -n {NAMESPACE} rollout status ds/{AGENT}",
    ),
    Skew(
        Component.COMMAND,
        Component.AGENT,
        normal=True,
        why="what later versions tell is not shown",
        remedy="pip install --upgrade 'mpsd[kubectl]'",
    ),
    Skew(
        Component.AGENT,
        Component.COMMAND,
        normal=True,
        why="what the node does not tell yet is shown as unknown",
        remedy="upgrade the cluster when it suits: kubectl apply -k manifests",
    ),
)


def skew_of(one: tuple[Component, str], other: tuple[Component, str]) -> Skew | None:
    """The row of these two; None where they are of one version, or no row is about them."""
    order = compare(one[1], other[1])
    if not order:
        return None
    older, newer = (one[0], other[0]) if order < 0 else (other[0], one[0])
    return next((row for row in SKEWS if (row.older, row.newer) == (older, newer)), None)


def skews(agent: str, controls: Collection[str], command: str, node: str = "") -> Iterator[tuple[str, Skew]]:
    """Every difference that a row is about, with whose versions differ. agent, controls, command: versions."""
    of_node, on_node = (f"{node}: ", f" of {node}") if node else ("", "")
    for version in sorted(set(controls)):
        if row := skew_of((Component.CONTROL, version), (Component.AGENT, agent)):
            yield f"{of_node}control is of version {version} and the agent of {agent}", row
    if row := skew_of((Component.COMMAND, command), (Component.AGENT, agent)):
        of_agent = f"the agent{on_node} of {agent}"
        yield f"{Component.COMMAND} is of version {command} and {of_agent}", row


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
