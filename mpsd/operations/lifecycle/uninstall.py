"""`kubectl mps uninstall`: removes mpsd from a cluster in which no GPU is in use.

An object is mpsd's by its label alone. Nothing is deleted but what was found and shown, by uid, in
the order of `Stage`; a stage's pods are gone before the next. Namespaces stay: others may have
something in them.

Rights of whoever does it: list of every kind, and delete of what mpsd is made of; an administrator
of the cluster.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.names import AGENT, CONTROL, LABEL, NAME_LABEL, NAMESPACE, OURS, PRODUCT
from mpsd.model.problem import InvalidInput
from mpsd.operations.lifecycle.drain import (
    NotDone,
    ProgressReporter,
    answer,
    ask,
    looks,
    read_seconds,
    say,
)
from mpsd.operations.lifecycle.rules.emptying import Stage, Thing, in_order, in_use
from mpsd.platform import kube as api
from mpsd.platform.command_line import flag, option, takes
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.kube import (
    NODES,
    PODS,
    Conflict,
    Forbidden,
    Kube,
    KubeError,
    NotFound,
    PatchKind,
    Resource,
    ResourceKind,
)
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.status.cluster import NotInstalled, look
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG
from mpsd.status.rules.mpsnode import labels_patch

_OURS_NAMED = f"{LABEL}={PRODUCT},{NAME_LABEL}"
_MUST_BE_LISTED = {
    "",
    "apps",
    "admissionregistration.k8s.io",
    "rbac.authorization.k8s.io",
    "apiextensions.k8s.io",
}


@dataclass(frozen=True, slots=True)
class Installation:
    #: In the order of their deletion.
    things: Sequence[Thing]
    #: Who would lose something.
    users: Sequence[str]
    #: What could not be looked for.
    unseen: Sequence[str]


async def find(kube: Kube) -> Installation:
    """What has mpsd's label, but for namespaces and what goes with something else. Forbidden where
    so much cannot be listed that the order would not be safe."""
    kinds, missing = await api.deletable_kinds(kube)
    things = dict[str, Thing]()
    own_groups = set[str]()

    async def take(kind: ResourceKind) -> str:
        """Why it was not searched; empty where it was."""
        try:
            found = await kube.list(kind.resource, query=OURS)
        except KubeError as error:
            if isinstance(error, Forbidden) and kind.group in _MUST_BE_LISTED:
                raise
            return str(error)
        for thing in found:
            of = thing["metadata"]
            if kind.name == "CustomResourceDefinition":
                own_groups.add(thing["spec"]["group"])
            if not of.get("ownerReferences"):
                things[of["uid"]] = Thing(
                    api=kind.resource.api,
                    plural=kind.resource.plural,
                    kind=kind.name,
                    namespace=of.get("namespace", ""),
                    name=of["name"],
                    uid=of["uid"],
                    component=(of.get("labels") or {}).get(NAME_LABEL, ""),
                )
        return ""

    whys = await asyncio.gather(*(take(kind) for kind in kinds if kind.name != "Namespace"))
    unseen = [*missing, *filter(None, whys)]
    # objects of mpsd's own kinds go with the definition
    own = [one for one in things.values() if one.api.partition("/")[0] not in own_groups]
    return Installation(in_order(own), await users(kube), unseen)


async def users(kube: Kube) -> list[str]:
    pods = await kube.list(PODS, query={"labelSelector": f"{_OURS_NAMED}={CONTROL}"})
    daemons = {str(pod["spec"].get("nodeName") or "") for pod in pods} - {""}
    status = ClusterStatus(kube.now, ())
    with suppress(NotInstalled):
        status = await look(kube, ())
    selector = {"labelSelector": f"{_OURS_NAMED}={AGENT}"}
    agents = await kube.list(Resource("apps/v1", "daemonsets"), query=selector)
    return list(in_use(status, daemons, agents=bool(agents)))


async def _remove(kube: Kube, things: Sequence[Thing], timeout_s: float) -> None:
    """NotDone where pods do not go in time."""
    for stage in Stage:
        for thing in things:
            if thing.stage is stage:
                answer(await _deleted(kube, thing))
        if stage in (Stage.SERVERS, Stage.DAEMONS):
            await _until_gone(kube, timeout_s, control=stage is Stage.DAEMONS)
        if stage is Stage.SERVERS:
            await _unlabel(kube)  # there is no agent left to write them again


async def _deleted(kube: Kube, thing: Thing) -> str:
    kind = Resource(thing.api, thing.plural)
    try:
        await kube.delete(kind, thing.name, thing.namespace, uid=thing.uid)
    except NotFound:
        return f"already gone: {thing}"
    except Conflict:
        return f"kept {thing}: it was recreated meanwhile"
    return f"deleted {thing}"


async def _unlabel(kube: Kube) -> None:
    """Removes the labels that agents have written on Nodes."""
    try:
        for node in map(read_kubernetes_node, await kube.list(NODES)):
            if patch := labels_patch(node.labels, {}):
                names = ", ".join(patch["metadata"]["labels"])
                with suppress(NotFound):
                    await kube.patch(NODES, node.name, patch, PatchKind.MERGE)
                    answer(f"removed {names} from Node {node.name}")
    except Forbidden as error:
        names = "mpsd.io/gpu.*, mpsd.io/sharing, mpsd.io/driver-upgrade"
        say(f"labels of Nodes remain ({names}): {error}")


async def _until_gone(kube: Kube, timeout_s: float, *, control: bool) -> None:
    report = ProgressReporter()
    async for left, is_last in looks(partial(_pods, kube, control=control), timeout_s, report):
        if not left:
            return
        report("left", f"waits until they are gone: {', '.join(left)}")
        if is_last:
            raise NotDone(f"still there after {timeout_s:g} s: {', '.join(left)}")


async def _pods(kube: Kube, *, control: bool) -> list[str]:
    """Those that something owns, of the control daemons or all others."""
    left = []
    for pod in await kube.list(PODS, query=OURS):
        metadata = pod["metadata"]
        is_control = metadata["labels"].get(NAME_LABEL) == CONTROL
        if metadata.get("ownerReferences") and is_control is control:
            name = f"pod {metadata['namespace']}/{metadata['name']}"
            left.append(" on ".join(filter(None, (name, pod["spec"].get("nodeName")))))
    return left


_RIGHTS = "this requires an administrator of the cluster, who may list every kind of object"
_REMAINS = (
    f"what remains: the namespace (kubectl delete namespace {NAMESPACE}), labels of nodes"
    " (ack.node.gpu.schedule), MPSReady and numbers of devices in their status:"
    " docs/operations/upgrade-and-drain.md (Uninstall)"
)


@takes(
    flag("--force", help="Proceed even if pods hold GPUs: their programs lose them."),
    option("--timeout", metavar="TIME", help="Time limit for each wait for pods to end."),
    flag("--dry-run", help="Print what would be deleted, and delete nothing."),
    flag("--yes", "-y", help="Do not ask for confirmation."),
    KUBECONFIG,
    CONTEXT,
)
def uninstall(
    *,
    force: bool = False,
    timeout: str = "10m",
    dry_run: bool = False,
    yes: bool = False,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Remove mpsd from the cluster. Refused while a GPU that it shares is in use, or may be.

    Everything with the label app.kubernetes.io/part-of=mpsd is deleted, in an order that leaves
    nothing waiting: webhooks, agents (and the labels that they wrote on Nodes), control daemons
    (which restore the compute modes), the rest, rights, and last the definition of MPSNode; the
    namespace stays. It asks for confirmation; if it stops, the same command continues. Exits with 0
    when all is gone, 1 when not, 2 where it would have to ask and there is no terminal, 130 after
    Ctrl-C.

        kubectl mps uninstall --dry-run
        kubectl mps drain gpu-a1 && kubectl mps uninstall
        kubectl mps uninstall --yes --timeout 20m
    """
    cluster = ClusterAccess("kubectl mps uninstall", kubeconfig, context, _RIGHTS)
    timeout_s = read_seconds(cluster.program, "--timeout", timeout)
    found = cluster.ask(find)
    say(*(f"not searched: {why}" for why in found.unseen))
    if not found.things:
        answer("nothing with the label app.kubernetes.io/part-of=mpsd is in this cluster", _REMAINS)
        return
    if dry_run:
        answer(*map(str, found.things))
    if found.users and not force:
        _refuse(cluster, found.users)
    say(*(f"loses its GPU: {user}" for user in found.users))
    if dry_run:
        return
    if not yes:
        answer(*map(str, found.things))
        _confirm(cluster, len(found.things))
    stays: list[str] = []

    async def uninstall_it(kube: Kube) -> Sequence[str]:
        if not force and (there := await users(kube)):  # who has come since it was asked
            return there
        gone = "what is listed above as deleted is gone"
        stays.append(f"to continue: run the same command again; {gone}")
        await _remove(kube, found.things, timeout_s)
        return ()

    if there := ask(cluster, uninstall_it, stays):
        _refuse(cluster, there)
    answer(_REMAINS)


def _refuse(cluster: ClusterAccess, there: Sequence[str]) -> NoReturn:
    say(f"{cluster.program}: refused, because GPUs are in use, or may be:")
    say(*(f"  {user}" for user in there))
    force = "use --force: these programs then lose their GPU"
    say(f"empty the nodes first (kubectl mps drain NODE), or {force}")
    sys.exit(ExitCode.NO)


def _confirm(cluster: ClusterAccess, number: int) -> None:
    if not sys.stdin.isatty():
        message = "is required without a terminal"
        remedy = "add --yes, or run it on a terminal"
        raise InvalidInput.of(cluster.program, "setting", "--yes", "", message, remedy)
    complaints().print(f"Delete these {number} objects? [y/N] ", end="")
    try:
        typed = input()
    except (EOFError, KeyboardInterrupt):
        typed = ""
        complaints().print()
    if typed.strip().lower() not in {"y", "yes"}:
        say(f"{cluster.program}: nothing was deleted")
        sys.exit(ExitCode.NO)
