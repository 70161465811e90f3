"""The checks of `kubectl mps doctor` of pods: who uses GPUs past the ledger, and who waits for a scheduler that is not
there.

One rule: a pod is outside the ledger where admission would refuse it now for a way to a GPU, or where another device
plugin gave it one.
"""

from collections.abc import Iterator

from mpsd.model.names import NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.policy import RuleId
from mpsd.model.quantity import DAY_S, lasting
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, PodFacts
from mpsd.operations.doctor.rules.facts import Check, Elsewhere, NotKnown, Severity, Unknown, Wrong, each, known
from mpsd.platform.rules.certificates import ANNOTATION

_SHOWN = 5  # pods that are named
# The rules of admission about ways to a GPU that no ledger see; the others are about what a pod asks for.
BYPASSES = frozenset(
    {
        RuleId.ENVIRONMENT_BLOCKED,
        RuleId.PRIVILEGED,
        RuleId.CAPABILITIES,
        RuleId.HOST_PATH,
        RuleId.MOUNT_PATH,
        RuleId.MPSD_FILES,
        RuleId.RUNTIME_CLASS,
        RuleId.UNASKED_VISIBLE_DEVICES,
        RuleId.UNASKED_PRIVILEGED,
        RuleId.UNASKED_HOST_PATH,
    }
)


def _outside(facts: ClusterFacts) -> Iterator[Wrong]:
    pods = [pod for pod in known(facts.said) if pod.node and pod.outside]
    for pod in pods[:_SHOWN]:
        more = f" (and {len(pod.outside) - 1} more)" if len(pod.outside) > 1 else ""
        yield Wrong(
            f"pod {pod.name} on {pod.node} can use GPUs past the books: {pod.outside[0]}{more}",
            "correct it and make it anew, or run it in an exempt namespace",
        )
    if len(pods) > _SHOWN:
        yield Wrong(f"{len(pods) - _SHOWN} more pods are outside the books", "-o json names them all by check")


def _whole_gpus(facts: ClusterFacts) -> Iterator[Wrong]:
    for pod in [pod for pod in known(facts.said) if pod.node and pod.whole_gpus][:_SHOWN]:
        what = f"pod {pod.name} on {pod.node} has {pod.whole_gpus}, a whole GPU that mpsd shares out as well"
        yield Wrong(what, "move it to a node without mpsd's label, and keep that device plugin off mpsd's nodes")


def _other_plugin(facts: ClusterFacts) -> Iterator[Wrong]:
    for one in known(facts.machines):
        if one.is_shared and one.whole_gpus:
            what = f"another device plugin gives GPUs of {one.name} away too ({one.whole_gpus})"
            yield Wrong(what, "keep its DaemonSet off nodes with mpsd's label, by a nodeSelector or affinity")


def _no_scheduler(facts: ClusterFacts) -> Iterator[Wrong]:
    there = any(one.component == SCHEDULER and one.ready for one in known(facts.workloads))
    for pod in known(facts.said):
        if pod.asks and pod.pending and not pod.node and pod.scheduler == SCHEDULER and not there:
            what = f"pod {pod.name} waits for {SCHEDULER}, of which no pod is ready here"
            yield Wrong(what, "kubectl apply -k manifests/overlays/scheduler, or take schedulerName out of the pod")
            return


def _unplaced(facts: ClusterFacts) -> Iterator[Wrong]:
    there = any(one.component == SCHEDULER for one in known(facts.workloads))
    unplaced = [pod for pod in known(facts.said) if _went_past(pod)] if there else []
    if unplaced:
        pod = unplaced[0]
        more = f" (and {len(unplaced) - 1} more)" if len(unplaced) > 1 else ""
        what = f"pod {pod.name}{more} asks for GPU memory and was placed by {pod.scheduler}, which did not ask mpsd"
        yield Wrong(
            what, f"name schedulerName: {SCHEDULER}, or give that scheduler mpsd's extender (docs/scheduling.md)"
        )


def _went_past(pod: PodFacts) -> bool:
    return pod.asks and bool(pod.node) and not pod.placed


def _unconfigured(facts: ClusterFacts) -> Iterator[Wrong]:
    if not any(one.component == SCHEDULER and one.kind == "ds" for one in known(facts.workloads)):
        raise NotKnown(Elsewhere("no extender of mpsd's stands beside the cluster's own kube-scheduler"))
    schedulers = known(facts.kube_schedulers)
    if not schedulers:
        raise NotKnown(Unknown("no pod of kube-scheduler is in kube-system: it may run as no pod, or out of sight"))
    for one in schedulers:
        if not one.configured:
            what = f"pod {one.name} has no --config in its command, so it asks no extender: pods are placed past mpsd"
            yield Wrong(what, "name a configuration with mpsd's extender there (docs/scheduling.md)")


_PODS, _NODES = "pods on mpsd's nodes, as admission reads them", "Nodes: their resources"

POD_CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check(
        "no-scheduler",
        Severity.STOPS,
        "pods wait for a scheduler that is there",
        ("said", "workloads"),
        "pods that wait, and Deployments",
        _no_scheduler,
    ),
    Check("other-plugin", Severity.BREAKS, "nobody else gives these GPUs away", ("machines",), _NODES, _other_plugin),
    Check("whole-gpus", Severity.BREAKS, "no pod has a whole GPU of mpsd's", ("said",), _PODS, _whole_gpus),
    Check("outside-books", Severity.BREAKS, "no pod gets at GPUs past the books", ("said",), _PODS, _outside),
    Check(
        "not-asked",
        Severity.BREAKS,
        "schedulers ask mpsd where there is room",
        ("said", "workloads"),
        "annotations of pods on mpsd's nodes",
        _unplaced,
    ),
    Check(
        "scheduler-unconfigured",
        Severity.BREAKS,
        "kube-scheduler is given a configuration",
        ("workloads", "kube_schedulers"),
        "commands of kube-scheduler's pods in kube-system, not what is in the file that they name",
        _unconfigured,
    ),
)


# The checks of `kubectl mps doctor` of the webhook: its registration, its certificates, and whether it is reached.
#
# One rule: a cluster that does without a webhook, such as where policies stand in for it, has no fault here.

_APPLY = "kubectl apply -k manifests"
_NEAR_S = 14 * DAY_S  # mpsd and cert-manager renew theirs when a third of its life is left, 30 days of 90
_NEAR_PART = 6  # of the life that a serving certificate has, which operators choose: half of what renewal has
_RENEW = "see the webhook's log why it was not renewed, or renew what cert-manager gives it"
_KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")


def _without_webhook(facts: ClusterFacts) -> None:
    """NotKnown where the cluster has none, by choice."""
    if not any(one.component == WEBHOOK for one in known(facts.workloads)) and not known(facts.hooks):
        raise NotKnown(Elsewhere("this cluster has no webhook of mpsd's"))


def _unregistered(facts: ClusterFacts) -> Iterator[Wrong]:
    _without_webhook(facts)
    kinds = {hook.kind for hook in known(facts.hooks)}
    for kind in _KINDS:
        if kind not in kinds:
            yield Wrong(f"{kind} {WEBHOOK} is not there: admission lets everything through", _APPLY)


def _bundle(facts: ClusterFacts) -> Iterator[Wrong]:
    _without_webhook(facts)
    hooks = known(facts.hooks)
    restart = f"restart the webhook, which writes its own: kubectl -n {NAMESPACE} rollout restart deploy/{WEBHOOK}"
    for hook in hooks:
        if not hook.bundle:
            yield Wrong(f"webhook {hook.name} has no caBundle: no API server can verify the webhook", restart)
    if len({hook.bundle for hook in hooks if hook.bundle}) > 1:
        yield Wrong("the two webhook configurations name different authorities (caBundle)", restart)


def _certificate(facts: ClusterFacts) -> Iterator[Wrong]:
    _without_webhook(facts)
    for authorities in known(facts.authorities).values():
        if not authorities:
            yield Wrong(f"a caBundle of {WEBHOOK} holds no certificate of an authority", f"restart deploy/{WEBHOOK}")
            continue
        last = max(authorities, key=lambda one: one.ends_at)
        left_s = last.ends_at - facts.now
        if left_s < _NEAR_S:
            yield Wrong(f"the authority that verifies the webhook ({last.subject}) {_when(left_s)}", _RENEW)
        return


def _when(left_s: float) -> str:
    return f"ends in {lasting(left_s)}" if left_s > 0 else "has ended"


def _serving(facts: ClusterFacts) -> Iterator[Wrong]:
    _without_webhook(facts)
    hooks = known(facts.hooks)
    if not hooks:
        raise NotKnown(Unknown("there is no webhook configuration that could tell it"))
    for _hook, life in each(hooks, lambda hook: hook.serving):
        left_s = life.ends_at - facts.now
        if left_s < (life.ends_at - life.begins_at) / _NEAR_PART:
            yield Wrong(f"a certificate that the webhook serves with {_when(left_s)}", _RENEW)
            return


def _unreachable(facts: ClusterFacts) -> Iterator[Wrong]:
    _without_webhook(facts)
    for said in known(facts.refusals):
        yield Wrong(f"an API server cannot ask the webhook: {said}", "see its pods, its Service, and network policies")
    if known(facts.endpoints) == 0:
        fails = any(hook.policy == "Fail" for hook in known(facts.hooks))
        then = "pods that it is for are refused" if fails else "pods come past admission"
        see = f"see kubectl -n {NAMESPACE} get pods,endpoints -l {NAME_LABEL}={WEBHOOK}"
        yield Wrong(f"no ready pod is behind the Service {WEBHOOK}: {then}", see)


_BREAKS = Severity.BREAKS
_CONFIGURATIONS = f"webhook configurations {WEBHOOK}"

WEBHOOK_CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check(
        "webhook-unregistered",
        _BREAKS,
        "admission is registered",
        ("workloads", "hooks"),
        _CONFIGURATIONS,
        _unregistered,
    ),
    Check(
        "webhook-authority",
        _BREAKS,
        "API servers can verify the webhook",
        ("workloads", "hooks"),
        f"caBundle in {_CONFIGURATIONS}",
        _bundle,
    ),
    Check(
        "webhook-certificate",
        _BREAKS,
        "the webhook's authority lasts",
        ("workloads", "hooks", "authorities"),
        f"caBundle in {_CONFIGURATIONS}",
        _certificate,
    ),
    Check(
        "webhook-serving",
        _BREAKS,
        "the webhook's own certificate lasts",
        ("workloads", "hooks"),
        f"annotation {ANNOTATION} of {_CONFIGURATIONS}",
        _serving,
    ),
    Check(
        "webhook-unreachable",
        _BREAKS,
        "API servers reach the webhook",
        ("workloads", "hooks", "refusals", "endpoints"),
        "Endpoints of its Service, and events",
        _unreachable,
    ),
)
