"""`kubectl mps doctor` of a whole cluster: the first line of its answer names what is broken, and
what to do."""

import json
from typing import Any

import pytest

from mpsd.operations.doctor.rules.checks import CheckVerdict
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.platform.kube import NODES, PODS, RESOURCE_SLICES, Access, Ask, HttpAnswer
from tests.cli.cluster_world import ClusterWorld, Said
from tests.cli.doctored_cluster import (
    CRDS,
    ENDPOINTS,
    MUTATING,
    NODE,
    SYSTEM,
    VALIDATING,
    DoctoredCluster,
    a_gpu_pod,
    bundle,
    told,
)
from tests.cli.gpu_cluster import machine
from tests.operations.broken_clusters import resource_slice

NOT_HERE = 2  # of CDI, of the policy on agents


@pytest.fixture
def cluster(bare_world: ClusterWorld) -> DoctoredCluster:
    return DoctoredCluster(bare_world)


def ask(cluster: DoctoredCluster, *words: str) -> Said:
    return cluster.world.kubectl_mps("doctor", *words)


def checks(cluster: DoctoredCluster) -> list[dict[str, Any]]:
    return json.loads(ask(cluster, "-o", "json").output)["checks"]


def test_what_is_broken_is_found_in_each_kind_of_object_that_is_read(
    cluster: DoctoredCluster,
) -> None:
    broken_everywhere(cluster)
    found = [one for one in checks(cluster) if one["verdict"] == CheckVerdict.FOUND]
    assert {
        *("definition-old", "pods-not-ready", "node-not-ready", "clocks-apart"),
        *("webhook-unregistered", "webhook-certificate", "webhook-unreachable", "policy-missing"),
        *("slice-stale", "outside-ledger"),
    } <= {one["id"] for one in found}
    said = ask(cluster)
    first = found[0]["wrong"][0]
    assert said.output.partition("\n")[0] == f"{first['what']}; {first['remedy']}"
    assert (said.code, said.errors) == (1, "")


def broken_everywhere(cluster: DoctoredCluster) -> None:
    cluster.world.is_kubernetes("v1.36.2")
    definition = cluster.world.ask(lambda kube: kube.get(CRDS, "mpsnodes.mpsd.io"))
    versions = definition["spec"]["versions"]
    del versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["version"]
    cluster.change(CRDS, "mpsnodes.mpsd.io", {"spec": {"versions": versions}})
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    container = {"name": "mpsd-agent", "restartCount": 0, "state": waiting}
    cluster.of_pod("mpsd-agent", containerStatuses=[container])
    condition = {"type": "MPSReady", "status": "False", "reason": "ControlAbsent", "message": "-"}
    cluster.told(100, conditions=[condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}])
    other = bundle()
    cluster.hooks(lambda webhook: webhook["clientConfig"].update(caBundle=other), MUTATING)
    cluster.change(MUTATING, "mpsd-webhook", {"metadata": {"annotations": told(3.5 / 24)}})
    cluster.change(ENDPOINTS, "mpsd-webhook", {"subsets": None}, SYSTEM)
    asks = [{"name": "asks", "expression": "true"}]
    cluster.hooks(lambda webhook: webhook.update(matchConditions=asks), VALIDATING)
    cluster.create(RESOURCE_SLICES, resource_slice())
    sly = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    spec = {"nodeName": NODE, "containers": [sly]}
    cluster.create(PODS, {"metadata": {"name": "sly"}, "spec": spec}, "default")


# -- and all of it


def test_where_nothing_is_wrong_all_is_well(cluster: DoctoredCluster) -> None:
    cluster.create(PODS, a_gpu_pod(), "default")
    said = ask(cluster)
    made = len(CLUSTER_CHECKS) - NOT_HERE - 2  # without those of claims
    assert said == Said(0, f"all is well: {made} checks\n", "")
    assert "webhook-unreachable: API servers reach the webhook" in ask(cluster, "-v").output


def test_a_cluster_without_mpsd_is_told_so(bare_world: ClusterWorld) -> None:
    said = bare_world.kubectl_mps("doctor")
    assert said.output.startswith(
        "the namespace mpsd-system does not exist: mpsd is not installed; install it"
    )
    assert said.code == 1


def test_with_names_only_those_nodes_are_looked_at(cluster: DoctoredCluster) -> None:
    cluster.create(NODES, machine("gpu-c1"))
    assert ask(cluster, NODE).code == 0
    assert ask(cluster).code == 1
    silent = ask(cluster, "gpu-c1")
    assert silent.code == 1
    assert silent.output.startswith(
        "gpu-c1 is labelled for mpsd but has not reported yet (MPSNode)"
    )


def test_an_api_server_that_does_not_answer_is_said_once(cluster: DoctoredCluster) -> None:
    cluster.world.api.stop()
    said = ask(cluster)
    cluster.world.api.start()
    assert (said.code, said.output) == (1, "")
    assert "does not answer" in said.errors


def test_what_may_not_be_read_is_not_known_each_with_the_right_that_is_missing(
    cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Access.send

    def refuse(access: Access, asked: Ask, deadline_s: float, most_bytes: int) -> HttpAnswer:
        if asked.resource.plural in {"nodes", "pods"} and not asked.place:
            return HttpAnswer(403, json.dumps({"message": "forbidden: no such right"}).encode(), "")
        return send(access, asked, deadline_s, most_bytes)

    monkeypatch.setattr(Access, "send", refuse)
    said = ask(cluster)
    told: dict[str, Any] = json.loads(ask(cluster, "-o", "json").output)
    unknown = {
        check["id"]: check["why"]
        for check in told["checks"]
        if check["verdict"] == CheckVerdict.UNKNOWN
    }
    assert said.output.startswith(
        "nothing wrong was found, but not known is whether mpsd's pods are ready: "
    )
    assert "lacks the right to list nodes" in unknown["no-node-labelled"]
    assert {"pods-not-ready", "outside-ledger", "not-asked"} < unknown.keys()
    assert said.code == 1
