"""What the tests must know of a cluster's version."""

from dataclasses import dataclass

import pytest

from tests.e2e.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Version:
    """scheduler, plain: the overlay with the second scheduler, and what to apply without it.

    components: what `scheduler` needs beside it.

    pods_outlive_reboot: kubelet starts the containers of a pod again though its device plugin has not registered yet;
    from 1.27 on it ends the pod (kubernetes/kubernetes#116376), unless it takes the container for a running one.
    """

    scheduler: str
    components: tuple[str, ...]
    plain: str
    pods_outlive_reboot: bool


_OLD = "overlays/before-1.30"
_FROM_MINOR = {
    20: Version("overlays/scheduler-1.20", (), _OLD, pods_outlive_reboot=True),
    23: Version("overlays/scheduler-1.23", (), _OLD, pods_outlive_reboot=True),
    25: Version("overlays/scheduler", ("components/before-1.30",), _OLD, pods_outlive_reboot=True),
    27: Version("overlays/scheduler", ("components/before-1.30",), _OLD, pods_outlive_reboot=False),
    30: Version("overlays/scheduler", (), "", pods_outlive_reboot=False),
}


def needs(cluster: Cluster, minor: int, what: str) -> None:
    """Skips the test on Kubernetes older than 1.`minor`."""
    if cluster.minor < minor:
        pytest.skip(f"{what}: of Kubernetes 1.{minor} and newer")


def version_of(cluster: Cluster) -> Version:
    return _FROM_MINOR[max(first for first in _FROM_MINOR if first <= cluster.minor)]
