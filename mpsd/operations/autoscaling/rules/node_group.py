"""What an autoscaler must be told of a group of nodes, so that it adds the first one, and what it cannot be told.

Sources, and what of it was tried: docs/coexistence.md (Autoscalers).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.cluster_status import ClusterNode, total
from mpsd.model.problem import InvalidInput, Problem, shortened, shown_name
from mpsd.operations.doctor.rules.cluster_facts import inside
from mpsd.platform.rules.kubernetes_objects import LABELS, KubernetesNode, Taint
from mpsd.status.rules.mpsnode import MEMORY_LABEL, labels_of

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

Settings = Mapping[str, Any]

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_TO_BE_REPLACED = "INSTANCE-TYPE"  # matches no instance, so that an overlay with it changes nothing
# Taints that come and go with a node's state, or that autoscalers set themselves.
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", "ToBeDeleted", "DeletionCand")
_MOST_NAMED = 6
_TAINT_FLAG, _TAINT_VARIABLE = "--startup-taint", "MPSD_STARTUP_TAINT"
# By autoscaler, the label of nodes that it believes to be starting for as long as they offer no nvidia.com/gpu.
_GPU_LABELS = {
    "asg": "k8s.amazonaws.com/accelerator",
    "capi": "cluster-api/accelerator",
    "gke": "cloud.google.com/gke-accelerator",
}


class Autoscaler(StrEnum):
    """The value: how `--for` names it."""

    ASG = "asg"
    CAPI = "capi"
    GKE = "gke"
    KARPENTER = "karpenter"


TITLES: Mapping[Autoscaler, str] = {
    Autoscaler.ASG: "cluster-autoscaler on AWS: tags of the Auto Scaling group, or of the EKS managed node group",
    Autoscaler.CAPI: "cluster-autoscaler with Cluster API: annotations of the MachineDeployment",
    Autoscaler.GKE: "GKE: node labels of the node pool",
    Autoscaler.KARPENTER: "Karpenter: a NodeOverlay, and fields of the NodePool",
}


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A group whose nodes are alike. like: the node that it was read from; empty where it was described. gpus: of one
    node. resources: what an empty node offers to requests, by name. labels, taints: that pods and mpsd go by. machine:
    the node `like`, None where none is known. most_pods: that one GPU takes, by the clients that each reserves.
    """

    like: str
    gpus: int
    resources: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    machine: KubernetesNode | None
    most_pods: int

    def __str__(self) -> str:
        memory = f" of {self.labels[MEMORY_LABEL]} GiB" if MEMORY_LABEL in self.labels else ""
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{memory}"


@dataclass(frozen=True, slots=True)
class StartupTaint:
    """The taint that agents remove. key: empty where they remove none. unknown: why that is not known."""

    key: str
    unknown: str = ""


def startup_taint(daemon_sets: Iterable[Mapping[str, Any]]) -> StartupTaint:
    """As the agents are set up: by a variable, or by a flag."""
    for daemon_set in daemon_sets:
        for container in inside(daemon_set, "spec", "template", "spec", "containers") or ():
            for one in container.get("env") or ():
                if one.get("name") == _TAINT_VARIABLE and one.get("value"):
                    return StartupTaint(str(one["value"]))
            words = [part for word in container.get("args") or () for part in str(word).split("=", 1)]
            if _TAINT_FLAG in words[:-1]:
                return StartupTaint(words[words.index(_TAINT_FLAG) + 1])
    return StartupTaint("")


def described(memory_gib: int, gpus: int, policy: "Policy", clients: int) -> NodeGroup:
    """A group without a node. memory_gib: that can be requested of one of its GPUs. clients: that a GPU serves."""
    unit_mib = policy.resources.memory_unit_mib
    if not (units := memory_gib * 1024 // unit_mib):
        message = f"is less than one unit of {policy.resources.memory}, {unit_mib} MiB"
        raise _invalid("gpu-memory-small", "--gpu-memory", str(memory_gib), message, "name what one GPU can give")
    share = LABELS[0] if policy.resources.memory.startswith("aliyun.com/") else LABELS[1]
    return NodeGroup(
        like="",
        gpus=gpus,
        resources=_resources(units * gpus, policy.oversubscription.thread_percent * gpus, policy),
        labels=dict([share.split("=", 1)]) | labels_of((), (memory_gib,), gpus),
        taints=(),
        machine=None,
        most_pods=clients // policy.requests.clients_per_grant,
    )


def read_group(node: ClusterNode, machine: KubernetesNode | None, policy: "Policy", clients: int) -> NodeGroup | None:
    """The group of a node that is there; None where it has not reported what its GPUs offer. machine: its Node."""
    unit_mib = policy.resources.memory_unit_mib
    promised = total(gpu.promised_mib for gpu in node.gpus)
    if not node.gpus or promised is None:
        return None
    units = [(gpu.promised_mib or 0) // unit_mib for gpu in node.gpus]
    percents = [gpu.promised_percent or policy.oversubscription.thread_percent for gpu in node.gpus]
    products, memory = {gpu.name for gpu in node.gpus}, {one * unit_mib // 1024 for one in units}
    keys = [key for key, _is, _value in (label.partition("=") for label in LABELS)]
    labels = machine.labels if machine else {}
    return NodeGroup(
        like=node.name,
        gpus=len(node.gpus),
        resources=_resources(sum(units), sum(percents), policy),
        labels={key: labels[key] for key in keys if key in labels} | labels_of(products, memory, len(node.gpus)),
        taints=tuple(one for one in (machine.taints if machine else ()) if not one.key.startswith(_PASSING)),
        machine=machine,
        most_pods=min(gpu.promised_clients or clients for gpu in node.gpus) // policy.requests.clients_per_grant,
    )


def only_group(groups: Sequence[NodeGroup], silent: Sequence[str]) -> NodeGroup:
    """The group of all these nodes. silent: those that have not reported. InvalidInput where they differ."""
    kinds = {(group.gpus, *group.resources.values(), *sorted(group.labels.items())): group for group in groups}
    if len(kinds) == 1:
        return groups[0]
    if not kinds:
        nodes = f"node{'' if len(silent) == 1 else 's'} {shortened([*map(shown_name, silent)], _MOST_NAMED)}"
        what = "has not reported what its GPUs offer" if len(silent) == 1 else "have not reported what their GPUs offer"
        remedy = "see whether its agent runs (kubectl mps), or describe the group: --gpu-memory GIB --count NUMBER"
        raise _invalid("gpus-unknown", nodes if silent else "the cluster", "", what if silent else _NO_NODES, remedy)
    named = [f"{shown_name(group.like)} has {group}" for group in kinds.values()]
    remedy = "name a node of the group that is meant, or a label that only its nodes have (-l)"
    raise _invalid("nodes-differ", "nodes", "", f"differ: {shortened(named, _MOST_NAMED)}", remedy)


_NO_NODES = "has no such node that mpsd serves"


def _invalid(rule: str, where: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput("the node group", [Problem(rule, where, value, message, remedy)])


def _resources(units: int, percent: int, policy: "Policy") -> Mapping[str, int]:
    return {policy.resources.memory: units, policy.resources.percent: percent}


# -- what each needs ---------------------------------------------------------------------------------------------------


def settings(autoscaler: Autoscaler, group: NodeGroup, taint: StartupTaint) -> Settings:
    """What is to be set, in the words of that autoscaler."""
    amounts = {name: str(amount) for name, amount in group.resources.items()}
    match autoscaler:
        case Autoscaler.ASG:
            start = "k8s.io/cluster-autoscaler/node-template"
            tags = {f"{start}/resources/{name}": amount for name, amount in amounts.items()}
            tags |= {f"{start}/label/{name}": value for name, value in group.labels.items()}
            tags |= {f"{start}/taint/{one.key}": f"{one.value}:{one.effect}" for one in _lasting(group, taint)}
            return {"tags": tags}
        case Autoscaler.CAPI:
            return {"annotations": _annotations(group, taint)}
        case Autoscaler.GKE:
            labels = {f"clusterautoscaler-nodetemplate-resources-{name}": amount for name, amount in amounts.items()}
            return {"nodeLabels": labels | dict(group.labels)}
        case Autoscaler.KARPENTER:
            kind = group.machine.labels.get(_INSTANCE_TYPE, "") if group.machine else ""
            which = {"key": _INSTANCE_TYPE, "operator": "In", "values": [kind or _TO_BE_REPLACED]}
            overlay = {
                "apiVersion": "karpenter.sh/v1alpha1",
                "kind": "NodeOverlay",
                "metadata": {"name": f"mpsd-{kind.lower().replace('_', '-')}" if kind else "mpsd"},
                "spec": {"requirements": [which], "capacity": amounts},
            }
            startup = [{"key": taint.key, "effect": "NoSchedule"}] if taint.key else []
            spec: dict[str, list[Any]] = {"taints": [*map(asdict, _lasting(group, taint))], "startupTaints": startup}
            template: dict[str, Any] = {"metadata": {"labels": dict(group.labels)}}
            if any(spec.values()):
                template["spec"] = {name: taints for name, taints in spec.items() if taints}
            return {"nodeOverlay": overlay, "nodePool": {"spec": {"template": template}}}


def _annotations(group: NodeGroup, taint: StartupTaint) -> Mapping[str, str]:
    start = "capacity.cluster-autoscaler.kubernetes.io"
    (memory, units), *_others = group.resources.items()
    found = {f"{start}/gpu-type": memory, f"{start}/gpu-count": str(units)}
    if group.machine:
        told = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "ephemeral-disk", "pods": "maxPods"}
        amounts = group.machine.allocatable
        found |= {f"{start}/{name}": amounts[resource] for resource, name in told.items() if resource in amounts}
    found[f"{start}/labels"] = ",".join(f"{name}={value}" for name, value in group.labels.items())
    taints = ",".join(f"{one.key}={one.value}:{one.effect}" for one in _lasting(group, taint))
    return found | ({f"{start}/taints": taints} if taints else {})


def _lasting(group: NodeGroup, taint: StartupTaint) -> tuple[Taint, ...]:
    """Without the one that goes: an autoscaler that does not know that would think that no pod may come."""
    return tuple(one for one in group.taints if one.key != taint.key)


def notes(autoscaler: Autoscaler, group: NodeGroup, taint: StartupTaint) -> Iterator[str]:
    """What is to be known of these settings, a sentence each."""
    copied = (
        "while the group has a node, cluster-autoscaler copies that and needs none of this; it only describes: the"
        " group itself gives its nodes their taints and the label that mpsd goes by, the agents write those of mpsd.io"
    )
    match autoscaler:
        case Autoscaler.ASG:
            yield copied
            yield from _gpu_label(autoscaler, group, "leave it off")
            yield from _flag(taint)
        case Autoscaler.CAPI:
            first, *others = group.resources
            yield copied
            yield (
                f"there is a place for one such resource, here {first}: while the group has no node, a pod that also"
                f" requests {' or '.join(others)} adds none, unless the infrastructure template reports it in"
                " status.capacity"
            )
            if not group.machine:
                yield "add the annotations cpu and memory too: without both no group is scaled from zero"
            yield from _gpu_label(autoscaler, group, "leave it off")
            yield from _flag(taint)
        case Autoscaler.GKE:
            yield (
                "GKE's own autoscaler reads resources from such labels by kubernetes/autoscaler#7604; from which GKE"
                " version on is not documented: if it adds no node to an empty pool, keep one node in it"
            )
            yield from _gpu_label(autoscaler, None, "GKE gives it to every node with a GPU")
            yield "its autoscaler takes no flags, so give the pool no startup taint; it may add a second node at first"
        case Autoscaler.KARPENTER:
            yield "NodeOverlays are alpha: the controller needs the feature gate NodeOverlay=true"
            if not (group.machine and _INSTANCE_TYPE in group.machine.labels):
                yield f"replace {_TO_BE_REPLACED} by the instance types of the group; without any it is for all types"
            if not taint.key:
                yield _no_taint(taint)


def _gpu_label(autoscaler: Autoscaler, group: NodeGroup | None, then: str) -> Iterator[str]:
    """group: None where every node has that label."""
    label = _GPU_LABELS[autoscaler]
    if group is None or group.machine is None or label in group.machine.labels:
        yield (
            f"nodes with the label {label} count as not ready as long as they offer no nvidia.com/gpu, which those of"
            f" mpsd never do (kubernetes/autoscaler#8095): {then}"
        )


def _flag(taint: StartupTaint) -> Iterator[str]:
    if taint.key:
        yield (
            f"new nodes come with the taint {taint.key}:NoSchedule (of the group, or by kubelet's"
            f" --register-with-taints={taint.key}=:NoSchedule), and cluster-autoscaler runs with"
            f" --startup-taint={taint.key}"
        )
    else:
        yield _no_taint(taint)


def _no_taint(taint: StartupTaint) -> str:
    if taint.unknown:
        return f"whether the agents remove a startup taint is not known: {taint.unknown}"
    return (
        "the agents remove no startup taint: while the first node starts, a second one may be added; to prevent that,"
        " add the component startup-taint (docs/coexistence.md, Autoscalers)"
    )


def not_seen(group: NodeGroup) -> Iterator[str]:
    """What no autoscaler sees of these nodes, a sentence each."""
    if group.gpus > 1:
        yield (
            f"autoscalers add up the {group.gpus} GPUs of a node: where 4 and 3 GiB are free on two of them, a pod that"
            " requests 7 fits for them, and they add no node; kubectl mps explain POD says why it waits, and a group"
            " whose nodes have one GPU has no such gap"
        )
        yield (
            "for the same reason they may remove a node whose pods fit nowhere else: pods that must not be moved need"
            ' the annotation cluster-autoscaler.kubernetes.io/safe-to-evict: "false", or for Karpenter'
            ' karpenter.sh/do-not-disrupt: "true"'
        )
    else:
        yield "with one GPU a node, the memory and the threads that autoscalers see are what one pod can get"
    yield (
        f"they do not know that one GPU takes at most {group.most_pods} pods (clients of MPS), which GPUs are cordoned,"
        " and which are not ready"
    )
