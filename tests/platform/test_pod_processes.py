"""The pod of a process, by the kernel's word."""

import os
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from mpsd.platform.containers import PodProcesses
from mpsd.platform.rules.cgroups import PodCgroup
from tests.platform.pod_cgroup import PodCgroupHere, needs_cgroups, pod_cgroup
from tests.whole.machine.machine import eventually

pytestmark = needs_cgroups


@pytest.fixture
def pod() -> Iterator[PodCgroupHere]:
    with pod_cgroup() as made:
        yield made


def start_in(pod: PodCgroupHere, *argv: str) -> subprocess.Popen[bytes]:
    """A process that is in the pod from before its exec, and its children with it."""
    process = subprocess.Popen(["sh", "-c", 'read go; exec "$@"', "sh", *argv], stdin=subprocess.PIPE)
    pod.take_in(process.pid)
    assert process.stdin
    process.stdin.close()
    return process


def test_a_process_of_a_container_is_of_its_pod(pod: PodCgroupHere) -> None:
    process = start_in(pod, "sleep", "600")
    try:
        assert PodProcesses().pod_of(process.pid) == PodCgroup(pod.uid, pod.container)
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a pid namespace")
def test_a_process_of_a_nested_pid_namespace_is_of_its_pod_too(pod: PodCgroupHere) -> None:
    """Which is how a container without hostPID is seen from the host, and by NVML."""
    unshare = start_in(pod, "unshare", "--pid", "--fork", "--kill-child", "sleep", "600")
    try:
        (inside,) = eventually(lambda: psutil.Process(unshare.pid).children(), "it has forked")
        assert PodProcesses().pod_of(inside.pid) == PodCgroup(pod.uid, pod.container)
    finally:
        unshare.kill()
        unshare.wait()


def test_a_process_of_the_host_is_of_no_pod() -> None:
    assert PodProcesses().pod_of(os.getpid()) is None


def test_a_process_that_is_gone_is_of_no_pod() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert PodProcesses().pod_of(process.pid) is None
