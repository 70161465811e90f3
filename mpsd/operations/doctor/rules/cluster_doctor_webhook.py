"""The checks of `kubectl mps doctor` of the webhook: its registration, its certificates, and whether it is reached.

One rule: a cluster that does without a webhook, such as where policies stand in for it, has no fault here.
"""

from collections.abc import Iterator

from mpsd.model.durations import DAY_S, lasting
from mpsd.model.installed import NAME_LABEL, NAMESPACE, WEBHOOK
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong, each
from mpsd.operations.doctor.rules.doctor_facts import Elsewhere, NotKnown, Unknown, known
from mpsd.platform.rules.serving_told import ANNOTATION

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
