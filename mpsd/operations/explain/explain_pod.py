"""`kubectl mps explain`: why a pod waits for a GPU, in one sentence."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from mpsd.model.problem import InvalidInput, Problem, printable, shown
from mpsd.operations.explain.cluster_pods import Answers, explain_all, explain_one
from mpsd.platform.kube import Kube
from mpsd.platform.kube_access import namespace_of_user
from mpsd.platform.output import ExitCode, Format, OutputFormat, answers, complaints, print_json
from mpsd.status.cluster_answers import Cluster
from mpsd.status.cluster_options import Context, Kubeconfig, PodName
from mpsd.status.rules.pod_scene import Story
from mpsd.status.rules.pod_seen import PodSeen

_PROGRAM = "kubectl mps explain"
_LONGEST = 4000
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-explain --verb=get,list"
    " --resource=mpsnodes.mpsd.io,nodes,pods,events, and a clusterrolebinding to it"
)

Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="Of the pod; else the context's.", show_default=False),
]
Everywhere = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Without POD: of all namespaces.")]


def explain(
    pod: PodName = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say in one sentence why a pod waits for a GPU, or where it has one. Without POD, of every pod that waits.

    POD is its name, or that of its Job, Deployment or other owner, also as kubectl writes it: job/train. Exits with 0
    when it runs or has finished well, 1 when it waits or has failed, 2 when there is no such pod.

        kubectl mps explain train-0-x7k2p
        kubectl mps explain job/train -n research
        kubectl mps explain -A                    every pod that waits
        kubectl mps explain train-0-x7k2p -o json | jq -r .why

    For a manifest that is not in a cluster yet: mpsd explain -f job.yaml.
    """
    if pod is not None and everywhere:
        problem = Problem(
            "options", "-A", "", "is for all pods that wait", f"name a namespace for {shown(pod)} with -n"
        )
        raise InvalidInput(_PROGRAM, [problem])
    where = "" if everywhere else namespace or namespace_of_user(kubeconfig, context)
    question: Callable[[Kube], Awaitable[Answers]] = lambda kube: (  # noqa: E731 - one of two
        explain_all(kube, where) if pod is None else explain_one(kube, pod, where)
    )
    found = Cluster(_PROGRAM, kubeconfig, context, _RIGHTS).ask(question)
    if output is Format.JSON:
        _print_json(found, one=pod is not None and found.owner is None)
    else:
        _print(found, "any namespace" if everywhere else f"namespace {where}", every=pod is None)
    for sentence in dict.fromkeys(found.unseen):
        complaints().print(printable(f"{_PROGRAM}: {sentence}", _LONGEST))
    sys.exit(ExitCode.YES if all(story.is_well for _pod, story in found.stories) else ExitCode.NO)


def _print(found: Answers, where: str, *, every: bool) -> None:
    out = answers()
    if every and not found.stories:
        out.print(f"no pod of {where} waits for a GPU")
    if found.owner:
        names = ", ".join(pod.name.name for pod, _story in found.stories)
        out.print(printable(f"{found.owner} has {_counted(len(found.stories))}: {names}", _LONGEST))
    for _pod, story in found.stories:
        out.print(printable(story.sentence, _LONGEST))


def _counted(pods: int) -> str:
    return f"{pods} pod{'' if pods == 1 else 's'}"


def _print_json(found: Answers, *, one: bool) -> None:
    policy = {"from": found.in_force.source, "why": found.in_force.why}
    around = {"policy": policy, "not_looked_at": list(dict.fromkeys(found.unseen))}
    pods = [_record(pod, story) for pod, story in found.stories]
    if one:
        print_json(pods[0] | around)
    else:
        owner = {"kind": found.owner.kind, "name": found.owner.name} if found.owner else None
        print_json({"owner": owner, "pods": pods} | around)


def _record(pod: PodSeen, story: Story) -> dict[str, object]:
    request = pod.shared.request if pod.shared else None
    return {
        "namespace": pod.name.namespace,
        "pod": pod.name.name,
        "uid": pod.name.uid,
        "phase": pod.phase,
        "well": story.is_well,
        "why": story.why.value,
        "sentence": story.sentence,
        "node": story.node,
        "gpus": list(story.gpus),
        "room": list(story.room),
        "request": request
        and {"memory_mib": request.memory_mib, "thread_percent": request.thread_percent, "gpus": request.gpus},
    }
