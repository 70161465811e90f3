"""A cluster in which nothing is wrong, as `kubectl mps doctor` saw it, and what each of its checks
finds broken."""

import time
from copy import deepcopy
from dataclasses import replace
from typing import Any

from mpsd.admission.rules.configurations import NOT_CALLED
from mpsd.model.times import DAY_S, stamp
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts
from mpsd.platform.limits_files import load_limits
from mpsd.platform.rules.certificates import ANNOTATION, Validity, annotation
from tests.cli.doctored_cluster import NODE, a_gpu_pod, bundle, own_pod
from tests.cli.gpu_cluster import machine, mpsnode

Object = dict[str, Any]
NOW = float(int(time.time()))
BUNDLE, OTHER, ENDED = bundle(), bundle(), bundle(-float(DAY_S), "old")


def workload(name: str, **rest: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {},
        **rest,
    }


def report(behind_s: float = 0.0, ago_s: float = 0.0, **status: Any) -> Object:
    """What a node wrote so long ago, by a clock that is so far behind."""
    thing = mpsnode(NODE, 24, 24)
    written = {"time": stamp(NOW - ago_s), "fieldsV1": {"f:status": {}}}
    condition = {
        "type": "MPSReady",
        "status": "True",
        "reason": "AllServe",
        "message": "2 of 2 domains serve",
    }
    own = {
        "reportedAt": stamp(NOW - ago_s - behind_s),
        "version": "0.1.0",
        "conditions": [condition],
    }
    domains = [one | {"version": "0.1.0"} for one in thing["status"]["domains"]]
    return {
        **thing,
        "metadata": {"name": NODE, "managedFields": [written]},
        "status": thing["status"] | {"domains": domains} | own | status,
    }


def domains(**changes: Any) -> list[Object]:
    first, second = report()["status"]["domains"]
    return [first, second | changes]


def not_ready(reason: str, message: str) -> list[Object]:
    return [{"type": "MPSReady", "status": "False", "reason": reason, "message": message}]


def configuration(name: str, authority: str = BUNDLE, left_days: float = 20) -> Object:
    ends_at = NOW + left_days * DAY_S
    told = {ANNOTATION: annotation(Validity(ends_at - 30 * DAY_S, ends_at))}
    webhook = {"name": name, "clientConfig": {"caBundle": authority}, "failurePolicy": "Ignore"}
    return {"metadata": {"annotations": told}, "webhooks": [webhook]}


def definition(*fields: str, served: bool = True) -> Object:
    status: Object = {"properties": {"status": {"properties": {key: {} for key in fields}}}}
    version = {"name": "v1alpha1", "served": served, "schema": {"openAPIV3Schema": status}}
    return {"spec": {"versions": [version]}}


def pod(name: str = "sly", **container: Any) -> Object:
    spec = {"nodeName": NODE, "containers": [{"name": "main", **container}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def ours(component: str, **status: Any) -> Object:
    return own_pod(component, containerStatuses=[{"name": component, "restartCount": 0} | status])


STATUS = (
    *("reportedAt", "driver", "version", "summary", "gpus", "domains"),
    *("grants", "conditions", "violations"),
)
WELL = ClusterFacts(
    now=NOW,
    ours="0.1.0",
    policy=load_limits(None).policy,
    gpu_facts=load_limits(None).facts,
    version={"gitVersion": "v1.20.2"},
    own_clock=0.0,
    namespace=[{}],
    definition=[definition(*STATUS)],
    own_pods=[ours("mpsd-agent"), ours("mpsd-control"), ours("mpsd-webhook")],
    daemon_sets=[workload("mpsd-control"), workload("mpsd-agent")],
    deployments=[
        workload(name, status={"readyReplicas": 1}) for name in ("mpsd-webhook", "mpsd-scheduler")
    ],
    nodes=[machine(NODE)],
    mpsnodes=[report()],
    validating=[configuration("validate.mpsd.io")],
    mutating=[configuration("mutate.mpsd.io")],
    policies=[],
    endpoints=[{"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]}],
    slices=[],
    warnings=[],
    namespaces=[],
    pods=[a_gpu_pod()],
)
CDI = {"name": "MPSD_DEVICE_LIST_STRATEGY", "value": "cdi-cri"}
TAINT = {"key": "mpsd.io/not-ready", "effect": "NoSchedule"}
IN_DEFAULT = {"namespace": "default", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
UNPLACED = deepcopy(a_gpu_pod(schedulerName="default-scheduler"))
UNPLACED["metadata"] |= IN_DEFAULT | {"annotations": {}}
PULLING = {
    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
}
CRASHING = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
REFUSAL = {
    "message": (
        'Internal error occurred: failed calling webhook "validate.mpsd.io": context deadline'
        " exceeded"
    )
}

AGENT_BY_CDI = workload("mpsd-agent", spec={"template": {"spec": {"containers": [{"env": [CDI]}]}}})
BY_CDI = {"daemon_sets": [workload("mpsd-control"), AGENT_BY_CDI]}


def running(runtime: str, kubelet: str = "v1.36.2") -> Object:
    """Nodes of which one reports these versions."""
    versions = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
    return {"nodes": [machine(NODE) | {"status": {"nodeInfo": versions}}]}


UNCALLED, INJECTED = configuration("validate.mpsd.io"), configuration("validate.mpsd.io")
UNCALLED["metadata"]["annotations"][NOT_CALLED] = "true"
INJECTED["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] = "mpsd-system/mpsd-webhook"
MATCHING = configuration("validate.mpsd.io")
MATCHING["webhooks"][0]["matchConditions"] = [{"name": "asks", "expression": "true"}]
MODERN = {"validating": [MATCHING], "version": {"gitVersion": "v1.36.2"}}

CLAIM_AGENT = ours("mpsd-agent") | {
    "spec": {
        "nodeName": NODE,
        "containers": [{"name": "agent", "env": [{"name": "MPSD_DRA", "value": "gpu.mpsd.io"}]}],
    }
}


def resource_slice(node: str = NODE, driver: str = "gpu.mpsd.io", **device: Any) -> Object:
    devices = [{"name": "gpu-0", "allowMultipleAllocations": True} | device]
    spec = {"driver": driver, "nodeName": node, "devices": devices}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


# As dra.enabled makes it of a cluster of today.
CLAIMS: Object = {
    "version": {"gitVersion": "v1.36.2"},
    "own_pods": [CLAIM_AGENT, *WELL.own_pods[1:]],  # type: ignore[index]  # known here
    "slices": [resource_slice(), resource_slice("other", "gpu.nvidia.com")],
}
BREAKS: dict[str, list[Object]] = {
    "not-installed": [
        {"namespace": []},
        {"definition": []},
        {"definition": [definition(served=False)]},
        {"daemon_sets": [workload("mpsd-agent")]},
    ],
    "definition-old": [{"definition": [definition(*STATUS[:2], *STATUS[3:])]}],
    "pods-not-ready": [
        {"own_pods": [ours("mpsd-agent", **PULLING), ours("mpsd-control", **CRASHING)]},
        {
            "deployments": [
                workload("mpsd-webhook", spec={"replicas": 2}, status={"readyReplicas": 1})
            ]
        },
    ],
    "no-node-labelled": [{"nodes": [{"metadata": {"name": NODE}}]}],
    "node-not-ready": [
        {"mpsnodes": []},
        {"mpsnodes": [report(ago_s=3601)]},
        {
            "mpsnodes": [
                report(conditions=not_ready("NoGPUs", "the driver shows no GPU that MPS can share"))
            ]
        },
    ],
    "no-cdi": [
        BY_CDI | running("containerd://1.6.20"),
        BY_CDI | running("containerd://2.1.9", "v1.27.3-eks-1"),
    ],
    "startup-taint": [
        {"nodes": [machine(NODE, taints=[TAINT])]},
        {"nodes": [machine(NODE), {"metadata": {"name": "b1"}, "spec": {"taints": [TAINT]}}]},
    ],
    "clocks-apart": [{"own_clock": -40.0}, {"mpsnodes": [report(100)]}],
    "version-skew": [
        {"mpsnodes": [report(domains=domains(version="9.0"))]},
        {
            "own_pods": [
                ours("mpsd-agent"),
                own_pod("mpsd-webhook") | {"spec": pod(image="other")["spec"]},
            ]
        },
    ],
    "webhook-unregistered": [
        {"mutating": []},
        {"mutating": [configuration("mutate.mpsd.io", OTHER)]},
        {"mutating": [configuration("mutate.mpsd.io", "")]},
    ],
    "webhook-certificate": [
        {name: [configuration(f"{name}.mpsd.io", ENDED)] for name in ("validating", "mutating")},
        {"validating": [configuration("validate.mpsd.io", "bm9uZQ==")]},
        {"mutating": [configuration("mutate.mpsd.io", left_days=0.125)]},
    ],
    "webhook-unreachable": [{"endpoints": []}, {"warnings": [REFUSAL]}, {"validating": [UNCALLED]}],
    "webhook-fail-open": [{"validating": [INJECTED]}],
    "policy-missing": [MODERN, MODERN | {"version": {"gitVersion": "v1.29.0+k3s1"}}],
    "claims-unsupported": [
        CLAIMS | {"version": {"gitVersion": "v1.33.1"}},
        CLAIMS | {"slices": [resource_slice(allowMultipleAllocations=None)]},
    ],
    "slice-stale": [CLAIMS | {"own_pods": WELL.own_pods}],
    "other-plugin": [
        {"nodes": [machine(NODE) | {"status": {"capacity": {"nvidia.com/gpu": "2"}}}]}
    ],
    "nvidia-operator": [
        {"nodes": [machine(NODE, labels={"nvidia.com/mps.capable": "true"})]},
        {"nodes": [machine(NODE, labels={"nvidia.com/gpu.deploy.operator-validator": "true"})]},
        {"nodes": [machine(NODE, labels={"nvidia.com/mig.config": "all-1g.10gb"})]},
        {"nodes": [machine(NODE, labels={"nvidia.com/mig.config.state": "failed"})]},
    ],
    "outside-ledger": [
        {"pods": [pod(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])] * 6},
        {"pods": [pod("whole", resources={"limits": {"nvidia.com/gpu": "1"}})]},
    ],
    "not-asked": [{"pods": [UNPLACED]}],
}


def broken(check: str) -> list[ClusterFacts]:
    return [replace(WELL, **changes) for changes in BREAKS[check]]
