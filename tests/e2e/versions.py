"""What the tests must know of a cluster's version."""

import json
from dataclasses import dataclass

from tests.e2e.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Version:
    """overlay: the one of manifests/ with the second scheduler.

    pods_outlive_reboot: kubelet starts the containers of a pod again though its device plugin has not registered yet;
    from 1.27 on it ends the pod (kubernetes/kubernetes#116376).
    """

    overlay: str
    pods_outlive_reboot: bool


_FROM_MINOR = {
    20: Version("scheduler-1.20", pods_outlive_reboot=True),
    23: Version("scheduler-1.23", pods_outlive_reboot=True),
    25: Version("scheduler", pods_outlive_reboot=True),
    27: Version("scheduler", pods_outlive_reboot=False),
}


def version_of(cluster: Cluster) -> Version:
    version: str = json.loads(cluster.do("version", "-o", "json").out)["serverVersion"]["gitVersion"]
    minor = int(version.split(".")[1])
    return _FROM_MINOR[max(first for first in _FROM_MINOR if first <= minor)]
