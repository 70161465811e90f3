"""What the chart adds where the API server evaluates CEL, and `exemptions`: Kubernetes 1.30 and
newer."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from mpsd.model.conditions import node_status_patch
from mpsd.model.events import Event, EventCount, Reason, event_object, node_subject
from mpsd.platform.kube import EVENTS, MPS_NODES, NODES, PODS, Kube, KubeError, PatchKind
from mpsd.platform.kube_access import open_kube
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node, taint_removal
from mpsd.status.rules.mpsnode import UPGRADE_LABEL, labels_patch, mpsnode_for, node_labels
from tests.admission.cases import found
from tests.e2e.admission.cases import admission_cases, creating
from tests.e2e.cluster import Cluster, Object, listed
from tests.e2e.objects import deployment, pod
from tests.e2e.waiting import eventually
from tests.e2e.webhook import NAME, SYSTEM, Webhook, as_service_account
from tests.manifests.rendering import PLAIN, named, only
from tests.model.worlds import GPUS, POLICY

_CALLED = 'failed calling webhook "validate.mpsd.io"'
_RULE = re.compile(r"denied request: ([\w-]+): ")


def _policy(place: str, *names: str) -> Object:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    return listed([named(place, kind, name) for name in names for kind in kinds])


@pytest.fixture(scope="module")
def cel(cluster: Cluster, webhook: Webhook) -> Cluster:
    if not cluster.serves("validatingadmissionpolicies"):
        pytest.skip("the cluster serves no ValidatingAdmissionPolicy: Kubernetes 1.30 and newer do")
    return cluster


@pytest.fixture
def unheard(cel: Cluster, webhook: Webhook) -> Iterator[None]:
    """The chart's match conditions, and no webhook: an object that it must be asked about is
    refused."""
    kind = "ValidatingWebhookConfiguration"
    conditions = only(PLAIN, kind)["webhooks"][0]["matchConditions"]
    asked = [{"op": "add", "path": "/webhooks/0/matchConditions", "value": conditions}]
    cel.do("patch", kind, NAME, "--type=json", "-p", json.dumps(asked))
    webhook.kill_all()
    try:
        ignored = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
        cel.do(
            "patch", "mutatingwebhookconfiguration", NAME, "--type=json", "-p", json.dumps(ignored)
        )
        yield
    finally:
        webhook.start()
        webhook.start()
        asked[0]["op"] = "remove"
        cel.do("patch", kind, NAME, "--type=json", "-p", json.dumps(asked))
        webhook.wait_until_registered()


def test_the_webhook_is_asked_about_what_could_break_a_rule_and_about_no_other_pod(
    cel: Cluster, namespace: str, unheard: None
) -> None:
    with creating(cel, namespace) as creator:
        eventually(lambda: creator.create(pod("plain")).is_admitted, "the conditions in force")
        assert creator.create(deployment("plain", pod("plain"))).is_admitted
        assert _CALLED in creator.create(deployment("asks", pod("asks", gpu=True))).message
        cases = admission_cases()
        answers = [*zip(cases, creator.ask_for_all(cases), strict=True)]
    broken = [
        answer
        for case, answer in answers
        if found(case) and (answer.is_admitted or _CALLED in answer.message)
    ]
    assert len(broken) > 250
    assert [answer.thing for answer in broken if answer.is_admitted] == []
    spared = sum(answer.is_admitted for _case, answer in answers)
    assert spared > 20


@dataclass(frozen=True, slots=True)
class Agents:
    """Two nodes, each with a pod of a user; tokens: kubeconfigs of the first one's agent, and of no
    node's."""

    cluster: Cluster
    namespace: str
    nodes: tuple[str, str]
    token: Path
    loose: Path

    def denied(self, write: Callable[[Kube], Awaitable[object]], token: Path | None = None) -> str:
        """The rule that the API server names; empty where it takes the write."""

        async def main() -> str:
            with closing(open_kube(token or self.token)) as kube:
                try:
                    await write(kube)
                except KubeError as error:
                    return str(error)
            return ""

        said = asyncio.run(main())
        named = _RULE.search(said)
        assert named or not said, said
        return named[1] if named else ""


@pytest.fixture(scope="module")
def agents(cel: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    folder, mark = tmp_path_factory.mktemp("agents"), uuid4().hex[:6]
    first, second = nodes = (f"e2e-{mark}-a", f"e2e-{mark}-b")
    policy = _policy(PLAIN, "mpsd-agent-writes", "mpsd-agent-evictions")
    with cel.namespace(exempt=True) as namespace:
        try:
            for node in nodes:
                cel.do(
                    "create",
                    "-f",
                    "-",
                    given={"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}},
                )
                cel.do("create", "-n", namespace, "-f", "-", given=pod(node, nodeName=node))
            agent = pod(first, nodeName=first, serviceAccountName="mpsd-agent")
            cel.do("create", "-n", SYSTEM, "-f", "-", given=agent)
            bound = ("--bound-object-kind=Pod", f"--bound-object-name={first}")
            (folder / "bound").write_text(as_service_account(cel, "mpsd-agent", *bound))
            (folder / "loose").write_text(as_service_account(cel, "mpsd-agent"))
            cel.do("apply", "-f", "-", given=policy)
            there = Agents(cel, namespace, nodes, folder / "bound", folder / "loose")
            eventually(lambda: there.denied(_annotate(there, second)), "the policy in force")
            # of another uid: before the policy is in force nothing is evicted
            eventually(
                lambda: (
                    there.denied(lambda kube: kube.evict(second, namespace, "0-0")) == "own-node"
                ),
                "that of evictions in force",
            )
            yield there
        finally:
            cel.kubectl("delete", "-f", "-", "--ignore-not-found", given=policy)
            cel.kubectl(
                "delete",
                "pod",
                first,
                "-n",
                SYSTEM,
                "--ignore-not-found",
                "--force",
                "--grace-period=0",
            )
            cel.kubectl("delete", "node,mpsnode", *nodes, "--ignore-not-found")


Write = Callable[[Kube], Awaitable[object]]


def _pod_patch(there: Agents, node: str, **metadata: Object) -> Write:
    patch = {"metadata": metadata}
    return lambda kube: kube.patch(
        PODS, node, patch, PatchKind.STRATEGIC, there.namespace, "status"
    )


def _evict(there: Agents, node: str) -> Write:
    uid = there.cluster.get("pod", node, "-n", there.namespace)["metadata"]["uid"]
    return lambda kube: kube.evict(node, there.namespace, uid)


def _annotate(there: Agents, node: str) -> Write:
    return _pod_patch(there, node, annotations={"mpsd.io/gpu": "GPU-1"})


def _condition(there: Agents, node: str) -> Write:
    patch = node_status_patch(
        {"type": "MPSReady", "status": "True"}, "mpsd.io/x", 2, "2026-01-01T00:00:00Z", ""
    )
    return lambda kube: kube.patch(NODES, node, patch, PatchKind.STRATEGIC, subresource="status")


def _label_node(there: Agents, node: str) -> Write:
    patch = labels_patch({}, node_labels(GPUS, POLICY) | {UPGRADE_LABEL: "drained"})
    return lambda kube: kube.patch(NODES, node, patch, PatchKind.MERGE, subresource="status")


def _make_mpsnode(there: Agents, node: str) -> Write:
    uid = there.cluster.get("node", node)["metadata"]["uid"]
    return lambda kube: kube.create(MPS_NODES, mpsnode_for(node, uid))


def _report(there: Agents, node: str) -> Write:
    return lambda kube: kube.patch(
        MPS_NODES, node, {"status": {"driver": "580"}}, PatchKind.MERGE, "", "status"
    )


def _event(there: Agents, node: str) -> Write:
    thing = event_object(
        EventCount(Event(node_subject(node), Reason.EVICTED, "x"), 1.0, 1.0, 1), node
    )
    return lambda kube: kube.create(EVENTS, thing, thing["metadata"].get("namespace", "default"))


_WRITES = (_annotate, _condition, _label_node, _make_mpsnode, _report, _event)


@pytest.mark.parametrize("write", _WRITES)
def test_the_agents_token_writes_what_is_its_own_nodes_and_nothing_of_another(
    agents: Agents, write: Callable[[Agents, str], Write]
) -> None:
    own, other = agents.nodes
    if write is _report:  # there is one to report to
        for node in agents.nodes:
            name = {"apiVersion": "mpsd.io/v1alpha1", "kind": "MPSNode", "metadata": {"name": node}}
            agents.cluster.do("apply", "-f", "-", given=name)
    assert agents.denied(write(agents, own), agents.loose) == "token-node"
    assert agents.denied(write(agents, other)) == "own-node"
    assert agents.denied(write(agents, own)) == ""


def test_of_a_pod_on_its_node_the_agents_token_writes_annotations_alone(agents: Agents) -> None:
    write = _pod_patch(agents, agents.nodes[0], labels={"app": "payments"})
    assert agents.denied(write) == "own-annotations"


def test_the_agents_token_evicts_a_pod_of_its_node_by_its_uid_and_none_of_the_cluster_itself(
    agents: Agents,
) -> None:
    own, other = agents.nodes
    assert agents.denied(_evict(agents, other)) == "own-node"
    assert agents.denied(lambda kube: kube.evict(own, agents.namespace)) == "eviction"
    assert agents.denied(lambda kube: kube.evict(own, SYSTEM, "1-2")) == "eviction"
    # two policies refuse it
    assert agents.denied(_evict(agents, own), agents.loose) in {"own-node", "token-node"}
    assert agents.denied(_evict(agents, own)) == ""


_STARTUP = "mpsd.io/not-ready"
_TAINTS = [
    {"key": "team", "value": "a", "effect": "NoSchedule"},
    {"key": _STARTUP, "effect": "NoSchedule"},
]


@pytest.fixture(scope="module")
def startup_taint(agents: Agents) -> Iterator[None]:
    """Both Nodes have the taint, and one of somebody else."""
    cluster, right = agents.cluster, f"e2e-{uuid4().hex[:8]}"
    policy = _policy("startup-taint", "mpsd-agent-taints")
    try:
        cluster.do("create", "clusterrole", right, "--verb=patch", "--resource=nodes")
        cluster.do(
            "create",
            "clusterrolebinding",
            right,
            f"--clusterrole={right}",
            f"--serviceaccount={_AGENT}",
        )
        cluster.do("apply", "-f", "-", given=policy)
        for node in agents.nodes:
            cluster.do("patch", "node", node, "-p", json.dumps({"spec": {"taints": _TAINTS}}))
        own = agents.nodes[0]
        eventually(
            lambda: agents.denied(_node_patch(own, {"metadata": {"labels": {"x": "y"}}})),
            "the policy in force",
        )
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", given=policy)
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", right, "--ignore-not-found")


_AGENT = f"{SYSTEM}:mpsd-agent"


def _node_patch(node: str, patch: Object) -> Write:
    return lambda kube: kube.patch(NODES, node, patch, PatchKind.MERGE)


def _remove_startup_taint(node: str) -> Write:
    async def write(kube: Kube) -> None:
        taints = read_kubernetes_node(await kube.get(NODES, node)).taints
        await kube.patch(NODES, node, taint_removal(taints, _STARTUP), PatchKind.JSON)

    return write


# tests/whole/manifests/test_agent_policy.py has the others
@pytest.mark.parametrize(
    "patch", [{"spec": {"unschedulable": True}}, {"spec": {"taints": _TAINTS[1:]}}], ids=str
)
def test_of_its_node_the_agents_token_writes_nothing_but_the_startup_taint(
    agents: Agents, startup_taint: None, patch: Object
) -> None:
    assert agents.denied(_node_patch(agents.nodes[0], patch)) == "own-taint"


def test_the_agents_token_removes_the_startup_taint_of_its_own_node_alone(
    agents: Agents, startup_taint: None
) -> None:
    own, other = agents.nodes
    assert agents.denied(_remove_startup_taint(other)) == "own-node"
    assert agents.denied(_remove_startup_taint(own), agents.loose) == "own-node"
    assert agents.denied(_remove_startup_taint(own)) == ""
    kept = [one["key"] for one in agents.cluster.get("node", own)["spec"]["taints"]]
    assert "team" in kept
    assert _STARTUP not in kept


@pytest.fixture
def exemptions(cel: Cluster) -> Iterator[str]:
    """Gives the name of both user and role."""
    user = f"e2e-{uuid4().hex[:8]}"
    policy = _policy("hostile-tenants", "mpsd-exemptions")
    try:
        cel.do(
            "create", "clusterrole", user, "--verb=create,get,patch,update", "--resource=namespaces"
        )
        cel.do("create", "clusterrolebinding", user, f"--clusterrole={user}", f"--user={user}")
        cel.do("apply", "-f", "-", given=policy)
        eventually(
            lambda: not _labelled(cel, user, "default", "mpsd.io/exempt=true"),
            "the policy in force",
        )
        yield user
    finally:
        cel.kubectl("delete", "-f", "-", "--ignore-not-found", given=policy)
        cel.kubectl("delete", "clusterrole,clusterrolebinding", user, "--ignore-not-found")


def _labelled(cluster: Cluster, user: str, namespace: str, *labels: str) -> bool:
    """Whether this user may; nothing stays."""
    said = cluster.kubectl(
        "label", "namespace", namespace, *labels, "--overwrite", "--as", user, "--dry-run=server"
    )
    assert said.ok or "mpsd-exemptions" in said.err, said.err
    return said.ok


def test_a_namespace_is_exempted_by_whoever_has_the_verb_for_it(
    cel: Cluster, exemptions: str
) -> None:
    with cel.namespace() as name, cel.namespace(exempt=True) as exempt:
        assert _labelled(cel, exemptions, name, "team=a")
        assert _labelled(cel, exemptions, exempt, "team=a")
        for label in ("mpsd.io/exempt=true", "mpsd.io/enforce=none"):
            assert not _labelled(cel, exemptions, name, label)
        assert not _labelled(cel, exemptions, exempt, "mpsd.io/exempt-")
        for new in ("gpu-operator", name):
            thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": new}}
            said = cel.kubectl(
                "create", "--dry-run=server", "--as", exemptions, "-f", "-", given=thing
            )
            assert ("mpsd-exemptions" in said.err) is (new == "gpu-operator"), said.err
        webhook = f"system:serviceaccount:{SYSTEM}:{NAME}"
        assert _labelled(cel, webhook, SYSTEM, "mpsd.io/exempt=false"), (
            "the webhook exempts its own"
        )
        right = [{"op": "add", "path": "/rules/-", "value": _EXEMPTING}]
        cel.do("patch", "clusterrole", exemptions, "--type=json", "-p", json.dumps(right))
        eventually(
            lambda: _labelled(cel, exemptions, name, "mpsd.io/exempt=true"), "the right seen"
        )


_EXEMPTING = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["exempt"]}
