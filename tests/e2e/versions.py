"""What the tests must know of a cluster's version."""

import pytest

from tests.e2e.cluster import Cluster


def needs(cluster: Cluster, minor: int, what: str) -> None:
    """Skips the test on Kubernetes older than 1.`minor`."""
    if cluster.minor < minor:
        pytest.skip(f"{what}: of Kubernetes 1.{minor} and newer")


def pods_outlive_reboot(cluster: Cluster) -> bool:
    """kubelet starts the containers of a pod again though its device plugin has not registered yet; from 1.27 on it
    ends the pod (kubernetes/kubernetes#116376), unless it takes the container for a running one."""
    return cluster.minor < 27
