"""Looks at a cluster for `kubectl mps top`.

One rule: the first look may end the program with what is wrong; a later one says why nothing is heard.
"""

from collections.abc import Callable, Sequence

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.problem import InvalidInput
from mpsd.status.cluster_answers import Cluster
from mpsd.status.cluster_glance import Glance
from mpsd.status.rules.top_rows import Top, cluster_top


def look_at(
    nodes: Sequence[str],
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    begun: Glance | None = None,
) -> Callable[[], Top]:
    """begun: the first look, where it is under way already."""
    cluster = Cluster("kubectl mps top", kubeconfig, context)
    looks = 0

    def look() -> Top:
        nonlocal looks
        looks += 1
        first = looks == 1
        glance = begun if begun and first else cluster.glance(nodes)
        status = glance.status() or (cluster.looked(nodes) if first else _heard(cluster, nodes))
        return cluster_top(status, namespace)

    return look


def _heard(cluster: Cluster, nodes: Sequence[str]) -> ClusterStatus:
    from mpsd.platform.kube import KubeError
    from mpsd.status.cluster_look import look
    from mpsd.status.top_show import Away

    try:
        return cluster.answer(lambda kube: look(kube, nodes))
    except KubeError as error:
        raise Away(str(error)) from None
    except InvalidInput as error:
        raise Away("; ".join(problem.fault for problem in error.problems)) from None
