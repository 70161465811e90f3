"""`kubectl mps drain`, `upgrade` and `uninstall` against a real control daemon, agent, kubelet and
controller."""

import json
from uuid import uuid4

from tests.e2e.cluster import Cluster
from tests.e2e.installation import CONTROL, SYSTEM, Installation
from tests.e2e.plugins import kubectl_mps
from tests.e2e.shares import Pods


def test_gpus_are_emptied_and_put_back(cluster: Cluster, mpsd: Installation, pods: Pods) -> None:
    pods.start("drained", 3, "alloc=1000")
    waited = kubectl_mps(cluster, "drain", mpsd.node, "--timeout", "5s")
    assert waited.code == 1, waited.err
    assert f"left: {pods.namespace}/drained (3 GiB of gpu" in waited.err
    assert "running" in pods.status("drained")["state"]
    done = kubectl_mps(cluster, "drain", mpsd.node, "--evict", "--timeout", "2m")
    assert (done.code, done.out) == (0, f"{mpsd.node}: gpu0 drained, gpu1 drained\n"), done.err
    back = kubectl_mps(cluster, "undrain", mpsd.node)
    assert (back.code, back.out) == (0, f"{mpsd.node}: gpu0 ready, gpu1 ready\n"), back.err
    mpsd.wait_until_offered()
    pods.start("after-undrain", 2)


def test_the_control_daemon_is_replaced_once_nobody_is_left(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    pods.start("held", 3, "alloc=1000")
    (before,) = mpsd.pods("control")
    change = {"spec": {"template": {"metadata": {"annotations": {"mpsd.io/e2e": uuid4().hex}}}}}
    cluster.do("patch", "daemonset", CONTROL, "-n", SYSTEM, "-p", json.dumps(change))
    stopped = kubectl_mps(cluster, "upgrade", "--timeout", "5s")
    assert stopped.code == 1, stopped.err
    assert (
        "the old control pod still runs; still cordoned by this upgrade: gpu0, gpu1\n"
        in stopped.err
    )
    assert "running" in pods.status("held")["state"]
    assert mpsd.pods("control")[0]["metadata"]["uid"] == before["metadata"]["uid"]
    done = kubectl_mps(cluster, "upgrade", "--evict", "--timeout", "2m")
    assert done.code == 0, done.err
    (after,) = mpsd.pods("control")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert not cluster.get("mpsnode", mpsd.node)["spec"].get("cordoned")
    assert kubectl_mps(cluster, "upgrade").code == 0
    mpsd.wait_until_offered()
    pods.start("after-upgrade", 2)
