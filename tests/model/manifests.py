"""Kubernetes objects for tests of what pods ask for, and the limits that mpsd ships."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from mpsd.model.policy import Policy
from mpsd.platform.limits_files import load_limits

POLICY, FACTS = load_limits(None).policy, load_limits(None).facts
MEMORY, PERCENT, COUNT = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-core.percentage",
    "aliyun.com/gpu-count",
)

Fields = dict[str, Any]

# Where each kind keeps its pod.
STEPS = {
    ("v1", "Pod"): (),
    ("v1", "PodTemplate"): ("template",),
    ("v1", "ReplicationController"): ("spec", "template"),
    ("batch/v1", "Job"): ("spec", "template"),
    ("batch/v1", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("batch/v1beta1", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("apps/v1", "Deployment"): ("spec", "template"),
    ("apps/v1", "StatefulSet"): ("spec", "template"),
    ("apps/v1", "DaemonSet"): ("spec", "template"),
    ("apps/v1", "ReplicaSet"): ("spec", "template"),
}


RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def container(name: object = "main", limits: object = None, **fields: object) -> Fields:
    """A container that cannot become another user, unless said otherwise; None leaves its
    securityContext out."""
    resources = {} if limits is None else {"resources": {"limits": limits}}
    security = fields.pop("securityContext", {})
    if isinstance(security, dict):
        security = RESTRICTED | security
        if isinstance(security["capabilities"], dict):
            security["capabilities"] = {"drop": ["ALL"]} | security["capabilities"]
    context = {} if security is None else {"securityContext": security}
    return {"name": name, "image": "train", **resources, **context, **fields}


def pod(*containers: Fields, labels: object = None, **spec: object) -> Fields:
    """A bare pod that no rule speaks of: hostIPC is true and nobody is root, unless said otherwise.

    None leaves a field out.
    """
    fields = {
        "hostIPC": True,
        "securityContext": {"runAsUser": 1000},
        "containers": list(containers),
        **spec,
    }
    metadata = {"name": "train", "labels": labels} if labels is not None else {"name": "train"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def inside(version: str, kind: str, template: Fields) -> Fields:
    """An object of this kind around the pod."""
    steps = STEPS[version, kind]
    if not steps:
        return template
    described = {key: template["metadata"].get(key) for key in ("labels", "annotations")}
    thing: Fields = {"metadata": described, "spec": template["spec"]}
    for step in reversed(steps):
        thing = {step: thing}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, **thing}


def with_admission(**changes: Any) -> Policy:
    return replace(POLICY, admission=replace(POLICY.admission, **changes))


# Keys and values that hit what the readers look for, among any other JSON.
_WORDS = """
    kind apiVersion metadata name labels spec template jobTemplate items hostIPC containers
    initContainers ephemeralContainers resources limits requests restartPolicy env envFrom value
    valueFrom prefix configMapRef securityContext privileged capabilities add drop runAsUser
    runAsNonRoot volumes hostPath path volumeMounts mountPath claims annotations mpsd.io/gpu
    nodeName schedulerName hostPID hostUsers runtimeClassName status startTime deletionTimestamp
    namespace
"""
_VALUES = """
    Pod Job CronJob List PodList v1 batch/v1 Always 7 2 CUDA_MPS_X NVIDIA_VISIBLE_DEVICES all /
    /dev/../nvidia0 SYS_ADMIN kube-system nvidia
"""
_KEYS = st.sampled_from([*_WORDS.split(), MEMORY, PERCENT, COUNT])
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(_VALUES.split())
)
ANY_JSON = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(_KEYS | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=40,
)


@st.composite
def broken_objects(draw: st.DrawFn) -> Fields:
    """A good object with any JSON in place of one of its parts, however deep."""
    (version, kind), label = (
        draw(st.sampled_from(list(STEPS))),
        draw(st.sampled_from([None, "2", 2])),
    )
    sound = container(
        limits={MEMORY: 8, PERCENT: 40},
        env=[{"name": "A", "value": "b"}],
        envFrom=[{"prefix": "A", "configMapRef": {"name": "train"}}],
        securityContext={"privileged": False, "runAsUser": 1, "capabilities": {"add": ["NET_RAW"]}},
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
        volumeDevices=[{"name": "disk", "devicePath": "/dev/xvda"}],
    )
    first = container("first", resources={"claims": [{"name": "nic"}]}, restartPolicy="Always")
    volumes = [{"name": "data", "hostPath": {"path": "/data"}}]
    names = {"schedulerName": "default-scheduler", "nodeName": "", "runtimeClassName": "nvidia"}
    template = pod(
        sound,
        labels={COUNT: label},
        initContainers=[first],
        volumes=volumes,
        hostUsers=False,
        **names,
    )
    template["metadata"] |= {"annotations": {"mpsd.io/gpu": "x"}, "namespace": "team"}
    thing = inside(version, kind, template)
    place: Any = thing
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not inner or not isinstance(inner, dict | list) or draw(st.booleans()):
            place[key] = draw(ANY_JSON)
            return thing
        place = inner
