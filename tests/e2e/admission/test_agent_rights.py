"""What the token of mpsd-agent opens, with the rights in the manifests."""

import asyncio
from pathlib import Path

import pytest

from mpsd.platform.kube import NODES, PODS, Forbidden, Kube, Object, PatchKind
from mpsd.platform.kube_access import open_kube
from tests.e2e.cluster import Cluster
from tests.e2e.objects import pod
from tests.e2e.webhook import Webhook, as_service_account


def test_the_agents_token_annotates_a_pod_and_changes_nothing_else_of_it(
    cluster: Cluster, webhook: Webhook, namespace: str, tmp_path: Path
) -> None:
    cluster.do("apply", "-n", namespace, "-f", "-", given=pod("plain"))
    before = cluster.get("pod", "plain", "-n", namespace)
    (tmp_path / "kubeconfig").write_text(as_service_account(cluster, "mpsd-agent"))
    annotations: Object = {
        "metadata": {"uid": before["metadata"]["uid"], "annotations": {"mpsd.io/gpu": "GPU-1"}}
    }
    image = {
        "spec": {
            "containers": [{"name": before["spec"]["containers"][0]["name"], "image": "other"}]
        }
    }

    async def write(kube: Kube) -> None:
        for patch in annotations, image:
            with pytest.raises(Forbidden):
                await kube.patch(PODS, "plain", patch, PatchKind.STRATEGIC, namespace)
        await kube.patch(
            PODS, "plain", annotations | image, PatchKind.STRATEGIC, namespace, "status"
        )
        with pytest.raises(Forbidden):
            await kube.delete(PODS, "plain", namespace)
        with pytest.raises(Forbidden):
            await kube.patch(NODES, "node1", {"spec": {"unschedulable": True}}, PatchKind.MERGE)

    kube = open_kube(tmp_path / "kubeconfig")
    try:
        asyncio.run(write(kube))
    finally:
        kube.close()
    after = cluster.get("pod", "plain", "-n", namespace)
    assert after["metadata"]["annotations"]["mpsd.io/gpu"] == "GPU-1"
    assert after["spec"]["containers"] == before["spec"]["containers"]
