"""The CEL in the manifests says what `admission.rules.admission` says, on any pod that an API
server could hand it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpsd.admission.rules.configurations import probe
from mpsd.admission.rules.patch import patch_for_debugging, patch_for_pod
from mpsd.admission.rules.rule import RequestContext
from mpsd.admission.rules.verdict import judge
from mpsd.model.policy import RuleId, RuleMode
from mpsd.platform.rules.kubernetes_objects import read_object
from mpsd.simulator.api_server.bodies import edited
from tests.manifests.helm import merged, rendered_by_helm
from tests.manifests.rendering import LATEST, PLAIN, named, of_kind, only, values_of
from tests.model.manifests import (
    FACTS,
    MEMORY,
    PERCENT,
    POLICY,
    RESTRICTED,
    container,
    inside,
    pod,
    with_admission,
)
from tests.whole.manifests.cel import Object, apply_configuration, broken, is_asked

_POLICIES, _MUTATIONS = "policies", "policies-mutating"
# What the policies leave out, because CEL sees the object alone.
_OF_NO_POD = {"mpsd-exemptions", "mpsd-agent-writes", "mpsd-agent-evictions"}
_OTHERS = {"mpsd-placement", *_OF_NO_POD}
_LEFT_OUT = {
    RuleId.OBJECT_MALFORMED: "the API server's own schema refuses it first",
    RuleId.GPUS_NOT_TOGETHER: "depends on the domains in the policy",
    RuleId.HOST_IPC_ADDED: "nothing is injected there",
    RuleId.HOST_IPC_UNNEEDED: (
        "said only where the policy needs no hostIPC, and the one that is shipped does"
    ),
}
_KINDS = [
    ("v1", "Pod"),
    ("v1", "PodTemplate"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
]

_NAMES = """
    PATH NVIDIA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES_ CUDA_MPS_ CUDA_MPS_PIPE_DIRECTORY
    CUDA_MPS NVIDIA_DRIVER_CAPABILITIES NVIDIA_GPU_MEMORY_LIMIT NVIDIA_MPSX
    ALIYUN_COM_GPU_MEM_DEV GPU_MEM_PER_DEVICE GPU_MEM_PER_DEVICE2 EGPU cuda_mps_x
"""
_VALUES = [
    {"value": "all"},
    {"value": "void"},
    {"value": "none"},
    {"value": ""},
    {"value": "compute,utility"},
    {},
    {"valueFrom": {"fieldRef": {"fieldPath": "x"}}},
]
_PREFIXES = [
    {},
    {"prefix": ""},
    {"prefix": "CUDA_"},
    {"prefix": "CUDA_MPS_X"},
    {"prefix": "APP_"},
    {"prefix": "EGPU"},
]
_SOURCES = [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "a"}}]
_AMOUNTS = [
    {},
    {"cpu": "1", "hugepages-2Mi": "2Mi"},
    {MEMORY: "8"},
    {MEMORY: "8", PERCENT: "30"},
    {MEMORY: 8, PERCENT: 100},
    {"nvidia.com/gpu": "1"},
    {MEMORY: "8", "nvidia.com/gpu": "1"},
    {MEMORY: "8", "nvidia.com/gpu": "0"},
    {"nvidia.com/mig-1g.5gb": "1"},
    {"example.com/gpu": "1"},
    {PERCENT: "30"},
    {MEMORY: "0"},
    {MEMORY: "8k"},
    *({MEMORY: "8", PERCENT: "33"}, {MEMORY: "8", PERCENT: "0"}, {MEMORY: "8", PERCENT: "105"}),
]
_PATHS = """
    / /dev /dev/nvidia0 /dev/nvidiactl/ /dev/shm /dev/char/195:0 /run /var/run /run/mpsd
    /var/run//mpsd/gpu0 /run/./mpsd /run/mpsd2 /var/lib /var/lib/kubelet/device-plugins /home
    /run/docker.sock /run/dockerd /run/containerd/containerd.sock /var /etc /etc/ssl /proc/1
    /sys/fs/cgroup /run/systemd /etc/crontab /var/lib/kubelet/pods/a /var/snap /var/snap/lxd
    /run/nvidia-container-devices/all /run/nvidia /data/nvidia /opt/mpsd
    /var/lib/kubelet/plugins_registry /var/lib/kubelet/pod-resources /dev/mem /dev/dri/card0
    /usr/local/nvidia/toolkit /usr/local /etc/nvidia-container-runtime /var/lib/containerd
    /var/lib/rancher/k3s /var/lib/rancher/k3s/storage
"""
_PARTS = [
    {},
    {"subPath": ""},
    {"subPath": "mpsd"},
    {"subPath": "run//mpsd/gpu0"},
    {"subPath": "var/run/mpsd/"},
    *({"subPath": "lock"}, {"subPathExpr": "$(NAME)"}),
]


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """Any of these fields, each there or not."""
    return st.fixed_dictionaries({}, optional=fields)


def _environment() -> st.SearchStrategy[list[Object]]:
    entry = st.builds(
        lambda name, value: {"name": name, **value},
        st.sampled_from(_NAMES.split()),
        st.sampled_from(_VALUES),
    )
    return st.lists(entry, max_size=2, unique_by=lambda found: found["name"])


_SECURITY = _some(
    privileged=st.booleans(),
    runAsUser=st.sampled_from([0, 1000]),
    runAsNonRoot=st.booleans(),
    allowPrivilegeEscalation=st.booleans(),
    capabilities=st.builds(
        lambda added, dropped: {**added, **dropped},
        st.sampled_from(
            [
                {},
                {"add": ["NET_ADMIN"]},
                {"add": ["cap_sys_admin"]},
                {"add": ["MKNOD", "cap_setuid"]},
                *({"add": ["all"]}, {"add": ["Cap_Bpf"]}),
            ]
        ),
        st.sampled_from([{}, {"drop": ["NET_RAW"]}, {"drop": ["NET_RAW", "ALL"]}]),
    ),
)
_CONTAINER = _some(
    env=_environment(),
    envFrom=st.lists(
        st.builds(lambda a, b: {**a, **b}, st.sampled_from(_PREFIXES), st.sampled_from(_SOURCES)),
        max_size=2,
    ),
    resources=_some(
        limits=st.sampled_from(_AMOUNTS),
        requests=st.sampled_from(_AMOUNTS),
        claims=st.just([{"name": "gpu"}]),
    ),
    securityContext=_SECURITY | st.just(RESTRICTED | {"runAsUser": 1000}),
    volumeMounts=st.lists(
        st.builds(
            lambda volume, path, part: {"name": volume, "mountPath": path, **part},
            st.sampled_from(["v", "v0", "v1"]),
            st.sampled_from(_PATHS.split()),
            st.sampled_from(_PARTS),
        ),
        max_size=2,
    ),
    volumeDevices=st.lists(
        st.builds(lambda path: {"name": "v", "devicePath": path}, st.sampled_from(_PATHS.split())),
        max_size=1,
    ),
)


def _volumes() -> st.SearchStrategy[list[Object]]:
    host = st.builds(lambda path: {"hostPath": {"path": path}}, st.sampled_from(_PATHS.split()))
    volumes = st.lists(host | st.just({"emptyDir": {}}), max_size=2)
    return volumes.map(
        lambda found: [{"name": f"v{number}", **each} for number, each in enumerate(found)]
    )


@st.composite
def _pods(draw: st.DrawFn) -> Object:
    def several(name: str, most: int, least: int = 0) -> list[Object]:
        found = draw(st.lists(_CONTAINER, min_size=least, max_size=most))
        return [
            container(f"{name}{number}", securityContext=each.get("securityContext")) | each
            for number, each in enumerate(found)
        ]

    fields = draw(
        _some(
            hostIPC=st.booleans(),
            hostPID=st.booleans(),
            hostUsers=st.booleans(),
            shareProcessNamespace=st.booleans(),
            terminationGracePeriodSeconds=st.sampled_from([0, 30]),
            schedulerName=st.sampled_from(["default-scheduler", "mpsd-scheduler", "volcano"]),
            nodeName=st.just("node1"),
            runtimeClassName=st.sampled_from(["nvidia", "kata"]),
            volumes=_volumes(),
            securityContext=_some(runAsUser=st.sampled_from([0, 1000]), runAsNonRoot=st.booleans()),
        )
    )
    spec = {"hostIPC": None, **fields}
    made = pod(*several("main", 2, 1), **spec)
    first = several("first", 1)
    if first:
        made["spec"]["initContainers"] = first
    return made


@st.composite
def _objects(draw: st.DrawFn) -> Object:
    version, kind = draw(st.sampled_from(_KINDS))
    return inside(version, kind, draw(_pods()))


_THOROUGH = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_CREATES = {"userInfo": {"username": "someone"}, "subResource": ""}


def _by_the_core(thing: Object, writer: str = "someone") -> set[RuleId]:
    found = judge(read_object(thing), POLICY, FACTS, RequestContext(writer=writer))
    return {finding.rule for finding in found}


def _by_policies(
    thing: Object, before: Object | None = None, request: Object = _CREATES
) -> set[RuleId]:
    return {
        RuleId(message.partition(":")[0])
        for policy in of_kind(_POLICIES, "ValidatingAdmissionPolicy")
        if policy["metadata"]["name"] not in _OTHERS
        for message in broken(policy, object=thing, oldObject=before, request=request)
    }


@_THOROUGH
@given(_objects())
def test_policies_find_what_the_core_finds(thing: Object) -> None:
    core, cel = _by_the_core(thing), _by_policies(thing)
    differ = (core ^ cel) - set(_LEFT_OUT)
    assert RuleId.REQUEST_IMPOSSIBLE not in cel - core, "never stricter"
    assert differ <= {RuleId.REQUEST_IMPOSSIBLE}, (
        f"core alone {core - cel}, policies alone {cel - core}"
    )


@pytest.mark.parametrize(
    "amounts", [{MEMORY: "0"}, {MEMORY: "8k"}, {MEMORY: "8", PERCENT: "33"}, {PERCENT: "30"}]
)
def test_policies_find_the_usual_impossible_requests(amounts: Object) -> None:
    thing = pod(container(limits=amounts), securityContext={"runAsUser": 1})
    assert _by_policies(thing) == _by_the_core(thing) == {RuleId.REQUEST_IMPOSSIBLE}


def test_every_rule_is_in_a_policy_or_left_out_for_a_reason() -> None:
    said = {}
    for policy in of_kind(_POLICIES, "ValidatingAdmissionPolicy"):
        if policy["metadata"]["name"] in _OF_NO_POD:
            continue  # for which no rule is
        for validation in policy["spec"]["validations"]:
            said[RuleId(validation["message"].partition(":")[0])] = policy["metadata"]["name"]
    assert said.keys() | _LEFT_OUT.keys() == set(RuleId)
    bindings = {
        thing["metadata"]["name"]: thing["spec"]
        for thing in of_kind(_POLICIES, "ValidatingAdmissionPolicyBinding")
    }
    for rule, name in said.items():
        wanted = {RuleMode.ENFORCE: "Deny", RuleMode.WARN: "Warn", RuleMode.AUDIT: "Audit"}[
            POLICY.admission.rules[rule]
        ]
        assert bindings[name]["validationActions"] == [wanted], rule


@pytest.mark.parametrize("blocked", ["SYS_TIME", "CAP_SYS_TIME", "cap_sys_time"])
@pytest.mark.parametrize("name", ["SYS_TIME", "cap_Sys_Time", "SYS_NICE"])
def test_policies_read_capabilities_as_the_core_does(blocked: str, name: str) -> None:
    given = merged(
        values_of(_POLICIES), {"policy": {"admission": {"blocked_capabilities": [blocked]}}}
    )
    (policy,) = [
        thing
        for thing in rendered_by_helm(given, f"v1.{LATEST}.2")
        if thing["kind"] == "ValidatingAdmissionPolicy"
        and thing["metadata"]["name"] == "mpsd-gpu-pods"
    ]
    security = RESTRICTED | {"capabilities": {"drop": ["ALL"], "add": [name]}}
    thing = pod(container(limits={MEMORY: "8"}, securityContext=security))
    found = [*broken(policy, object=thing, oldObject=None, request=_CREATES)]
    core = judge(
        read_object(thing),
        with_admission(blocked_capabilities=(blocked,)),
        FACTS,
        RequestContext(writer="someone"),
    )
    is_refused = RuleId.CAPABILITIES in {one.rule for one in core}
    assert is_refused is (name != "SYS_NICE")
    assert [one.partition(":")[0] for one in found] == ["capabilities"] * is_refused


@pytest.mark.parametrize(("version", "kind"), [("apps/v1", "Deployment"), ("v1", "PodTemplate")])
def test_what_was_wrong_before_never_holds_up_an_update(version: str, kind: str) -> None:
    bad = inside(version, kind, pod(container(limits={MEMORY: "8"}), hostIPC=None))
    assert _by_policies(bad)
    worse = inside(version, kind, pod(container(limits={MEMORY: "8"}), hostIPC=None, hostPID=True))
    assert _by_policies(worse, bad)
    relabelled = bad | {"metadata": {"name": "train", "labels": {"new": "label"}}}
    assert not _by_policies(relabelled, bad)
    going = worse | {"metadata": {"name": "train", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not _by_policies(going, bad)


def test_a_running_pod_may_get_a_debugging_container() -> None:
    running = pod(
        container(limits={MEMORY: "8"}), nodeName="node1", securityContext={"runAsUser": 1}
    )
    debugged = running | {"spec": running["spec"] | {"ephemeralContainers": [container("debug")]}}
    assert not _by_policies(debugged, running, _CREATES | {"subResource": "ephemeralcontainers"})


@pytest.mark.parametrize(
    "name", ["mpsd.io/gpu", "ALIYUN_COM_GPU_MEM_IDX", "gpushare.alibabacloud.com/x", "note"]
)
@pytest.mark.parametrize("writer", ["someone", *POLICY.admission.placement_accounts])
@pytest.mark.parametrize("before", [None, {}, "same", "other"])
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    ("version", "kind"), [("v1", "Pod"), ("v1", "PodTemplate"), ("batch/v1", "CronJob")]
)
def test_placement_is_written_by_those_who_place(
    version: str, kind: str, name: str, writer: str, before: object, asks: bool
) -> None:
    policy = named(_POLICIES, "ValidatingAdmissionPolicy", "mpsd-placement")
    plain = pod(container(limits={MEMORY: "8"} if asks else None), securityContext={"runAsUser": 1})
    thing = inside(
        version, kind, plain | {"metadata": {"name": "train", "annotations": {name: "1"}}}
    )
    annotations = {"same": {name: "1"}, "other": {name: "2"}}.get(str(before), {})
    was = plain | {"metadata": {"name": "train", "annotations": annotations}}
    old = None if before is None else inside(version, kind, was)
    request = {"userInfo": {"username": writer}}
    circumstances = RequestContext(writer=writer, annotations_before=annotations)
    core = {finding.rule for finding in judge(read_object(thing), POLICY, FACTS, circumstances)}
    found = set(broken(policy, object=thing, oldObject=old, request=request))
    assert bool(found) == (RuleId.PLACEMENT_ANNOTATION in core)


_WEBHOOK = "system:serviceaccount:mpsd-system:mpsd-webhook"


@pytest.mark.parametrize("place", [_POLICIES, "hostile-tenants"])
@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        (None, None, False),
        (None, {"team": "a"}, False),
        (None, {"mpsd.io/exempt": "true"}, True),
        (None, {"mpsd.io/enforce": "none"}, True),
        ({}, {"mpsd.io/exempt": "true"}, True),
        ({"mpsd.io/exempt": "false"}, {"mpsd.io/exempt": "true"}, True),
        ({"mpsd.io/enforce": "all"}, {}, True),
        ({"mpsd.io/exempt": "true"}, {"mpsd.io/exempt": "true", "team": "b"}, False),
    ],
)
def test_who_may_not_exempt_a_namespace_cannot_label_one_so(
    place: str, before: Object | None, now: Object | None, changes: bool
) -> None:
    def namespace(labels: Object | None, name: str = "team") -> Object:
        return {"metadata": {"name": name} | ({} if labels is None else {"labels": labels})}

    policy = named(place, "ValidatingAdmissionPolicy", "mpsd-exemptions")
    old = None if before is None else namespace(before)
    for writer, may in (("ann", False), ("ann", True), (_WEBHOOK, False)):
        request = {"userInfo": {"username": writer}, "isAuthorized": may}
        refused = changes and not may and writer != _WEBHOOK
        assert (
            bool(list(broken(policy, object=namespace(now), oldObject=old, request=request)))
            is refused
        )
        for name in POLICY.admission.exempt_namespaces if before is None else ():
            found = list(
                broken(policy, object=namespace({}, name), oldObject=None, request=request)
            )
            assert bool(found) is (not may and writer != _WEBHOOK), "exempt by its name"


@_THOROUGH
@given(_objects())
def test_no_object_that_breaks_a_rule_is_kept_from_the_webhook(thing: Object) -> None:
    (webhook,) = only(PLAIN, "ValidatingWebhookConfiguration")["webhooks"]
    if _by_the_core(thing):
        assert is_asked(webhook, object=thing)


def test_the_object_by_which_a_webhook_learns_of_its_calls_is_not_kept_from_it() -> None:
    (webhook,) = only(PLAIN, "ValidatingWebhookConfiguration")["webhooks"]
    assert is_asked(webhook, object=probe("a-word"))


@pytest.mark.parametrize(("version", "kind"), _KINDS)
def test_pods_that_touch_no_gpu_cost_no_call(version: str, kind: str) -> None:
    (webhook,) = only(PLAIN, "ValidatingWebhookConfiguration")["webhooks"]
    token = {
        "name": "token",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    }
    usual = container(
        env=[{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        envFrom=[{"configMapRef": {"name": "settings"}}],
        resources={"requests": {"cpu": "1"}, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}},
        securityContext={"runAsNonRoot": True},
        volumeMounts=[token, {"name": "data", "mountPath": "/run"}],
    )
    volumes = [{"name": "token", "projected": {}}, {"name": "data", "emptyDir": {}}]
    assert not is_asked(
        webhook, object=inside(version, kind, pod(usual, hostIPC=None, volumes=volumes))
    )


def _merged(thing: Object, applied: Object) -> Object:
    """As an apply merges: lists of containers and of variables by name."""
    spec = dict(thing["spec"])
    for field, entries in applied["spec"].items():
        added = {entry["name"]: entry["env"] for entry in entries}
        spec[field] = [
            (
                each | {"env": [*each.get("env", ()), *added[each["name"]]]}
                if each["name"] in added
                else each
            )
            for each in spec.get(field, ())
        ]
    return thing | {"spec": {key: value for key, value in spec.items() if value}}


def _patched(thing: Object, patch: tuple[Any, ...]) -> Object:
    after = edited(thing, [*patch])
    spec = {key: value for key, value in after["spec"].items() if value}
    return {**after, "spec": spec}


def _mutation(name: str) -> str:
    (found,) = [
        thing
        for thing in of_kind(_MUTATIONS, "MutatingAdmissionPolicy")
        if thing["metadata"]["name"] == name
    ]
    return found["spec"]["mutations"][0]["applyConfiguration"]["expression"]


@_THOROUGH
@given(_pods())
def test_the_mutating_policy_changes_what_the_core_changes(thing: Object) -> None:
    read = read_object(thing).pod
    assert read
    # grace and hooks are added by the webhook alone
    without_ends = replace(POLICY, pod_ends=False)
    core = patch_for_pod(thing, read, without_ends, {}, None, has_sleep=True)
    wanted = _patched(thing, core)
    changed = _merged(
        thing, apply_configuration(_mutation("mpsd-void"), object=thing, oldObject=None)
    )
    assert changed == wanted
    again = _merged(
        changed, apply_configuration(_mutation("mpsd-void"), object=changed, oldObject=None)
    )
    assert again == changed, "twice is once"


@_THOROUGH
@given(_pods(), st.lists(_CONTAINER, min_size=1, max_size=2), st.integers(0, 1))
def test_debugging_containers_are_changed_as_the_core_changes_them(
    thing: Object, added: list[Object], running: int
) -> None:
    debugging = [container(f"debug{number}", **each) for number, each in enumerate(added)]
    before = thing | {
        "spec": thing["spec"] | ({"ephemeralContainers": debugging[:running]} if running else {})
    }
    now = thing | {"spec": thing["spec"] | {"ephemeralContainers": debugging}}
    read, read_before = read_object(now).pod, read_object(before).pod
    assert read
    wanted = _patched(now, patch_for_debugging(now, read, POLICY, read_before))
    changed = _merged(
        now, apply_configuration(_mutation("mpsd-void-ephemeral"), object=now, oldObject=before)
    )
    assert changed == wanted
