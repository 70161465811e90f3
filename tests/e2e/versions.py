"""What the tests must know of a cluster's version."""

import json
from dataclasses import dataclass

import pytest

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


def needs(cluster: Cluster, minor: int, what: str) -> None:
    """Skips the test on Kubernetes older than 1.`minor`."""
    if _minor(cluster) < minor:
        pytest.skip(f"{what}: of Kubernetes 1.{minor} and newer")


def _minor(cluster: Cluster) -> int:
    version: str = json.loads(cluster.do("version", "-o", "json").out)["serverVersion"]["gitVersion"]
    return int(version.split(".")[1])


def version_of(cluster: Cluster) -> Version:
    minor = _minor(cluster)
    return _FROM_MINOR[max(first for first in _FROM_MINOR if first <= minor)]
