"""`kubectl mps bundle`: a support archive of a cluster, with nothing secret in it."""

from mpsd.operations.bundle.cluster import ClusterBundle
from mpsd.operations.bundle.verbs import Output, Put, bundle_to
from mpsd.operations.doctor.verbs import record
from mpsd.platform.kube import Kube
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames


def bundle(
    nodes: NodeNames = None,
    output: Output = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Gather what somebody who helps needs to know of mpsd in a cluster, in one file that only you may read.

    In it: what `kubectl mps doctor` says, MPSNodes, mpsd's DaemonSets, Deployments and pods with their logs (those from
    before a restart too), events of mpsd, webhook configurations, labels, conditions and resources of mpsd's nodes, the
    ConfigMap with the policy. With names of nodes, what is of one node is of these alone. INDEX.txt says what each part
    is, what was cut (2 MiB a part, its end; 64 MiB in all), and what could not be had and why.

    Not in it: Secrets, which are not asked for, pods of others, tokens, keys, your kubeconfig. Of objects and logs it
    takes the fields that are known to be harmless; [left out] is in the place of other values. Look through it before
    you send it. What only a node knows, `mpsd bundle` gathers there.

    Exits with 0 when the file is written, 1 when the cluster cannot be asked, 2 when there is no such node; 130 after
    Ctrl-C, with nothing left.

        kubectl mps bundle
        kubectl mps bundle gpu-a1 -o for-support.tar.gz
    """
    cluster = ClusterAccess("kubectl mps bundle", kubeconfig, context)
    with bundle_to(output, "kubectl mps bundle", "a cluster") as put:
        cluster.ask(lambda kube: _gather(kube, nodes or [], put))


async def _gather(kube: Kube, nodes: list[str], put: Put) -> None:
    async for part in ClusterBundle(kube, nodes, record).parts():
        put(part)
