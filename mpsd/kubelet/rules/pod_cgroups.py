"""Whose grant the processes in a pod's cgroups have.

One rule: the uid that the API gave a pod is its own. What else a pod says of itself counts only where nobody else says
it: whoever took another's name would have its processes judged by the wrong grant.
"""

import re
from collections import Counter
from collections.abc import Iterable

from mpsd.kubelet.rules.node_pods import NodePod
from mpsd.model.grants import Grant

_STATIC = re.compile(r"[0-9a-f]{32}")  # what kubelet makes of a static pod's file; every uid of the API has dashes


def by_cgroup(grants: Iterable[Grant], pods: Iterable[NodePod]) -> dict[str, str]:
    """From each uid that the cgroups of a pod with a grant may have to the id of its grant.

    A static pod's is said by an annotation, which every user may write. A grant whose pod has no uid yet has no
    processes that anybody could tell from others.
    """
    known = tuple(pods)
    ids = {grant.pod.uid: grant.id for grant in grants if grant.pod and grant.pod.uid}
    said = Counter(pod.static_uid for pod in known)
    static = [pod for pod in known if _STATIC.fullmatch(pod.static_uid) and said[pod.static_uid] == 1]
    return {pod.static_uid: ids[pod.uid] for pod in static if pod.uid in ids} | ids
