"""GPUs emptied and put back, and the control daemon replaced, with a program on it."""

import json
from uuid import uuid4

from tests.e2e.cluster import Cluster
from tests.e2e.installation import CONTROL, SYSTEM
from tests.e2e.plugins import kubectl_mps
from tests.e2e.shares import Pods
from tests.e2e_gpu.installation import GpuInstallation


def test_gpus_are_emptied_and_put_back(cluster: Cluster, mpsd: GpuInstallation, pods: Pods) -> None:
    pods.start("drained", 3, "alloc=1000")
    waited = kubectl_mps(cluster, "drain", mpsd.node, "--timeout", "2s")
    assert waited.code == 1, waited.err
    assert f"left: {pods.namespace}/drained (3 GiB of gpu" in waited.err
    pods.assert_holds("drained")
    done = kubectl_mps(cluster, "drain", mpsd.node, "--evict", "--timeout", "1m")
    assert done.code == 0, done.err
    back = kubectl_mps(cluster, "undrain", mpsd.node)
    assert back.code == 0, back.err
    print(f"\n{waited.err}{done.out}{back.out}")
    mpsd.wait_until_offered()
    pods.start("after-undrain", 2)


def test_the_control_daemon_is_replaced_once_nobody_is_left(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods
) -> None:
    pods.start("held", 3, "alloc=1000")
    (before,) = mpsd.pods("control")
    change = {"spec": {"template": {"metadata": {"annotations": {"mpsd.io/e2e": uuid4().hex}}}}}
    cluster.do("patch", "daemonset", CONTROL, "-n", SYSTEM, "-p", json.dumps(change))
    stopped = kubectl_mps(cluster, "upgrade", "--timeout", "2s")
    assert stopped.code == 1, stopped.err
    assert "the old control pod still runs" in stopped.err
    pods.assert_holds("held")
    done = kubectl_mps(cluster, "upgrade", "--evict", "--timeout", "2m")
    assert done.code == 0, done.err
    print(f"\n{stopped.err}{done.out}{done.err}")
    (after,) = mpsd.pods("control")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    mpsd.wait_until_offered()
    pods.start("after-upgrade", 2)
