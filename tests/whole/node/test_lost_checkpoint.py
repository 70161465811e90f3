"""A kubelet that has lost its checkpoint, and with it who holds which devices."""

import pytest

from mpsd.simulator.kubelet.devices import CHECKPOINT
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, pod


def forget(cluster: Cluster, left: bytes | None) -> None:
    """Restarts kubelet with this in place of its checkpoint; None: with none."""
    before = len(cluster.agent.logged("registered"))
    cluster.kubelet.kill()
    checkpoint = cluster.kubelet_folder / "device-plugins" / CHECKPOINT
    checkpoint.unlink()
    if left is not None:
        checkpoint.write_bytes(left)
    cluster.kubelet = cluster.start_kubelet()
    eventually(lambda: len(cluster.agent.logged("registered")) >= before + 2, "it has both again")
    cluster.until_offered()


@pytest.mark.parametrize(("old", "left"), [("old", None), ("older", b"{")])
def test_what_a_kubelet_has_forgotten_is_given_to_nobody_else(
    cluster: Cluster, old: str, left: bytes | None
) -> None:
    program = cluster.running(old, 14, 30)
    forget(cluster, left)

    cluster.running("small", 6, 30)
    shares = {name: cluster.grant(name).memory_mib for name in (old, "small")}
    assert shares == {old: 14 * 1024, "small": 6 * 1024}

    cluster.apply(pod("large", 8, nodeName="node1"))  # past the scheduler, which counts
    eventually(lambda: cluster.phase("large") == "Failed", "kubelet refuses it")
    for name in ("node1", old):
        eventually(lambda name=name: cluster.events("GPUDevicesGivenTwice", name), f"{name} hears")
    *_earlier, why = eventually(
        lambda: [one for one in cluster.events("AllocationRefused", "large") if old in one],
        "it hears why",
    )
    assert f"default/{old}" in why
    assert cluster.phase(old) == "Running"
    assert program.heard("ready")
    assert {one.pod for one in cluster.node().grants} == {f"default/{old}", "default/small"}
