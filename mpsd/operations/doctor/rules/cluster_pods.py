"""Checks of `kubectl mps doctor` of the webhook, and of the pods that use GPUs.

A pod is outside the ledger where admission would refuse it now for a way to a GPU, or where another device plugin gave
it one. A cluster that does without a webhook has no fault here.
"""

from collections.abc import Iterator

from mpsd.model.names import NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.times import DAY_S, lasting
from mpsd.operations.doctor.rules.checks import (
    CheckTable,
    Finding,
    NotApplicable,
    NotKnown,
    Severity,
    Unknown,
    at_most,
    each,
    known,
)
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Hook
from mpsd.platform.rules.certificates import ANNOTATION

_SHOWN = 5  # pods that are named
_NEAR_S = 14 * DAY_S  # mpsd and cert-manager renew theirs when a third of its life is left, 30 days of 90
_NEAR_PART = 6  # of the life that a serving certificate has, which operators choose: half of what renewal has
_RENEW = "see the webhook's log why it was not renewed, or renew what cert-manager gives it"
_KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_CONFIGURATIONS = f"webhook configurations {WEBHOOK}"
_STOPS, _BREAKS, _NOTE = Severity

POD_CHECKS = CheckTable[ClusterFacts]()
_check = POD_CHECKS.check


# -- the webhook -------------------------------------------------------------------------------------------------------


def _hooks(facts: ClusterFacts) -> tuple[Hook, ...]:
    """NotKnown where the cluster has no webhook, by choice."""
    if not any(one.component == WEBHOOK for one in known(facts.workloads)) and not known(facts.hooks):
        raise NotKnown(NotApplicable("this cluster has no webhook of mpsd's"))
    return known(facts.hooks)


@_check("webhook-unregistered", _BREAKS, "admission is registered", "workloads", "hooks", how=_CONFIGURATIONS)
def _unregistered(facts: ClusterFacts) -> Iterator[Finding]:
    kinds = {hook.kind for hook in _hooks(facts)}
    for kind in _KINDS:
        if kind not in kinds:
            yield Finding(f"{kind} {WEBHOOK} is missing: every pod is admitted", "kubectl apply -k manifests")


@_check(
    "webhook-authority",
    _BREAKS,
    "API servers can verify the webhook",
    *("workloads", "hooks"),
    how=f"caBundle in {_CONFIGURATIONS}",
)
def _bundle(facts: ClusterFacts) -> Iterator[Finding]:
    hooks = _hooks(facts)
    restart = f"restart the webhook, which writes its own: kubectl -n {NAMESPACE} rollout restart deploy/{WEBHOOK}"
    for hook in hooks:
        if not hook.bundle:
            yield Finding(f"webhook {hook.name} has no caBundle: no API server can verify the webhook", restart)
    if len({hook.bundle for hook in hooks if hook.bundle}) > 1:
        yield Finding("the two webhook configurations name different authorities (caBundle)", restart)


@_check(
    "webhook-certificate",
    _BREAKS,
    "the webhook's authority lasts",
    *("workloads", "hooks", "authorities"),
    how=f"caBundle in {_CONFIGURATIONS}",
)
def _certificate(facts: ClusterFacts) -> Iterator[Finding]:
    _hooks(facts)
    for authorities in known(facts.authorities).values():
        if not authorities:
            yield Finding(f"a caBundle of {WEBHOOK} holds no certificate of an authority", f"restart deploy/{WEBHOOK}")
            continue
        last = max(authorities, key=lambda one: one.ends_at)
        left_s = last.ends_at - facts.now
        if left_s < _NEAR_S:
            yield Finding(f"the authority that verifies the webhook ({last.subject}) {_ends(left_s)}", _RENEW)
        return


def _ends(left_s: float) -> str:
    return f"ends in {lasting(left_s)}" if left_s > 0 else "has ended"


@_check(
    "webhook-serving",
    _BREAKS,
    "the webhook's own certificate lasts",
    *("workloads", "hooks"),
    how=f"annotation {ANNOTATION} of {_CONFIGURATIONS}",
)
def _serving(facts: ClusterFacts) -> Iterator[Finding]:
    hooks = _hooks(facts)
    if not hooks:
        raise NotKnown(Unknown("there is no webhook configuration that could tell it"))
    for _hook, life in each(hooks, lambda hook: hook.serving):
        left_s = life.ends_at - facts.now
        if left_s < (life.ends_at - life.begins_at) / _NEAR_PART:
            yield Finding(f"a certificate that the webhook serves with {_ends(left_s)}", _RENEW)
            return


@_check(
    "webhook-unreachable",
    _BREAKS,
    "API servers reach the webhook",
    *("workloads", "hooks", "refusals", "endpoints"),
    how="Endpoints of its Service, and events",
)
def _unreachable(facts: ClusterFacts) -> Iterator[Finding]:
    hooks = _hooks(facts)
    for refusal in known(facts.refusals):
        yield Finding(
            f"an API server cannot ask the webhook: {refusal}", "see its pods, its Service, and network policies"
        )
    if known(facts.endpoints) == 0:
        fails = any(hook.policy == "Fail" for hook in hooks)
        then = "the pods that it reviews are refused" if fails else "pods are admitted without review"
        see = f"see kubectl -n {NAMESPACE} get pods,endpoints -l {NAME_LABEL}={WEBHOOK}"
        yield Finding(f"no ready pod is behind the Service {WEBHOOK}: {then}", see)


# -- pods that use GPUs ------------------------------------------------------------------------------------------------


@_check(
    "no-scheduler",
    _STOPS,
    "the scheduler that pods wait for exists",
    *("users", "workloads"),
    how="pods that wait, and Deployments",
)
def _no_scheduler(facts: ClusterFacts) -> Iterator[Finding]:
    there = any(one.component == SCHEDULER and one.ready for one in known(facts.workloads))
    for pod in known(facts.users):
        if pod.asks and pod.pending and not pod.node and pod.scheduler == SCHEDULER and not there:
            what = f"pod {pod.name} waits for {SCHEDULER}, of which no pod is ready here"
            yield Finding(what, "kubectl apply -k manifests/overlays/scheduler, or take schedulerName out of the pod")
            return


@_check(
    "other-plugin", _BREAKS, "no other device plugin allocates these GPUs", "machines", how="Nodes: their resources"
)
def _other_plugin(facts: ClusterFacts) -> Iterator[Finding]:
    for one in known(facts.machines):
        if one.is_shared and one.whole_gpus:
            what = f"another device plugin allocates GPUs of {one.name} too ({one.whole_gpus})"
            yield Finding(what, "keep its DaemonSet off nodes with mpsd's label, by a nodeSelector or affinity")


_PODS = "pods on mpsd's nodes, as admission reads them"


@_check("whole-gpus", _BREAKS, "no pod has a whole GPU of mpsd's", "users", how=_PODS)
def _whole_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in [pod for pod in known(facts.users) if pod.node and pod.whole_gpus][:_SHOWN]:
        what = f"pod {pod.name} on {pod.node} has {pod.whole_gpus}, a whole GPU that mpsd shares as well"
        yield Finding(what, "move it to a node without mpsd's label, and keep that device plugin off mpsd's nodes")


@_check("outside-books", _BREAKS, "no pod uses GPUs outside the ledger", "users", how=_PODS)
def _outside(facts: ClusterFacts) -> Iterator[Finding]:
    findings = []
    for pod in known(facts.users):
        if pod.node and pod.outside:
            more = f" (and {len(pod.outside) - 1} more)" if len(pod.outside) > 1 else ""
            what = f"pod {pod.name} on {pod.node} can use GPUs outside the ledger: {pod.outside[0]}{more}"
            findings.append(Finding(what, "correct and recreate it, or run it in an exempt namespace"))
    yield from at_most(_SHOWN, findings, "pods can use GPUs outside the ledger", "correct these first")


@_check(
    "not-asked",
    _BREAKS,
    "schedulers ask mpsd for free capacity",
    *("users", "workloads"),
    how="annotations of pods on mpsd's nodes",
)
def _unplaced(facts: ClusterFacts) -> Iterator[Finding]:
    there = any(one.component == SCHEDULER for one in known(facts.workloads))
    unplaced = [pod for pod in known(facts.users) if pod.asks and pod.node and not pod.placed] if there else []
    if unplaced:
        pod = unplaced[0]
        more = f" (and {len(unplaced) - 1} more)" if len(unplaced) > 1 else ""
        what = f"pod {pod.name}{more} requests GPU memory and was placed by {pod.scheduler}, which did not ask mpsd"
        remedy = f"set schedulerName: {SCHEDULER}, or give that scheduler mpsd's extender (docs/scheduling.md)"
        yield Finding(what, remedy)


@_check(
    "scheduler-unconfigured",
    _BREAKS,
    "kube-scheduler is given a configuration",
    *("workloads", "kube_schedulers"),
    how="commands of kube-scheduler's pods in kube-system, not what is in the file that they name",
)
def _unconfigured(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.component == SCHEDULER and one.kind == "ds" for one in known(facts.workloads)):
        raise NotKnown(NotApplicable("no extender of mpsd's runs beside the cluster's own kube-scheduler"))
    schedulers = known(facts.kube_schedulers)
    if not schedulers:
        raise NotKnown(Unknown("no pod of kube-scheduler is in kube-system: it may run as no pod, or out of sight"))
    for one in schedulers:
        if not one.configured:
            what = f"pod {one.name} has no --config in its command, so it asks no extender: pods are placed past mpsd"
            yield Finding(what, "name a configuration with mpsd's extender there (docs/scheduling.md)")
