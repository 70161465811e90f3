"""`kubectl mps autoscaling`: what each autoscaler must be told of a group of nodes, so that it adds the first one.

It reads, and changes nothing. What may not be read is reported, and left out of the answer.

Rights of whoever asks: get and list of mpsnodes.mpsd.io. The answer is complete with list of nodes, get of configmap
mpsd-limits and list of daemonsets in mpsd-system.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from mpsd.model.names import AGENT, NAME_LABEL, NAMESPACE
from mpsd.model.problem import InvalidInput, Problem, shown, shown_name
from mpsd.operations.autoscaling.rules import node_group as rules
from mpsd.operations.autoscaling.rules.node_group import Autoscaler, NodeGroup, StartupTaint
from mpsd.operations.explain.pod import allowed
from mpsd.platform.console import answers, complaints, one_line, print_json, print_yaml
from mpsd.platform.kube import NODES, Kube, KubeError, Rejected, Resource, Unavailable
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, read_kubernetes_node
from mpsd.status.cluster import PolicyInForce, look, policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames

_PROGRAM = "kubectl mps autoscaling"
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-autoscaling --verb=get,list"
    " --resource=mpsnodes.mpsd.io,nodes, and a clusterrolebinding to it"
)
_DAEMON_SETS, _AGENTS = Resource("apps/v1", "daemonsets"), {"labelSelector": f"{NAME_LABEL}={AGENT}"}


class AutoscalingFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """unseen: what could not be read, a sentence each."""

    group: NodeGroup
    taint: StartupTaint
    unseen: Sequence[str]


async def read_nodes(kube: Kube, nodes: Sequence[str], selector: str) -> FoundGroup:
    """The group of these nodes, or of those with these labels, or of all. InvalidInput where they are not alike."""
    in_force, taint, unseen = await _about_agents(kube)
    machines = await _machines(kube, selector, unseen)
    status = await look(kube, nodes)
    chosen = [node for node in status.nodes if not selector or node.name in (machines or {})]
    policy, clients = in_force.policy, in_force.clients
    read = {one.name: rules.read_group(one, (machines or {}).get(one.name), policy, clients) for one in chosen}
    silent = [name for name, group in read.items() if group is None]
    group = rules.only_group([group for group in read.values() if group], silent)
    unseen += [f"{shown_name(name)} has not reported what its GPUs offer, and is left out" for name in silent]
    if group.machine and group.machine.allocatable.get(policy.resources.memory, "0") == "0":
        why = "its agent does not serve, or it serves resource claims (docs/dra.md)"
        unseen.append(f"{group.like} offers no {policy.resources.memory} now: {why}")
    return FoundGroup(group, taint, unseen)


async def read_described(kube: Kube, memory_gib: int, gpus: int) -> FoundGroup:
    in_force, taint, unseen = await _about_agents(kube)
    return FoundGroup(rules.described(memory_gib, gpus, in_force.policy, in_force.clients), taint, unseen)


async def _about_agents(kube: Kube) -> tuple[PolicyInForce, StartupTaint, list[str]]:
    in_force = await policy_in_force(kube)
    unseen = [f"the names of resources are those {in_force.source}: {in_force.why}"] if in_force.why else []
    try:
        taint = rules.startup_taint(await kube.list(_DAEMON_SETS, NAMESPACE, _AGENTS))
    except Unavailable:  # of a policy that nobody can read, nothing is printed for others to copy
        raise
    except KubeError as error:
        taint = StartupTaint("", str(error))
    return in_force, taint, unseen


async def _machines(kube: Kube, selector: str, unseen: list[str]) -> Mapping[str, KubernetesNode] | None:
    """The Nodes by name; None where they may not be read and need not be."""
    query = {"labelSelector": selector} if selector else None
    without = "labels and taints of Nodes, their type, CPU and memory are not read"
    listed = kube.list(NODES, query=query)
    try:
        found = await (listed if selector else allowed(listed, without, unseen))
    except Rejected as error:
        remedy = "write labels as kubectl takes them, such as pool=gpu"
        raise InvalidInput(_PROGRAM, [Problem("selector", "--selector", shown(selector), str(error), remedy)]) from None
    return None if found is None else {one.name: one for one in map(read_kubernetes_node, found)}


Selector = Annotated[str, typer.Option("-l", "--selector", metavar="LABELS", help="Of the Nodes with these labels.")]
For = Annotated[
    list[Autoscaler] | None,
    typer.Option("--for", metavar="AUTOSCALER", help="asg, capi, gke or karpenter, once or more often; else all."),
]
GpuMemory = Annotated[
    str, typer.Option("--gpu-memory", metavar="GIB", help="Of one GPU, as the label mpsd.io/gpu.memory says.")
]
Count = Annotated[str, typer.Option("--count", metavar="NUMBER", help="GPUs of one node.")]
_MOST = {"--gpu-memory": (10_000, "GiB of one GPU, such as 139"), "--count": (64, "GPUs of one node, such as 8")}
SettingsOutput = Annotated[
    AutoscalingFormat,
    typer.Option("-o", "--output", metavar="FORMAT", help="text for people, json or yaml for machines."),
]


def autoscaling(
    nodes: NodeNames = None,
    selector: Selector = "",
    autoscaler: For = None,
    gpu_memory: GpuMemory = "",
    count: Count = "",
    output: SettingsOutput = AutoscalingFormat.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print what an autoscaler must be told of a group of GPU nodes, so that it adds the first one, and what none sees.

    A node that serves is the example: NODE, or the Nodes of -l, or all where they are alike. For a group that has none,
    --gpu-memory and --count describe one: the GiB that a pod may request of one GPU, and how many GPUs a node has. The
    names of resources are those of the cluster's policy. It changes nothing.

        kubectl mps autoscaling gpu-a1
        kubectl mps autoscaling -l pool=h200 --for asg -o yaml
        kubectl mps autoscaling --gpu-memory 139 --count 8 --for capi
        kubectl mps autoscaling gpu-a1 -o json | jq .karpenter.nodeOverlay

    Exits with 0 when it is printed, 1 where the cluster cannot be asked, 2 when there is no such node or the nodes
    differ. Sources of each line, and what was tried: docs/coexistence.md (Autoscalers).
    """
    _check(nodes or (), selector, gpu_memory, count)
    cluster = ClusterAccess(_PROGRAM, kubeconfig, context, _RIGHTS)
    if gpu_memory:
        found = cluster.ask(lambda kube: read_described(kube, int(gpu_memory), int(count)))
    else:
        found = cluster.ask(lambda kube: read_nodes(kube, nodes or (), selector))
    chosen = [one for one in Autoscaler if not autoscaler or one in autoscaler]
    if output is AutoscalingFormat.TEXT:
        answers().print(*_lines(found, chosen), sep="\n")
    else:
        (print_json if output is AutoscalingFormat.JSON else print_yaml)(_record(found, chosen))
    for sentence in found.unseen:
        complaints().print(one_line(f"{_PROGRAM}: {sentence}"))


def _check(nodes: Sequence[str], selector: str, gpu_memory: str, count: str) -> None:
    problems = []
    if nodes and selector:
        problems.append(Problem("options", "--selector", "", "is given beside a node", "leave one of the two out"))
    given = {"--gpu-memory": gpu_memory, "--count": count}
    described = [name for name, value in given.items() if value]
    for name in described:
        most, what = _MOST[name]
        if not (given[name].isascii() and given[name].isdigit() and 1 <= int(given[name]) <= most):
            wrong = f"is no whole number from 1 to {most}"
            problems.append(Problem("options", name, shown(given[name]), wrong, f"write the {what}"))
    if described and (nodes or selector):
        remedy = "leave nodes and --selector out to describe a group, or leave it out to read one"
        problems.append(Problem("options", described[0], "", "is given beside nodes that are there", remedy))
    elif len(described) == 1:
        (missing,) = given.keys() - described
        problems.append(Problem("options", missing, "", f"is missing beside {described[0]}", "give both"))
    if problems:
        raise InvalidInput(_PROGRAM, problems)


def _lines(found: FoundGroup, chosen: Sequence[Autoscaler]) -> Iterator[str]:
    group = found.group
    offer = " and ".join(f"{name} {amount}" for name, amount in group.resources.items())
    yield one_line(f"{f'{group.like} has' if group.like else 'a node with'} {group}; an empty node offers {offer}")
    for one in chosen:
        yield f"\n{rules.TITLES[one]}"
        text = yaml.safe_dump(rules.settings(one, group, found.taint), sort_keys=False, width=1000)
        yield "\n".join(f"  {line}" for line in text.splitlines())
        yield from (one_line(f"- {note}") for note in rules.notes(one, group, found.taint))
    yield "\nwhat no autoscaler sees"
    yield from (one_line(f"- {sentence}") for sentence in rules.not_seen(group))


def _record(found: FoundGroup, chosen: Sequence[Autoscaler]) -> dict[str, Any]:
    group, taint = found.group, found.taint
    about = {
        "like": group.like or None,
        "gpus": group.gpus,
        "resources": dict(group.resources),
        "labels": dict(group.labels),
        "taints": [asdict(one) for one in group.taints],
        "startup_taint": None if taint.unknown else taint.key,
    }
    each = {one.value: rules.settings(one, group, taint) for one in chosen}
    notes = {one.value: [*rules.notes(one, group, taint)] for one in chosen}
    return about | each | {"notes": notes, "not_seen": [*rules.not_seen(group)], "not_looked_at": [*found.unseen]}
