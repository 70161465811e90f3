"""Looks at a cluster for `kubectl mps doctor`, all at once and with a deadline for each question.

One rule: it only reads and asks who may what; what cannot be read is Unknown, with what is missing.

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
from mpsd.operations.doctor.rules.cluster_facts import (
    CaBundleCertificate,
    Clock,
    ClusterFacts,
    ClusterNodeFacts,
    Hook,
    KubeScheduler,
    OwnPod,
    PodFacts,
    RightSeen,
    Workload,
)
from mpsd.operations.doctor.rules.cluster_reading import (
    is_refusal,
    read_clock,
    read_definition,
    read_hooks,
    read_kube_scheduler,
    read_machine,
    read_own_pod,
    read_said,
    read_workload,
    ready_addresses,
)
from mpsd.operations.doctor.rules.component_rights import RIGHTS
from mpsd.operations.doctor.rules.facts import Fact, Unknown
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, KubeError, NotFound, Object, Resource
from mpsd.platform.kube_time import http_seconds, seconds
from mpsd.platform.limits_files import load_limits
from mpsd.status.cluster import PolicyInForce, mpsnodes, policy_in_force
from mpsd.status.rules.pods import quoted

# The authorities in a caBundle, read by OpenSSL through Python's own ssl.
#
# One rule: what OpenSSL does not take for the certificate of an authority is none.


def authorities_of(bundle: str) -> tuple[CaBundleCertificate, ...]:
    """bundle: base64 of PEM, as a webhook configuration has it; empty for what is none."""
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
    """Its common name; the whole name where it has none."""
    parts = certificate.get("subject")
    pairs = [pair for row in parts for pair in row] if isinstance(parts, tuple) else []
    return next((str(value) for key, value in pairs if key == "commonName"), str(pairs))


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
    """nodes: of which what is of one node is looked at; all where none is named. Away where nobody answers at all;
    InvalidInput where one of them is not there.
    """
    version = await kube.read("/version")
    if nodes:
        await mpsnodes(kube, nodes)  # says which are there instead
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
            ask = group.create_task
            definition = ask(self._there(_CRDS, "mpsnodes.mpsd.io", read_definition))
            namespace = ask(self._there(_NAMESPACES, NAMESPACE, lambda _thing: True))
            rights = ask(_fact(self._rights()))
            pods = ask(_fact(self._kube.list(PODS, NAMESPACE, OURS)))
            workloads = ask(_fact(self._workloads()))
            machines = ask(_fact(self._machines()))
            told = ask(_fact(self._kube.list(MPS_NODES)))
            hooks = ask(_fact(self._hooks()))
            endpoints = ask(self._endpoints())
            refusals = ask(_fact(self._refusals()))
            clock = ask(self._own_clock())
            everybody = ask(_fact(asyncio.gather(self._kube.list(_NAMESPACES), self._kube.list(PODS))))
        there = namespace.result()
        return ClusterFacts(
            now=time.time(),
            ours=mpsd.__version__,
            kubernetes=_release(version),
            namespace=there if isinstance(there, Unknown) else bool(there),
            definition=definition.result(),
            rights=rights.result(),
            pods=_of(pods.result(), self._pods),
            workloads=workloads.result(),
            machines=_of(machines.result(), self._wanted_of),
            mpsnodes=_of(told.result(), self._told),
            hooks=hooks.result(),
            authorities=_of(hooks.result(), _authorities),
            endpoints=endpoints.result(),
            refusals=refusals.result(),
            own_clock=clock.result(),
            node_clocks=_of(told.result(), self._clocks),
            said=self._said(everybody.result(), machines.result()),
            kube_schedulers=_of(everybody.result(), lambda found: _kube_schedulers(found[1])),
        )

    async def _there(self, kind: Resource, name: str, read: Callable[[Object], Value]) -> Value | Unknown | None:
        """None where there is no such object."""
        try:
            return read(await self._kube.get(kind, name))
        except NotFound:
            return None
        except KubeError as error:
            return Unknown(str(error))

    async def _rights(self) -> tuple[RightSeen, ...]:
        answers = await asyncio.gather(*(self._kube.create(_REVIEWS, right.review) for right in RIGHTS))
        allowed = [(answer.get("status") or {}).get("allowed") is True for answer in answers]
        return tuple(RightSeen(one.component, str(one), may) for one, may in zip(RIGHTS, allowed, strict=True))

    async def _workloads(self) -> tuple[Workload, ...]:
        found = await asyncio.gather(*(self._kube.list(kind, NAMESPACE, OURS) for kind in _WORKLOADS.values()))
        return tuple(read_workload(one, kind) for kind, things in zip(_WORKLOADS, found, strict=True) for one in things)

    async def _hooks(self) -> tuple[Hook, ...]:
        found = await asyncio.gather(*(self._configuration(kind) for kind in _HOOKS.values()))
        return tuple(
            hook for kind, thing in zip(_HOOKS, found, strict=True) for hook in read_hooks(thing, kind, seconds)
        )

    async def _configuration(self, kind: Resource) -> Object | None:
        try:
            return await self._kube.get(kind, WEBHOOK)
        except NotFound:
            return None

    async def _endpoints(self) -> Fact[int]:
        try:
            return ready_addresses(await self._kube.get(_ENDPOINTS, WEBHOOK, NAMESPACE))
        except NotFound:
            return 0
        except KubeError as error:
            return Unknown(str(error))

    async def _own_clock(self) -> Fact[Clock]:
        try:
            date = http_seconds(await self._kube.date())
        except KubeError as error:
            return Unknown(str(error))
        return Clock("this machine", date - time.time()) if date else Unknown("the API server's answers have no Date")

    async def _machines(self) -> tuple[ClusterNodeFacts, ...]:
        return tuple(read_machine(thing, self._policy) for thing in await self._kube.list(NODES))

    async def _refusals(self) -> tuple[str, ...]:
        events = await self._kube.list(_EVENTS, query={"fieldSelector": "type=Warning"})
        messages = dict.fromkeys(quoted(str(event["message"])) for event in events if is_refusal(event))
        return tuple(messages)[:_MOST_REFUSALS]

    # -- what was heard, read ------------------------------------------------------------------------------------

    def _said(
        self,
        everybody: tuple[Sequence[Object], Sequence[Object]] | Unknown,
        machines: tuple[ClusterNodeFacts, ...] | Unknown,
    ) -> Fact[tuple[PodFacts, ...]]:
        """Of the pods on mpsd's nodes, and of those that have no node yet."""
        if isinstance(everybody, Unknown):
            return everybody
        if isinstance(machines, Unknown):
            return machines
        namespaces, pods = everybody
        labels: dict[str, Fields] = {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in namespaces}
        ours = {"", *(one.name for one in self._wanted_of(machines) if one.is_shared)}
        of_ours = [pod for pod in pods if (pod.get("spec") or {}).get("nodeName", "") in ours]
        read = (read_said(pod, self._policy, self._gpu_facts, labels) for pod in of_ours)
        return tuple(one for one in read if one)

    def _pods(self, things: Sequence[Object]) -> tuple[OwnPod, ...]:
        found = (read_own_pod(thing, self._policy) for thing in things)
        return tuple(one for one in found if self._wants(one.node) or not one.node)

    def _wanted_of(self, machines: Sequence[ClusterNodeFacts]) -> tuple[ClusterNodeFacts, ...]:
        return tuple(one for one in machines if self._wants(one.name))

    def _told(self, things: Sequence[Object]) -> Mapping[str, ClusterNode]:
        now = time.time()
        found = [read_mpsnode(thing, now, seconds) for thing in things]
        return {one.name: one for one in sorted(found, key=lambda one: one.name) if self._wants(one.name)}

    def _clocks(self, things: Sequence[Object]) -> Fact[tuple[Clock, ...]]:
        told = [
            one for one in things if self._wants(one["metadata"]["name"]) and (one.get("status") or {}).get("toldAt")
        ]
        found = tuple(clock for clock in (read_clock(thing, seconds) for thing in told) if clock)
        why = "the API server does not say when a node's status was written (managedFields)"
        return found if found or not told else Unknown(why)

    def _wants(self, node: str) -> bool:
        return not self._wanted or node in self._wanted


async def _fact(question: Awaitable[Answer]) -> Answer | Unknown:
    try:
        return await question
    except KubeError as error:
        return Unknown(str(error))


def _of(fact: Answer | Unknown, read: Callable[[Answer], Fact[Value]]) -> Fact[Value]:
    return fact if isinstance(fact, Unknown) else read(fact)


def _authorities(hooks: Sequence[Hook]) -> Mapping[str, tuple[CaBundleCertificate, ...]]:
    return {hook.bundle: authorities_of(hook.bundle) for hook in hooks if hook.bundle}


def _kube_schedulers(pods: Sequence[Object]) -> tuple[KubeScheduler, ...]:
    return tuple(one for one in map(read_kube_scheduler, pods) if one)


def _release(version: Mapping[str, Any]) -> Fact[tuple[int, int]]:
    """Some clouds write a minor version of 27+."""
    major, minor = (str(version.get(key, "")).rstrip("+") for key in ("major", "minor"))
    if major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return Unknown("the API server does not say its version")
