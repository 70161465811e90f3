"""`kubectl mps doctor` on broken clusters: the first line of its answer names what is broken, and what to do."""

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest
import urllib3
import yaml

from mpsd.model.names import LIMITS
from mpsd.operations.doctor.rules.checks import CheckVerdict
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.platform.kube import DEVICE_CLASSES, MPS_NODES, NODES, PODS, RESOURCE_SLICES, Access, Ask, Resource
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, shipped_folder
from mpsd.platform.rules.certificates import ANNOTATION
from mpsd.simulator.api_server import requests
from tests.cli.cluster_world import ClusterWorld, Said
from tests.cli.doctored_cluster import (
    CRDS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINTS,
    MUTATING,
    NODE,
    SYSTEM,
    VALIDATING,
    DoctoredCluster,
    a_gpu_pod,
    bundle,
    own_pod,
    told,
)
from tests.cli.gpu_cluster import gpu_pod, machine
from tests.manifests.rendering import MANIFESTS
from tests.operations.broken_clusters import SHARED, resource_slice

_DAY = datetime.timedelta(days=1)
ROLES = Resource("rbac.authorization.k8s.io/v1", "clusterroles")


@pytest.fixture
def cluster(bare_world: ClusterWorld) -> DoctoredCluster:
    return DoctoredCluster(bare_world)


def ask(cluster: DoctoredCluster, *words: str) -> Said:
    return cluster.world.kubectl_mps("doctor", *words)


def found(cluster: DoctoredCluster) -> list[str]:
    told: dict[str, Any] = json.loads(ask(cluster, "-o", "json").output)
    return [check["id"] for check in told["checks"] if check["verdict"] == CheckVerdict.FOUND]


# -- each row, broken ------------------------------------------------------------------------------------------------

Break = Callable[[DoctoredCluster], None]
ROWS: dict[str, Break] = {}


def row(check: str) -> Callable[[Break], Break]:
    def keep(breaks: Break) -> Break:
        ROWS[check] = breaks
        return breaks

    return keep


@row("definition-missing")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(CRDS, "mpsnodes.mpsd.io")


@row("workload-missing")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(DAEMON_SETS, "mps-control-daemon", SYSTEM)


@row("rights-missing")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings"), "mpsd-agent")


@row("pod-not-running")
def _(cluster: DoctoredCluster) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    cluster.of_pod("mpsd-agent", containerStatuses=[{"name": "mpsd-agent", "restartCount": 0, "state": waiting}])


@row("pods-short")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(DEPLOYMENTS, "mpsd-webhook", {"status": {"readyReplicas": 1}}, SYSTEM, "status")


@row("pod-restarting")
def _(cluster: DoctoredCluster) -> None:
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    status = {"name": "mpsd-control", "restartCount": 7, "state": {"running": {}}, "lastState": last}
    cluster.of_pod("mpsd-control", containerStatuses=[status])


@row("no-node-labelled")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"metadata": {"labels": {"ack.node.gpu.schedule": None}}})


@row("gpus-unshared")
def _(cluster: DoctoredCluster) -> None:
    cluster.create(NODES, {"metadata": {"name": "gpu-b1", "labels": {"nvidia.com/gpu.present": "true"}}})


@row("no-gpus")
def _(cluster: DoctoredCluster) -> None:
    message = "the driver shows no GPU that MPS can share"
    condition = {"type": "MPSReady", "status": "False", "reason": "NoGPUs", "message": message}
    cluster.told(conditions=[condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}], gpus=[], domains=[])


@row("mpsnode-missing")
def _(cluster: DoctoredCluster) -> None:
    cluster.create(NODES, machine("gpu-c1"))


@row("mpsnode-stale")
def _(cluster: DoctoredCluster) -> None:
    cluster.told(3601)


@row("domain-not-ready")
def _(cluster: DoctoredCluster) -> None:
    domains = cluster.node()["status"]["domains"]
    domains[1] |= {"state": "wedged", "reason": "no answer to get_server_list"}
    cluster.told(domains=domains)


@row("node-not-ready")
def _(cluster: DoctoredCluster) -> None:
    message = "no control daemon has reported gpu0"
    condition = {"type": "MPSReady", "status": "False", "reason": "ControlAbsent", "message": message}
    cluster.told(conditions=[condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}])


@row("clocks-apart")
def _(cluster: DoctoredCluster) -> None:
    cluster.told(100)


@row("version-skew")
def _(cluster: DoctoredCluster) -> None:
    domains = cluster.node()["status"]["domains"]
    domains[0]["version"] = "9.0"
    cluster.told(domains=domains)


@row("version-behind")
def _(cluster: DoctoredCluster) -> None:
    domains = cluster.node()["status"]["domains"]
    domains[0]["version"] = "0.0.9"
    cluster.told(domains=domains)


@row("image-skew")
def _(cluster: DoctoredCluster) -> None:
    containers = [{"name": "mpsd-webhook", "image": "registry.example/mpsd:0"}]
    cluster.change(PODS, "mpsd-webhook-x", {"spec": {"containers": containers}}, SYSTEM)


@row("cordon-forgotten")
def _(cluster: DoctoredCluster) -> None:
    node = cluster.node()["status"]
    since = datetime.datetime.now(datetime.UTC) - 3 * _DAY
    node["domains"][1] |= {"state": "drained", "since": since.strftime("%Y-%m-%dT%H:%M:%SZ")}
    cluster.change(MPS_NODES, NODE, {"spec": {"cordoned": [node["gpus"][1]["uuid"]]}})
    cluster.told(domains=node["domains"])


@row("webhook-unregistered")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(MUTATING, "mpsd-webhook")


@row("webhook-authority")
def _(cluster: DoctoredCluster) -> None:
    other = bundle()
    cluster.hooks(lambda webhook: webhook["clientConfig"].update(caBundle=other), MUTATING)


@row("webhook-certificate")
def _(cluster: DoctoredCluster) -> None:
    ended = bundle(-86400.0, "old")
    cluster.hooks(lambda webhook: webhook["clientConfig"].update(caBundle=ended))


@row("webhook-serving")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(MUTATING, "mpsd-webhook", {"metadata": {"annotations": told(3.5 / 24)}})


@row("webhook-unreachable")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(ENDPOINTS, "mpsd-webhook", {"subsets": None}, SYSTEM)


@row("webhook-fail-open")
def _(cluster: DoctoredCluster) -> None:
    injected = {"annotations": {"cert-manager.io/inject-ca-from": "mpsd-system/mpsd-webhook"}}
    cluster.change(VALIDATING, "mpsd-webhook", {"metadata": injected})


def with_claims(cluster: DoctoredCluster, *but: str, version: str = "v1.36.2") -> None:
    """As components/dra and the agent have it, without the objects of these kinds."""
    cluster.world.is_kubernetes(version)
    for role, file in (("mpsd-agent", "rights"), ("mpsd-webhook", "webhook-rights")):
        patch = yaml.safe_load((MANIFESTS / "components" / "dra" / f"{file}.yaml").read_text())
        rules = cluster.world.ask(lambda kube, role=role: kube.get(ROLES, role))["rules"]
        cluster.change(ROLES, role, {"rules": [*rules, *(one["value"] for one in patch)]})
    if "pods" not in but:
        (container,) = own_pod("mpsd-agent")["spec"]["containers"]
        container["env"] = [{"name": "MPSD_DRA", "value": "gpu.mpsd.io"}]
        cluster.change(PODS, "mpsd-agent-x", {"spec": {"containers": [container]}}, SYSTEM)
    device_class, offered = {"metadata": {"name": "mps.mpsd.io"}, "spec": {}}, resource_slice()
    for kind, thing in ((DEVICE_CLASSES, device_class), (RESOURCE_SLICES, offered)):
        if kind.plural not in but:
            cluster.create(kind, thing)


@row("claims-unsupported")
def _(cluster: DoctoredCluster) -> None:
    with_claims(cluster, version="v1.33.1")


@row("slice-missing")
def _(cluster: DoctoredCluster) -> None:
    with_claims(cluster, "resourceslices")


@row("slice-stale")
def _(cluster: DoctoredCluster) -> None:
    with_claims(cluster, "pods")


@row("device-class-missing")
def _(cluster: DoctoredCluster) -> None:
    with_claims(cluster, "deviceclasses")


@row("requests-unserved")
def _(cluster: DoctoredCluster) -> None:
    files = {name: (shipped_folder() / name).read_text() for name in (POLICY_FILE, GPU_FACTS_FILE)}
    asks, gives = "claims_for_requests: false", "claims_for_requests: true"
    assert asks in files[POLICY_FILE]
    files[POLICY_FILE] = files[POLICY_FILE].replace(asks, gives)
    cluster.create(Resource("v1", "configmaps"), {"metadata": {"name": LIMITS}, "data": files}, SYSTEM)


@row("claims-left")
def _(cluster: DoctoredCluster) -> None:
    cluster.told(grants=[SHARED])


@row("no-scheduler")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(DEPLOYMENTS, "mpsd-scheduler", SYSTEM)
    cluster.create(PODS, gpu_pod("train-0", 4) | {"status": {"phase": "Pending"}}, "default")


@row("other-plugin")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"status": {"capacity": {"nvidia.com/gpu": "2"}}}, "", "status")


@row("nvidia-mps")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"metadata": {"labels": {"nvidia.com/mps.capable": "true"}}})


@row("driver-upgrade")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"metadata": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}}})


@row("nvidia-validator")
def _(cluster: DoctoredCluster) -> None:
    labels = {"nvidia.com/gpu.deploy.operator-validator": "true"}
    cluster.change(NODES, NODE, {"metadata": {"labels": labels}})


@row("mig-wanted")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"metadata": {"labels": {"nvidia.com/mig.config.state": "failed"}}})


@row("startup-taint")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"spec": {"taints": [{"key": "mpsd.io/not-ready", "effect": "NoSchedule"}]}})


@row("whole-gpus")
def _(cluster: DoctoredCluster) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.create(
        PODS, {"metadata": {"name": "whole"}, "spec": {"nodeName": NODE, "containers": [container]}}, "default"
    )


@row("outside-books")
def _(cluster: DoctoredCluster) -> None:
    container = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    cluster.create(
        PODS, {"metadata": {"name": "sly"}, "spec": {"nodeName": NODE, "containers": [container]}}, "default"
    )


@row("not-asked")
def _(cluster: DoctoredCluster) -> None:
    pod = a_gpu_pod(schedulerName="default-scheduler")
    pod["metadata"]["annotations"] = {}
    cluster.create(PODS, pod, "default")


def with_extender(cluster: DoctoredCluster, *command: str) -> None:
    """As the overlay scheduler-extender has it, beside a kube-scheduler of kubeadm's with this command."""
    labels = {"app.kubernetes.io/name": "mpsd-scheduler", "app.kubernetes.io/part-of": "mpsd"}
    template = {"metadata": {"labels": labels}, "spec": {"nodeSelector": {"no": "node"}, "containers": []}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    cluster.create(DAEMON_SETS, {"metadata": {"name": "mpsd-scheduler", "labels": labels}, "spec": spec}, SYSTEM)
    if command:
        container = {"name": "kube-scheduler", "image": "kube-scheduler", "command": list(command)}
        metadata = {"name": "kube-scheduler-cp-1", "labels": {"component": "kube-scheduler"}}
        cluster.create(PODS, {"metadata": metadata, "spec": {"containers": [container]}}, "kube-system")


@row("scheduler-unconfigured")
def _(cluster: DoctoredCluster) -> None:
    with_extender(cluster, "kube-scheduler", "--kubeconfig=/etc/kubernetes/scheduler.conf")


def of_the_agent(cluster: DoctoredCluster, **variable: str) -> None:
    thing = cluster.world.ask(lambda kube: kube.get(DAEMON_SETS, "mpsd-agent", SYSTEM))
    containers = thing["spec"]["template"]["spec"]["containers"]
    for one in containers[0]["env"]:
        one |= {"value": variable[one["name"]]} if one["name"] in variable else {}
    cluster.change(DAEMON_SETS, "mpsd-agent", {"spec": {"template": {"spec": {"containers": containers}}}}, SYSTEM)


@row("no-cdi")
def _(cluster: DoctoredCluster) -> None:
    of_the_agent(cluster, MPSD_DEVICE_LIST_STRATEGY="cdi-annotations")
    seen = {"containerRuntimeVersion": "containerd://1.6.20", "kubeletVersion": "v1.20.2"}
    cluster.change(NODES, NODE, {"status": {"nodeInfo": seen}}, "", "status")


@row("policy-missing")
def _(cluster: DoctoredCluster) -> None:
    cluster.hooks(lambda one: one.update(matchConditions=[{"name": "asks", "expression": "true"}]), VALIDATING)


@row("definition-old")
def _(cluster: DoctoredCluster) -> None:
    thing = cluster.world.ask(lambda kube: kube.get(CRDS, "mpsnodes.mpsd.io"))
    versions = thing["spec"]["versions"]
    del versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["version"]
    cluster.change(CRDS, "mpsnodes.mpsd.io", {"spec": {"versions": versions}})


@pytest.mark.parametrize("check", ROWS)
def test_the_first_line_names_what_is_broken_and_what_to_do(cluster: DoctoredCluster, check: str) -> None:
    ROWS[check](cluster)
    said = ask(cluster)
    first = json.loads(ask(cluster, "-o", "json").output)["checks"][0]
    assert (first["id"], first["verdict"]) == (check, CheckVerdict.FOUND)
    assert said.output.partition("\n")[0] == f"{first['wrong'][0]['what']}; {first['wrong'][0]['remedy']}"
    assert (said.code, said.errors) == (0 if first["severity"] == "note" else 1, "")


def test_every_check_is_broken_here_or_below() -> None:
    assert {check.id for check in CLUSTER_CHECKS} == {*ROWS, "kubernetes-old", "not-installed", "cgroup-v1"}


@pytest.mark.parametrize(
    ("metrics", "verdict"), [(b"kubelet_cgroup_version 1\n", "found"), (b"up 1\n", "does not apply")]
)
def test_the_kubelets_own_metrics_tell_its_cgroup(
    cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch, metrics: bytes, verdict: str
) -> None:
    send = Access.send

    def answer(access: Access, asked: Ask, deadline_s: float) -> urllib3.BaseHTTPResponse:
        if asked.subresource == "proxy/metrics":
            return urllib3.HTTPResponse(b"# TYPE kubelet_cgroup_version gauge\n" + metrics, status=200)
        return send(access, asked, deadline_s)

    monkeypatch.setattr(Access, "send", answer)
    verdicts = {one["id"]: one["verdict"] for one in json.loads(ask(cluster, "-o", "json").output)["checks"]}
    assert verdicts["cgroup-v1"] == verdict


def test_a_kubernetes_that_is_too_old(cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requests._VERSION, "gitVersion", "v1.19.16-gke.100")
    assert ask(cluster).output.startswith(
        "Kubernetes 1.19 is older than 1.20, the oldest that mpsd runs on; upgrade it"
    )


def test_a_kubernetes_without_a_version_is_not_called_old(
    cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(requests._VERSION, "gitVersion", "v0.0.0-master+$Format:%H$")
    verdicts = {one["id"]: one["verdict"] for one in json.loads(ask(cluster, "-o", "json").output)["checks"]}
    assert verdicts["kubernetes-old"] == "unknown"


# -- and all of it ---------------------------------------------------------------------------------------------------


NOT_HERE = 8  # of CDI, of components/modern, of kubelet's metrics, and those of components/dra


def test_where_nothing_is_wrong_all_is_well(cluster: DoctoredCluster) -> None:
    cluster.create(PODS, a_gpu_pod(), "default")
    said = ask(cluster)
    made = len(CLUSTER_CHECKS) - NOT_HERE - 1  # without the one of another overlay's extender
    assert said == Said(0, f"all is well: {made} checks\n", "")
    assert "webhook-unreachable: API servers reach the webhook" in ask(cluster, "-v").output


def test_a_cluster_without_mpsd_is_told_so(bare_world: ClusterWorld) -> None:
    said = bare_world.kubectl_mps("doctor")
    assert said.output.startswith("the namespace mpsd-system does not exist: mpsd is not installed; apply your")
    assert said.code == 1


def test_a_node_that_is_not_there_is_a_wrong_question(cluster: DoctoredCluster) -> None:
    said = ask(cluster, "gpu-z9")
    assert (said.code, said.output) == (2, "")
    assert "gpu-a1" in said.errors


def test_with_names_only_those_nodes_are_looked_at(cluster: DoctoredCluster) -> None:
    cluster.create(NODES, machine("gpu-c1"))
    assert ask(cluster, NODE).code == 0
    assert ask(cluster).code == 1


def test_an_api_server_that_does_not_answer_is_said_once(cluster: DoctoredCluster) -> None:
    cluster.world.api.stop()
    said = ask(cluster)
    cluster.world.api.start()
    assert (said.code, said.output) == (1, "")
    assert "does not answer" in said.errors


def test_an_event_tells_of_a_webhook_that_cannot_be_asked(cluster: DoctoredCluster) -> None:
    message = (
        'Error creating: Internal error occurred: failed calling webhook "validate.mpsd.io": context deadline exceeded'
    )
    event = {"metadata": {"name": "a"}, "type": "Warning", "reason": "FailedCreate", "message": message}
    cluster.create(Resource("v1", "events"), {**event, "involvedObject": {"namespace": "default"}}, "default")
    assert ask(cluster).output.startswith(
        "an API server cannot call the webhook: Error creating: Internal error occurred: "
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--config=/etc/kubernetes/s.yaml"],
        ["--config", "/s.yaml"],
        ["--policy-config-file=/policy.json"],
        ["sh", "-c", "exec kube-scheduler --config=/s.yaml --v=2"],
    ],
)
def test_a_kube_scheduler_that_is_given_a_configuration_is_well(cluster: DoctoredCluster, options: list[str]) -> None:
    with_extender(cluster, "kube-scheduler", "--v=2", *options)
    assert ask(cluster).output == f"all is well: {len(CLUSTER_CHECKS) - NOT_HERE} checks\n"


def test_a_kube_scheduler_that_is_no_pod_is_not_known(cluster: DoctoredCluster) -> None:
    with_extender(cluster)
    assert ask(cluster).output.startswith(
        "nothing wrong was found, but not known is whether kube-scheduler is given a configuration: no pod of kube-sche"
    )


@pytest.mark.parametrize("said", [None, "", "tomorrow", "2026-01-02T00:00:00Z/2026-01-01T00:00:00Z"])
def test_a_webhook_that_does_not_say_when_its_certificate_ends_is_not_known_to_be_well(
    cluster: DoctoredCluster, said: str | None
) -> None:
    for resource in (VALIDATING, MUTATING):
        cluster.change(resource, "mpsd-webhook", {"metadata": {"annotations": {ANNOTATION: said}}})
    answer = ask(cluster)
    assert answer.output.startswith(
        "nothing wrong was found, but not known is whether the webhook's own certificate lasts: no webhook has rep"
    )
    assert answer.code == 1


def test_one_configuration_that_says_nothing_hides_no_end_that_the_other_tells(cluster: DoctoredCluster) -> None:
    cluster.change(VALIDATING, "mpsd-webhook", {"metadata": {"annotations": {ANNOTATION: None}}})
    assert "the webhook's own certificate lasts: no webhook has reported it" in ask(cluster).output
    cluster.change(MUTATING, "mpsd-webhook", {"metadata": {"annotations": told(-1)}})
    assert ask(cluster).output.startswith("a serving certificate of the webhook has expired; ")


def test_a_certificate_that_is_made_to_live_for_a_day_is_near_its_end_four_hours_before(
    cluster: DoctoredCluster,
) -> None:
    for resource in (VALIDATING, MUTATING):
        cluster.change(resource, "mpsd-webhook", {"metadata": {"annotations": told(0.25, life_days=1)}})
    assert found(cluster) == []


def test_what_may_not_be_read_is_not_known_each_with_the_right_that_is_missing(
    cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Access.send

    def refuse(access: Access, asked: Ask, deadline_s: float) -> urllib3.BaseHTTPResponse:
        """As an API server does for who lacks these rights."""
        if asked.resource.plural in {"nodes", "subjectaccessreviews", "pods"} and not asked.place:
            return urllib3.HTTPResponse(json.dumps({"message": "forbidden: no such right"}).encode(), status=403)
        return send(access, asked, deadline_s)

    monkeypatch.setattr(Access, "send", refuse)
    said = ask(cluster)
    told: dict[str, Any] = json.loads(ask(cluster, "-o", "json").output)
    unknown = {check["id"]: check["why"] for check in told["checks"] if check["verdict"] == CheckVerdict.UNKNOWN}
    assert said.output.startswith("nothing wrong was found, but not known is whether every part has its rights: ")
    assert "lacks the right to create subjectaccessreviews" in unknown["rights-missing"]
    assert "lacks the right to list nodes" in unknown["no-node-labelled"]
    assert {"pod-not-running", "outside-books", "whole-gpus", "no-scheduler"} < unknown.keys()
    assert said.code == 1
