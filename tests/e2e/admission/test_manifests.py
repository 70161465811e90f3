"""What the chart makes, as kubectl applies it to an API server of any version."""

import copy
import json
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
import yaml

from mpsd.status.rules.mpsnode import UPGRADE_LABEL
from tests.e2e.cluster import Cluster, Object, Said
from tests.e2e.installation import AGENT, CONTROL
from tests.e2e.waiting import eventually
from tests.e2e.webhook import Webhook
from tests.manifests.rendering import OLD, PLAIN, SINCE, VALUES, named, rendered

_NOT_OURS = {
    "Certificate": "cert-manager.io",
    "Issuer": "cert-manager.io",
    "PodMonitor": "monitoring.coreos.com",
    "PrometheusRule": "monitoring.coreos.com",
}
# kubectl's own, of a dry run of --server-side over what was applied without it.
_OF_THE_DRY_RUN = "Warning: failed to migrate kubectl.kubernetes.io/last-applied-configuration"


def _meant_for(minor: int) -> list[str]:
    return [f"{name}@{minor}" for name in (PLAIN, *VALUES) if SINCE.get(name, 0) <= minor]


def _objects(places: list[str]) -> list[Object]:
    """Each once, those that come with a version of their own as often as they differ."""
    found = {
        json.dumps(thing, sort_keys=True): thing for place in places for thing in rendered(place)
    }
    return [
        _beside_the_installed(thing) for thing in found.values() if thing["kind"] not in _NOT_OURS
    ]


def _beside_the_installed(thing: Object) -> Object:
    """The webhook of these tests is registered by its URL, which no service can be merged with."""
    if not thing["kind"].endswith("WebhookConfiguration"):
        return thing
    return thing | {"metadata": thing["metadata"] | {"name": "mpsd-e2e"}}


def _applied(cluster: Cluster, things: list[Object], *options: str) -> Said:
    return cluster.kubectl(
        "apply", "--dry-run=server", "-f", "-", *options, given=yaml.safe_dump_all(things)
    )


@pytest.mark.parametrize(
    "options", [(), ("--server-side", "--force-conflicts")], ids=["client", "server"]
)
def test_the_api_server_takes_what_every_values_file_for_it_makes_and_warns_of_nothing(
    cluster: Cluster, webhook: Webhook, options: tuple[str, ...]
) -> None:
    things = _objects(_meant_for(cluster.minor))
    said = _applied(cluster, things, *options)
    assert [line for line in said.err.splitlines() if not line.startswith(_OF_THE_DRY_RUN)] == []
    assert len(said.out.splitlines()) == len(things)


@pytest.mark.parametrize(
    "options", [(), ("--server-side", "--force-conflicts")], ids=["client", "server"]
)
def test_what_is_meant_for_other_versions_is_refused_before_anything_is_written(
    cluster: Cluster, webhook: Webhook, options: tuple[str, ...]
) -> None:
    """Kubernetes before 1.30 knows no field for AppArmor: kubectl says so."""
    said = _applied(cluster, [named(PLAIN, "DaemonSet", "mpsd-agent")], *options)
    assert said.ok is (cluster.minor >= 30)
    assert said.ok or 'unknown field "appArmorProfile"' in said.err


def test_the_agent_is_not_confined_by_apparmor(cluster: Cluster, webhook: Webhook) -> None:
    template = cluster.get("daemonset", "mpsd-agent", "-n", "mpsd-system")["spec"]["template"]
    security = template["spec"]["containers"][0]["securityContext"]
    annotations = template["metadata"].get("annotations", {})
    key = "container.apparmor.security.beta.kubernetes.io/agent"
    assert (security.get("appArmorProfile"), annotations.get(key)) == (
        ({"type": "Unconfined"}, None) if cluster.minor >= 30 else (None, "unconfined")
    )


@pytest.fixture
def upgraded_node(cluster: Cluster) -> Iterator[str]:
    name = f"e2e-{uuid4().hex[:8]}"
    metadata = {"name": name, "labels": {"mpsd.io/e2e": name}}
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}  # or no pod would be bound there
    status = {"capacity": amounts, "allocatable": amounts}
    thing = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
    cluster.do("create", "-f", "-", given=thing)
    try:
        yield name
    finally:
        cluster.do("delete", "node", name)


def test_an_upgrade_of_the_driver_removes_both_daemon_sets_pods_from_an_unused_node_alone(
    cluster: Cluster, webhook: Webhook, upgraded_node: str
) -> None:
    state = "nvidia.com/gpu-driver-upgrade-state"
    with cluster.namespace(exempt=True) as namespace:
        for name in (CONTROL, AGENT):
            place = PLAIN if cluster.minor >= 30 else OLD
            thing = copy.deepcopy(named(place, "DaemonSet", name))
            thing["metadata"]["namespace"] = namespace
            pod = thing["spec"]["template"]["spec"]
            pod |= {"nodeSelector": {"mpsd.io/e2e": upgraded_node}, "serviceAccountName": "default"}
            pod["terminationGracePeriodSeconds"] = 0  # no kubelet ends them
            cluster.do("create", "-f", "-", given=thing)

        def is_wanted(*numbers: int) -> bool:
            each = (cluster.get("daemonset", name, "-n", namespace) for name in (CONTROL, AGENT))
            return numbers == tuple(
                one.get("status", {}).get("desiredNumberScheduled") for one in each
            )

        for labels, numbers in (
            ([f"{state}=upgrade-done"], [1, 1]),
            ([f"{state}=pod-restart-required"], [1, 1]),  # somebody uses the GPUs
            ([f"{state}=drain-required", f"{UPGRADE_LABEL}=drained"], [0, 1]),
            ([f"{state}=pod-restart-required"], [0, 0]),
            ([f"{state}=validation-required"], [0, 1]),
            ([f"{state}=upgrade-done", f"{UPGRADE_LABEL}-"], [1, 1]),
        ):
            cluster.do("label", "node", upgraded_node, "--overwrite", *labels)
            eventually(partial(is_wanted, *numbers), f"{numbers} at {labels}")
