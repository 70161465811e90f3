"""`kubectl mps doctor` on broken clusters: the first line of its answer names what is broken, and what to do."""

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from mpsd.operations.doctor.rules.checks import CheckVerdict, Severity
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Resource
from mpsd.platform.kube_transport import Ask, Transport
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
    told,
)
from tests.cli.gpu_cluster import gpu_pod, machine

_DAY = datetime.timedelta(days=1)


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
ROWS: dict[str, tuple[Break, str]] = {}


def row(check: str, expected: str) -> Callable[[Break], Break]:
    """expected: the beginning of the first line."""

    def keep(breaks: Break) -> Break:
        ROWS[check] = (breaks, expected)
        return breaks

    return keep


@row("definition-missing", "the cluster knows no MPSNode (CRD mpsnodes.mpsd.io is missing); kubectl apply -k manifests")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(CRDS, "mpsnodes.mpsd.io")


@row("workload-missing", "the DaemonSet mps-control-daemon is not in mpsd-system: no node is served; ")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(DAEMON_SETS, "mps-control-daemon", SYSTEM)


@row("rights-missing", "service account mpsd-agent may not list pods and 15 more; give it its ClusterRole back: ")
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings"), "mpsd-agent")


@row(
    "pod-not-running",
    "pod mpsd-system/mpsd-agent-x on gpu-a1 does not run: mpsd-agent: ImagePullBackOff: Back-off pulling image;"
    " correct the image registry.example/mpsd:1 in the kustomization",
)
def _(cluster: DoctoredCluster) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    cluster.of_pod("mpsd-agent", containerStatuses=[{"name": "mpsd-agent", "restartCount": 0, "state": waiting}])


@row("pods-short", "deploy/mpsd-webhook has 1 of 2 pods ready; see kubectl -n mpsd-system get pods -l ")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(DEPLOYMENTS, "mpsd-webhook", {"status": {"readyReplicas": 1}}, SYSTEM, "status")


@row(
    "pod-restarting", "pod mpsd-system/mpsd-control-x has restarted 7 times, last OOMKilled (exit code 137); see why: "
)
def _(cluster: DoctoredCluster) -> None:
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    status = {"name": "mpsd-control", "restartCount": 7, "state": {"running": {}}, "lastState": last}
    cluster.of_pod("mpsd-control", containerStatuses=[status])


@row(
    "no-node-labelled", "no node has the label ack.node.gpu.schedule=mps, so no daemon of mpsd's runs anywhere; kubectl"
)
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"metadata": {"labels": {"ack.node.gpu.schedule": None}}})


@row(
    "gpus-unshared", "gpu-b1 has NVIDIA GPUs (label nvidia.com/gpu.present) and not the label ack.node.gpu.schedule=mps"
)
def _(cluster: DoctoredCluster) -> None:
    cluster.create(NODES, {"metadata": {"name": "gpu-b1", "labels": {"nvidia.com/gpu.present": "true"}}})


@row(
    "no-gpus", "gpu-a1 has the label ack.node.gpu.schedule=mps and no GPU: the driver shows no GPU that MPS can share; "
)
def _(cluster: DoctoredCluster) -> None:
    message = "the driver shows no GPU that MPS can share"
    condition = {"type": "MPSReady", "status": "False", "reason": "NoGPUs", "message": message}
    cluster.told(conditions=[condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}], gpus=[], domains=[])


@row(
    "mpsnode-missing",
    "gpu-c1 is labelled for mpsd and has reported nothing yet (MPSNode); see its pod of mpsd-agent: kub",
)
def _(cluster: DoctoredCluster) -> None:
    cluster.create(NODES, machine("gpu-c1"))


@row("mpsnode-stale", "gpu-a1 has reported nothing for 60 min, and should every 5 min: ")
def _(cluster: DoctoredCluster) -> None:
    cluster.told(3601)


@row(
    "domain-not-ready",
    "gpu-a1: gpu1 is wedged: no answer to get_server_list; wait: after wedged_limit_s it is restarted, "
    "which ends its programs; ask on that node: mpsd doctor in its ",
)
def _(cluster: DoctoredCluster) -> None:
    domains = cluster.node()["status"]["domains"]
    domains[1] |= {"state": "wedged", "reason": "no answer to get_server_list"}
    cluster.told(domains=domains)


@row(
    "node-not-ready", "gpu-a1 is not MPSReady, ControlAbsent: no control daemon has said anything of gpu0; ask on that"
)
def _(cluster: DoctoredCluster) -> None:
    message = "no control daemon has said anything of gpu0"
    condition = {"type": "MPSReady", "status": "False", "reason": "ControlAbsent", "message": message}
    cluster.told(conditions=[condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}])


@row("clocks-apart", "the clock of node gpu-a1 is 100 s behind the API server's; let one time service keep them all")
def _(cluster: DoctoredCluster) -> None:
    cluster.told(100)


@row("version-skew", "gpu-a1: control is of version 9.0 and the agent of 0.1.0: the agent reads records that a later ")
def _(cluster: DoctoredCluster) -> None:
    domains = cluster.node()["status"]["domains"]
    domains[0]["version"] = "9.0"
    cluster.told(domains=domains)


@row(
    "version-behind", "gpu-a1: control is of version 0.0.9 and the agent of 0.1.0: normal after an upgrade, for the Da"
)
def _(cluster: DoctoredCluster) -> None:
    domains = cluster.node()["status"]["domains"]
    domains[0]["version"] = "0.0.9"
    cluster.told(domains=domains)


@row("image-skew", "pod mpsd-webhook-x is of image registry.example/mpsd:0 and the agents of registry.example/mpsd:1: ")
def _(cluster: DoctoredCluster) -> None:
    containers = [{"name": "mpsd-webhook", "image": "registry.example/mpsd:0"}]
    cluster.change(PODS, "mpsd-webhook-x", {"spec": {"containers": containers}}, SYSTEM)


@row(
    "cordon-forgotten", "gpu-a1: gpu1 is cordoned and has been empty for 3 d; put it back when the work is done: kubec"
)
def _(cluster: DoctoredCluster) -> None:
    node = cluster.node()["status"]
    since = datetime.datetime.now(datetime.UTC) - 3 * _DAY
    node["domains"][1] |= {"state": "drained", "since": since.strftime("%Y-%m-%dT%H:%M:%SZ")}
    cluster.change(MPS_NODES, NODE, {"spec": {"cordoned": [node["gpus"][1]["uuid"]]}})
    cluster.told(domains=node["domains"])


@row(
    "webhook-unregistered",
    "MutatingWebhookConfiguration mpsd-webhook is missing: every pod is admitted; ",
)
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(MUTATING, "mpsd-webhook")


@row("webhook-authority", "the two webhook configurations name different authorities (caBundle); restart the webhook, ")
def _(cluster: DoctoredCluster) -> None:
    other = bundle()
    cluster.hooks(lambda webhook: webhook["clientConfig"].update(caBundle=other), MUTATING)


@row(
    "webhook-certificate", "the authority that verifies the webhook (old) has ended; see the webhook's log why it was "
)
def _(cluster: DoctoredCluster) -> None:
    ended = bundle(-86400.0, "old")
    cluster.hooks(lambda webhook: webhook["clientConfig"].update(caBundle=ended))


@row("webhook-serving", "a certificate that the webhook serves with ends in 3 h; see the webhook's log why it was not")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(MUTATING, "mpsd-webhook", {"metadata": {"annotations": told(3.5 / 24)}})


@row(
    "webhook-unreachable",
    "no ready pod is behind the Service mpsd-webhook: pods are admitted without review; see kubectl -n ",
)
def _(cluster: DoctoredCluster) -> None:
    cluster.change(ENDPOINTS, "mpsd-webhook", {"subsets": None}, SYSTEM)


@row(
    "no-scheduler", "pod default/train-0 waits for mpsd-scheduler, of which no pod is ready here; kubectl apply -k mani"
)
def _(cluster: DoctoredCluster) -> None:
    cluster.delete(DEPLOYMENTS, "mpsd-scheduler", SYSTEM)
    cluster.create(PODS, gpu_pod("train-0", 4) | {"status": {"phase": "Pending"}}, "default")


@row("other-plugin", "another device plugin allocates GPUs of gpu-a1 too (nvidia.com/gpu: 2); keep its DaemonSet off n")
def _(cluster: DoctoredCluster) -> None:
    cluster.change(NODES, NODE, {"status": {"capacity": {"nvidia.com/gpu": "2"}}}, "", "status")


@row(
    "whole-gpus",
    "pod default/whole on gpu-a1 has nvidia.com/gpu: 1, a whole GPU that mpsd shares as well; move it ",
)
def _(cluster: DoctoredCluster) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.create(
        PODS, {"metadata": {"name": "whole"}, "spec": {"nodeName": NODE, "containers": [container]}}, "default"
    )


@row(
    "outside-books",
    "pod default/sly on gpu-a1 can use GPUs outside the ledger: spec.containers[main].env[NVIDIA_VISIBLE_DEVICES] is ",
)
def _(cluster: DoctoredCluster) -> None:
    container = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    cluster.create(
        PODS, {"metadata": {"name": "sly"}, "spec": {"nodeName": NODE, "containers": [container]}}, "default"
    )


@row(
    "not-asked", "pod default/train-0 requests GPU memory and was placed by default-scheduler, which did not ask mpsd; "
)
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


@row(
    "scheduler-unconfigured",
    "pod kube-system/kube-scheduler-cp-1 has no --config in its command, so it asks no extender: pods are placed past",
)
def _(cluster: DoctoredCluster) -> None:
    with_extender(cluster, "kube-scheduler", "--kubeconfig=/etc/kubernetes/scheduler.conf")


@row("definition-old", "CRD mpsnodes.mpsd.io is of an older mpsd: the API server drops status.version; kubectl apply ")
def _(cluster: DoctoredCluster) -> None:
    thing = cluster.world.ask(lambda kube: kube.get(CRDS, "mpsnodes.mpsd.io"))
    versions = thing["spec"]["versions"]
    del versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["version"]
    cluster.change(CRDS, "mpsnodes.mpsd.io", {"spec": {"versions": versions}})


@pytest.mark.parametrize("check", ROWS)
def test_the_first_line_names_what_is_broken_and_what_to_do(cluster: DoctoredCluster, check: str) -> None:
    breaks, expected = ROWS[check]
    breaks(cluster)
    said = ask(cluster)
    assert said.output.startswith(expected), said.output
    severity = next(one.severity for one in CLUSTER_CHECKS if one.id == check)
    assert (said.code, said.errors) == (0 if severity is Severity.NOTE else 1, "")
    assert check in found(cluster)


def test_every_check_is_broken_here_or_below() -> None:
    assert {check.id for check in CLUSTER_CHECKS} == {*ROWS, "kubernetes-old", "not-installed"}


def test_a_kubernetes_that_is_too_old(cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requests._VERSION, "minor", "19+")
    assert ask(cluster).output.startswith(
        "Kubernetes 1.19 is older than 1.20, the oldest that mpsd runs on; upgrade it"
    )


# -- and all of it ---------------------------------------------------------------------------------------------------


def test_where_nothing_is_wrong_all_is_well(cluster: DoctoredCluster) -> None:
    cluster.create(PODS, a_gpu_pod(), "default")
    said = ask(cluster)
    made = len(CLUSTER_CHECKS) - 1  # without the one of another overlay's extender
    assert said == Said(0, f"all is well: {made} checks\n", "")
    assert "webhook-unreachable: API servers reach the webhook" in ask(cluster, "-v").output


def test_a_cluster_without_mpsd_is_told_so(bare_world: ClusterWorld) -> None:
    said = bare_world.kubectl_mps("doctor")
    assert said.output.startswith(
        "the namespace mpsd-system does not exist: mpsd is not installed; kubectl apply -k mani"
    )
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
        "an API server cannot ask the webhook: Error creating: Internal error occurred: "
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
    assert ask(cluster).output == f"all is well: {len(CLUSTER_CHECKS)} checks\n"


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
    assert ask(cluster).output.startswith("a certificate that the webhook serves with has ended; ")


def test_a_certificate_that_is_made_to_live_for_a_day_is_near_its_end_four_hours_before(
    cluster: DoctoredCluster,
) -> None:
    for resource in (VALIDATING, MUTATING):
        cluster.change(resource, "mpsd-webhook", {"metadata": {"annotations": told(0.25, life_days=1)}})
    assert found(cluster) == []


def test_what_may_not_be_read_is_not_known_each_with_the_right_that_is_missing(
    cluster: DoctoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Transport.exchange

    def refuse(transport: Transport, asked: Ask, deadline_s: float) -> tuple[int, bytes]:
        """As an API server does for who lacks these rights."""
        if asked.resource.plural in {"nodes", "subjectaccessreviews", "pods"} and not asked.said:
            return 403, json.dumps({"message": "forbidden: no such right"}).encode()
        return exchange(transport, asked, deadline_s)

    monkeypatch.setattr(Transport, "exchange", refuse)
    said = ask(cluster)
    told: dict[str, Any] = json.loads(ask(cluster, "-o", "json").output)
    unknown = {check["id"]: check["why"] for check in told["checks"] if check["verdict"] == CheckVerdict.UNKNOWN}
    assert said.output.startswith("nothing wrong was found, but not known is whether every part has its rights: ")
    assert "lacks the right to create subjectaccessreviews" in unknown["rights-missing"]
    assert "lacks the right to list nodes" in unknown["no-node-labelled"]
    assert {"pod-not-running", "outside-books", "whole-gpus", "no-scheduler"} < unknown.keys()
    assert said.code == 1
