"""`kubectl mps doctor`: why MPS does not start or limits are not enforced in a cluster, each with the one thing to do.

Everything is asked at once, with a deadline for each question. It only reads and asks who may what; what cannot be read
is Unknown, with what is missing.

Rights of whoever asks, none of which is needed: get and list of what is looked at, create of
subjectaccessreviews.authorization.k8s.io.
"""

import asyncio
import binascii
import ssl
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import mpsd
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.fields import Fields
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.names import NAMESPACE, OURS, WEBHOOK
from mpsd.model.times import http_seconds
from mpsd.operations.doctor.report import Verbose, answer
from mpsd.operations.doctor.rules.checks import Fact, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import (
    CaBundleCertificate,
    Clock,
    ClusterFacts,
    ClusterNodeFacts,
    Hook,
    OwnPod,
    PodFacts,
    RightSeen,
    Workload,
    is_refusal,
    read_clock,
    read_definition,
    read_hooks,
    read_kube_scheduler,
    read_machine,
    read_own_pod,
    read_user,
    read_workload,
    ready_addresses,
)
from mpsd.operations.doctor.rules.components import RIGHTS
from mpsd.platform.console import Format
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, KubeError, NotFound, Object, Resource
from mpsd.platform.limits_files import load_limits
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster import PolicyInForce, mpsnodes, policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames
from mpsd.status.rules.pods import quoted

Answer = TypeVar("Answer")
Value = TypeVar("Value")

_CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
_NAMESPACES, _EVENTS, _ENDPOINTS = Resource("v1", "namespaces"), Resource("v1", "events"), Resource("v1", "endpoints")
_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
_WORKLOADS = {"ds": Resource("apps/v1", "daemonsets"), "deploy": Resource("apps/v1", "deployments")}
_HOOKS = {
    "ValidatingWebhookConfiguration": Resource("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    "MutatingWebhookConfiguration": Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
}
_MOST_REFUSALS = 3


async def look(kube: Kube, nodes: Sequence[str]) -> ClusterFacts:
    """The facts of these nodes, of all where none is named. Unavailable where the API server does not answer at all;
    InvalidInput where one of the nodes does not exist.
    """
    version = await kube.read("/version")
    if nodes:
        await mpsnodes(kube, nodes)  # says which exist instead
    in_force = await policy_in_force(kube)
    return await _ClusterLook(kube, frozenset(nodes), in_force).facts(version)


class _ClusterLook:
    """One look. wanted: names of nodes; empty for all."""

    def __init__(self, kube: Kube, wanted: frozenset[str], in_force: PolicyInForce) -> None:
        self._kube = kube
        self._wanted = wanted
        self._policy = in_force.policy
        self._gpu_facts = load_limits(None).facts

    async def facts(self, version: Object) -> ClusterFacts:
        async with asyncio.TaskGroup() as group:

            def ask(question: Awaitable[Answer]) -> asyncio.Task[Answer | Unknown]:
                return group.create_task(_fact(question))

            namespace = ask(self._get(_NAMESPACES, NAMESPACE))
            definition = ask(self._get(_CRDS, "mpsnodes.mpsd.io"))
            endpoints = ask(self._get(_ENDPOINTS, WEBHOOK, NAMESPACE))
            rights = ask(self._rights())
            pods = ask(self._kube.list(PODS, NAMESPACE, OURS))
            workloads = ask(self._workloads())
            machines = ask(self._machines())
            nodes = ask(self._kube.list(MPS_NODES))
            hooks = ask(self._hooks())
            refusals = ask(self._refusals())
            own_clock = ask(self._own_clock())
            everybody = ask(asyncio.gather(self._kube.list(_NAMESPACES), self._kube.list(PODS)))
        return ClusterFacts(
            now=time.time(),
            ours=mpsd.__version__,
            kubernetes=_release(version),
            namespace=_of(namespace.result(), lambda thing: thing is not None),
            definition=_of(definition.result(), lambda thing: read_definition(thing) if thing else None),
            rights=rights.result(),
            pods=_of(pods.result(), self._pods),
            workloads=workloads.result(),
            machines=_of(machines.result(), self._wanted_of),
            mpsnodes=_of(nodes.result(), self._mpsnodes),
            hooks=hooks.result(),
            authorities=_of(
                hooks.result(), lambda found: {one.bundle: _authorities_of(one.bundle) for one in found if one.bundle}
            ),
            endpoints=_of(endpoints.result(), ready_addresses),
            refusals=refusals.result(),
            own_clock=own_clock.result(),
            node_clocks=_of(nodes.result(), self._clocks),
            users=self._users(everybody.result(), machines.result()),
            kube_schedulers=_of(
                everybody.result(), lambda found: tuple(filter(None, map(read_kube_scheduler, found[1])))
            ),
        )

    async def _get(self, kind: Resource, name: str, namespace: str = "") -> Object | None:
        try:
            return await self._kube.get(kind, name, namespace)
        except NotFound:
            return None

    async def _rights(self) -> tuple[RightSeen, ...]:
        answers = await asyncio.gather(*(self._kube.create(_REVIEWS, right.review) for right in RIGHTS))
        allowed = [(answer.get("status") or {}).get("allowed") is True for answer in answers]
        return tuple(RightSeen(one.component, str(one), may) for one, may in zip(RIGHTS, allowed, strict=True))

    async def _workloads(self) -> tuple[Workload, ...]:
        found = await asyncio.gather(*(self._kube.list(kind, NAMESPACE, OURS) for kind in _WORKLOADS.values()))
        return tuple(read_workload(one, kind) for kind, things in zip(_WORKLOADS, found, strict=True) for one in things)

    async def _hooks(self) -> tuple[Hook, ...]:
        found = await asyncio.gather(*(self._get(kind, WEBHOOK) for kind in _HOOKS.values()))
        return tuple(one for kind, thing in zip(_HOOKS, found, strict=True) for one in read_hooks(thing, kind))

    async def _own_clock(self) -> Fact[Clock]:
        at = http_seconds(await self._kube.date())
        return Clock("this machine", at - time.time()) if at else Unknown("the API server's answers have no Date")

    async def _machines(self) -> tuple[ClusterNodeFacts, ...]:
        return tuple(read_machine(thing, self._policy) for thing in await self._kube.list(NODES))

    async def _refusals(self) -> tuple[str, ...]:
        events = await self._kube.list(_EVENTS, query={"fieldSelector": "type=Warning"})
        messages = dict.fromkeys(quoted(str(event["message"])) for event in events if is_refusal(event))
        return tuple(messages)[:_MOST_REFUSALS]

    # -- the answers, read -----------------------------------------------------------------------------------------

    def _users(
        self,
        everybody: tuple[Sequence[Object], Sequence[Object]] | Unknown,
        machines: tuple[ClusterNodeFacts, ...] | Unknown,
    ) -> Fact[tuple[PodFacts, ...]]:
        """The pods on mpsd's nodes, and those that have no node yet."""
        if isinstance(everybody, Unknown):
            return everybody
        if isinstance(machines, Unknown):
            return machines
        namespaces, pods = everybody
        labels: dict[str, Fields] = {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in namespaces}
        ours = {"", *(one.name for one in self._wanted_of(machines) if one.is_shared)}
        of_ours = [pod for pod in pods if (pod.get("spec") or {}).get("nodeName", "") in ours]
        read = (read_user(pod, self._policy, self._gpu_facts, labels) for pod in of_ours)
        return tuple(one for one in read if one)

    def _pods(self, things: Sequence[Object]) -> tuple[OwnPod, ...]:
        found = (read_own_pod(thing, self._policy) for thing in things)
        return tuple(one for one in found if self._wants(one.node) or not one.node)

    def _wanted_of(self, machines: Sequence[ClusterNodeFacts]) -> tuple[ClusterNodeFacts, ...]:
        return tuple(one for one in machines if self._wants(one.name))

    def _mpsnodes(self, things: Sequence[Object]) -> Mapping[str, ClusterNode]:
        now = time.time()
        found = [read_mpsnode(thing, now) for thing in things]
        return {one.name: one for one in sorted(found, key=lambda one: one.name) if self._wants(one.name)}

    def _clocks(self, things: Sequence[Object]) -> Fact[tuple[Clock, ...]]:
        reported = [
            one for one in things if self._wants(one["metadata"]["name"]) and (one.get("status") or {}).get("toldAt")
        ]
        found = tuple(clock for clock in (read_clock(thing) for thing in reported) if clock)
        why = "the API server does not say when a node's status was written (managedFields)"
        return found if found or not reported else Unknown(why)

    def _wants(self, node: str) -> bool:
        return not self._wanted or node in self._wanted


async def _fact(question: Awaitable[Answer]) -> Answer | Unknown:
    try:
        return await question
    except KubeError as error:
        return Unknown(str(error))


def _of(fact: Answer | Unknown, read: Callable[[Answer], Fact[Value]]) -> Fact[Value]:
    return fact if isinstance(fact, Unknown) else read(fact)


def _authorities_of(bundle: str) -> tuple[CaBundleCertificate, ...]:
    """What OpenSSL takes for certificates of authorities. bundle: base64 of PEM, as a webhook configuration has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=b64decode(bundle, validate=True).decode())
    except (ssl.SSLError, ValueError, binascii.Error):
        return ()
    return tuple(
        CaBundleCertificate(_subject(one), ssl.cert_time_to_seconds(str(one["notAfter"])))
        for one in context.get_ca_certs()
    )


def _subject(certificate: Mapping[str, object]) -> str:
    """The common name of a certificate; the whole name where it has none."""
    parts = certificate.get("subject")
    pairs = [pair for row in parts for pair in row] if isinstance(parts, tuple) else []
    return next((str(value) for key, value in pairs if key == "commonName"), str(pairs))


def _release(version: Mapping[str, Any]) -> Fact[tuple[int, int]]:
    """Major and minor version of Kubernetes. Some clouds write a minor version of 27+."""
    major, minor = (str(version.get(key, "")).rstrip("+") for key in ("major", "minor"))
    if major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return Unknown("the API server does not say its version")


def doctor(
    nodes: NodeNames = None,
    verbose: Verbose = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say why MPS does not start or limits are not enforced in a cluster, the worst first, and the one thing to do.

    It only reads, with the rights that you have: what you may not see is reported as unknown, with the right that is
    missing. With names of nodes, only these nodes are checked.

    Exits with 0 when nothing was found but notes ("worth knowing"), 1 when something was found or could not be
    determined, 2 when there is no such node.

        kubectl mps doctor
        kubectl mps doctor gpu-a1 -v
        kubectl mps doctor -o json | jq '.checks[] | select(.verdict == "found")'

    What can be seen only on a node, `mpsd doctor` checks there.
    """
    facts = ClusterAccess("kubectl mps doctor", kubeconfig, context).ask(lambda kube: look(kube, nodes or ()))
    answer(diagnose(facts, CLUSTER_CHECKS), output, verbose=verbose)
