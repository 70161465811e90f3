"""`kubectl mps doctor`: what keeps MPS from starting or from holding in a cluster, each with the one thing to do."""

from mpsd.operations.doctor.cluster import look
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.facts import diagnose
from mpsd.operations.doctor.verbs import Verbose, answer
from mpsd.platform.console import Format
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames


def doctor(
    nodes: NodeNames = None,
    verbose: Verbose = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say what keeps MPS from starting or from holding in a cluster, the worst first, and the one thing to do.

    It only reads, with the rights that you have: what you may not see is said not to be known, with the right that is
    missing. With names of nodes, what is of one node is looked at on these alone.

    Exits with 0 when all is well, 1 when something was found or cannot be known, 2 when there is no such node.

        kubectl mps doctor
        kubectl mps doctor gpu-a1 -v
        kubectl mps doctor -o json | jq '.checks[] | select(.verdict == "found")'

    What only a node can see, `mpsd doctor` says there.
    """
    facts = ClusterAccess("kubectl mps doctor", kubeconfig, context).ask(lambda kube: look(kube, nodes or ()))
    answer(diagnose(facts, CLUSTER_CHECKS), output, verbose=verbose)
