"""The rules for access to the host."""

import pytest

from mpsd.admission.rules.host import inside as host_inside
from mpsd.admission.rules.host import reached
from mpsd.admission.rules.patch import HOST_IPC
from mpsd.admission.rules.rule import RequestContext
from mpsd.model.policy import HostIPC, RuleId
from tests.admission.cases import KINDS, asking, broken, found, in_kind, with_volume
from tests.admission.reviews import mutated, review_of
from tests.model.manifests import MEMORY, Fields, container, inside, pod, with_admission

_WITHOUT_HOST_IPC = with_admission(host_ipc=HostIPC.OFF)


@pytest.mark.parametrize(
    "name",
    [
        "ALL",
        "all",
        "CAP_ALL",
        "SYS_ADMIN",
        "cap_sys_admin",
        "Cap_Sys_Ptrace",
        "MKNOD",
        "CAP_SYS_RAWIO",
    ],
)
def test_capabilities_are_known_in_every_spelling(name: str) -> None:
    thing = in_kind("containers", securityContext={"capabilities": {"add": ["NET_RAW", name]}})
    assert broken(thing) == [
        ("capabilities", "spec.containers[x].securityContext.capabilities.add", f'"{name}"')
    ]


@pytest.mark.parametrize("blocked", ["SYS_TIME", "CAP_SYS_TIME", "sys_time", "Cap_Sys_Time"])
@pytest.mark.parametrize("name", ["SYS_TIME", "CAP_SYS_TIME", "cap_sys_time"])
def test_the_policy_names_capabilities_in_every_spelling_too(blocked: str, name: str) -> None:
    security = {"capabilities": {"drop": ["ALL"], "add": [name]}}
    thing = in_kind("containers", securityContext=security | {"allowPrivilegeEscalation": False})
    assert broken(thing) == []
    by = with_admission(blocked_capabilities=(blocked,))
    assert [rule for rule, _, _ in broken(thing, by)] == ["capabilities"]


@pytest.mark.parametrize(
    ("of_pod", "of_container", "where"),
    [
        (None, None, "securityContext"),
        ({"runAsUser": 0}, None, "securityContext.runAsUser"),
        ({"runAsUser": 1000}, {"runAsUser": 0}, "securityContext.runAsUser"),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, "securityContext"),
        ({"runAsNonRoot": True}, {"runAsUser": 0}, "securityContext.runAsUser"),
        ({"runAsUser": 1000}, None, ""),
        ({"runAsUser": 0}, {"runAsUser": 1000}, ""),
        ({"runAsNonRoot": True}, None, ""),
        (None, {"runAsNonRoot": True}, ""),
        ({"runAsNonRoot": True}, {"privileged": False}, ""),
    ],
)
def test_who_may_be_root_on_the_host_is_read_as_kubernetes_reads_it(
    of_pod: object, of_container: object, where: str
) -> None:
    asking = container(limits={MEMORY: 7}, securityContext=of_container or {})
    thing = pod(
        asking, container("beside", securityContext={"runAsUser": 1}), securityContext=of_pod
    )
    expected = [("host-root", f"spec.containers[main].{where}")] if where else []
    assert [one[:2] for one in broken(thing)] == expected
    thing["spec"] |= {"hostUsers": False, "hostIPC": False}
    assert broken(thing, _WITHOUT_HOST_IPC) == []


_MAY_BECOME_ROOT = [
    (None, ["allowPrivilegeEscalation", "capabilities"]),
    ({"allowPrivilegeEscalation": True}, ["allowPrivilegeEscalation"]),
    ({"allowPrivilegeEscalation": None}, ["allowPrivilegeEscalation"]),
    ({"capabilities": None}, ["capabilities"]),
    ({"capabilities": {"drop": ["MKNOD", "NET_RAW"]}}, ["capabilities"]),
    ({"capabilities": {"add": ["SETUID"]}}, ["capabilities"]),
    ({"capabilities": {"add": ["cap_setuid"]}}, ["capabilities"]),
    ({"capabilities": {"drop": ["ALL"], "add": ["SETGID", "Cap_SetUid"]}}, ["capabilities"]),
    ({"capabilities": {"add": ["NET_BIND_SERVICE", "IPC_LOCK"]}}, []),
    ({"runAsUser": 0}, ["runAsUser"]),
]


@pytest.mark.parametrize("kind", [*KINDS, "sidecars"])
@pytest.mark.parametrize(("security", "places"), _MAY_BECOME_ROOT)
def test_no_container_of_a_gpu_pod_may_become_root_also_one_without_a_gpu(
    kind: str, security: Fields | None, places: list[str]
) -> None:
    fields: Fields = {"securityContext": security}
    if kind == "sidecars":
        kind, fields = "initContainers", {**fields, "restartPolicy": "Always"}
    thing = in_kind(kind, **fields)
    expected = [("host-root", f"spec.{kind}[x].securityContext.{place}") for place in places]
    assert [one[:2] for one in broken(thing)] == expected
    thing["spec"] |= {"hostUsers": False, "hostIPC": False}
    assert broken(thing, _WITHOUT_HOST_IPC) == []
    assert broken(in_kind(kind, asks=False, **fields)) == [], "a pod without a GPU has no socket"


def test_containers_of_a_gpu_pod_do_not_share_their_processes() -> None:
    shared = asking(shareProcessNamespace=True)
    assert broken(shared) == [("host-root", "spec.shareProcessNamespace", "true")]
    own = asking(shareProcessNamespace=True, hostIPC=False, hostUsers=False)
    assert broken(own, _WITHOUT_HOST_IPC) == []
    assert broken(asking(shareProcessNamespace=False)) == []
    assert broken(pod(container(), shareProcessNamespace=True)) == []


def test_a_pod_with_its_own_users_is_the_remedy_only_where_kubernetes_takes_it() -> None:
    root = pod(container(limits={MEMORY: 7}, securityContext=None), securityContext=None)
    (with_host_ipc,) = found(root)
    (without,) = found(root | {"spec": {**root["spec"], "hostIPC": False}}, _WITHOUT_HOST_IPC)
    assert "hostUsers" not in with_host_ipc.problem.remedy
    assert without.problem.remedy.endswith("in every container, or hostUsers: false on the pod")
    assert all(
        "allowPrivilegeEscalation: false" in one.problem.remedy for one in (with_host_ipc, without)
    )
    shared = found(root | {"spec": {**root["spec"], "hostPID": True}}, _WITHOUT_HOST_IPC)
    assert shared[-1].problem.remedy.endswith(
        "or hostUsers: false on the pod without hostIPC and hostPID"
    )


@pytest.mark.parametrize("mode", [HostIPC.REQUIRE, HostIPC.INJECT])
def test_host_ipc_is_not_added_to_a_pod_with_its_own_users(mode: HostIPC) -> None:
    policy, thing = (with_admission(host_ipc=mode), asking(hostIPC=None, hostUsers=False))
    (one,) = found(thing, policy)
    assert one.rule == RuleId.HOST_IPC_MISSING
    assert "Kubernetes forbids it together with hostUsers: false" in one.problem.message
    assert HOST_IPC not in mutated(review_of(thing), policy).patch
    assert found(thing, _WITHOUT_HOST_IPC) == ()


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/dev",
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-caps/x",
        *("/dev/char/195:0", "/proc", "/proc/1/root", "/proc/1/root/dev/nvidia0", "/proc/self/cwd"),
        "/run",
        "/var",
        "/var/run",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/crio",
        "/sys",
        "/sys/fs/cgroup",
        "/run/systemd/private",
        "/run/dbus",
        "/var/lib/kubelet/pods/x",
        "/run/k0s",
        *("/var/snap/microk8s/common", "/etc/cron.d", "/etc/crontab"),
        "/var/lib",
        "/var/lib/kubelet",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        *("/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry/gpu.mpsd.io-reg.sock"),
        *("/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pki"),
        *("/var/lib/containerd", "/var/lib/docker/overlay2", "/var/lib/containers/storage"),
        *("/var/lib/rancher", "/var/lib/rancher/k3s/agent/containerd", "/var/lib/rancher/rke2/x"),
        *("/var/lib/k0s/kubelet", "/etc/containerd/config.toml", "/etc/rancher/k3s/k3s.yaml"),
        *("/dev/mem", "/dev/kmem", "/dev/port", "/dev/dri", "/dev/dri/renderD128", "/dev/vfio/7"),
        *("/etc/nvidia-container-runtime/config.toml", "/etc/nvidia-container-toolkit"),
        *("/usr/local/nvidia", "/usr/local/nvidia/toolkit", "/usr"),
        "/etc",
        "/etc/cdi",
        "/etc/kubernetes/manifests",
        *("/srv/..", "/srv/../dev", "/var/lock/../mpsd", "/a/b/../../c", "..", "dev/nvidia0", ""),
    ],
)
def test_a_path_of_the_host_that_leads_to_a_gpu_is_found_however_it_is_written(
    path: str, asks: bool
) -> None:
    rule = "host-path" if asks else "unasked-host-path"
    assert (rule, "spec.volumes[data].hostPath.path") in [
        one[:2] for one in broken(with_volume(path, asks))
    ]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        "/data",
        "/dev/shm",
        *("/dev/infiniband", "/dev/memory", "/usr/local/nvidia2", "/var/lib/rancher/k3s/storage"),
        "/srv/dev",
        "/runs",
        "/var/log",
        "/etc/localtime",
        "/..data",
    ],
)
def test_other_paths_of_the_host_are_left_alone(path: str, asks: bool) -> None:
    assert broken(with_volume(path, asks)) == []


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    "path", ["/run/mpsd", "/var/run//mpsd/", "/run/mpsd/gpu0/pipe", "/run/./mpsd/gpu0/client"]
)
def test_mpsds_own_files_are_nobody_elses(path: str, asks: bool) -> None:
    assert [rule for rule, _, _ in broken(with_volume(path, asks))] == ["mpsd-files"]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    ("path", "mount", "key"),
    [
        ("/run", {"subPath": "mpsd"}, "subPath"),
        ("/run", {"subPath": "mpsd/gpu0/client"}, "subPath"),
        ("/", {"subPath": "var/run/./mpsd"}, "subPath"),
        ("/", {"subPathExpr": "$(A)"}, "subPathExpr"),
        ("/run", {"subPathExpr": "mpsd"}, "subPathExpr"),
        ("/run", {"subPath": "mpsd2"}, ""),
        ("/data", {"subPath": "run/mpsd"}, ""),
        ("/data", {"subPathExpr": "$(A)"}, ""),
    ],
)
def test_a_part_of_a_volume_does_not_lead_to_mpsds_own_files(
    path: str, mount: Fields, key: str, asks: bool
) -> None:
    thing = with_volume(path, asks)
    thing["spec"]["initContainers"] = [
        container("x", volumeMounts=[{"name": "data", "mountPath": "/x", **mount}])
    ]
    thing["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "other", "mountPath": "/y", "subPath": "mpsd"}
    ]
    places = [where for rule, where, _ in broken(thing) if rule == "mpsd-files"]
    assert places == ([f"spec.initContainers[x].volumeMounts[0].{key}"] if key else [])


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    ("allowed", "path", "is_found"),
    [
        (None, "/data", False),
        ((), "/data", True),
        (("/data",), "/data/a", False),
        (("/data",), "/", True),
        (("/data",), "/database", True),
        (("/data",), "/data/../etc", True),
        (("/dev",), "/dev/nvidia0", True),
    ],
)
def test_a_list_of_host_paths_allows_no_others_and_no_blocked_ones(
    allowed: tuple[str, ...] | None, path: str, is_found: bool, asks: bool
) -> None:
    rule = "host-path" if asks else "unasked-host-path"
    assert [
        one[0]
        for one in broken(with_volume(path, asks), with_admission(allowed_host_paths=allowed))
    ] == ([rule] if is_found else [])


@pytest.mark.parametrize(
    ("mode", "host_ipc", "rule"),
    [
        (HostIPC.REQUIRE, False, "host-ipc-missing"),
        (HostIPC.INJECT, False, "host-ipc-added"),
        (HostIPC.OFF, False, ""),
        (HostIPC.REQUIRE, True, ""),
        (HostIPC.INJECT, True, ""),
        (HostIPC.OFF, True, "host-ipc-unneeded"),
    ],
)
def test_the_policy_says_what_becomes_of_host_ipc(mode: HostIPC, host_ipc: bool, rule: str) -> None:
    policy = with_admission(host_ipc=mode)
    assert [one[0] for one in broken(asking(hostIPC=host_ipc), policy)] == [
        *([rule] if rule else [])
    ]
    assert broken(pod(container(), hostIPC=host_ipc), policy) == []


def test_a_pod_that_should_have_been_given_host_ipc_and_was_not_is_refused() -> None:
    policy, late = with_admission(host_ipc=HostIPC.INJECT), RequestContext(is_changed=True)
    thing = asking(hostIPC=None)
    assert [rule for rule, _, _ in broken(thing, policy, late)] == ["host-ipc-missing"]
    job = inside("batch/v1", "Job", thing)
    assert [rule for rule, _, _ in broken(job, policy, late)] == ["host-ipc-added"], (
        "its pods are still to be created"
    )


# Whether a path leads to another, as far as its text can say.

PATTERNS = ("/dev/nvidia*", "/run/mpsd", "/var/lib/kubelet/device-plugins")


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("/", PATTERNS),
        ("", PATTERNS),
        ("/dev", ("/dev/nvidia*",)),
        ("dev/", ("/dev/nvidia*",)),
        ("/dev/nvidia", ("/dev/nvidia*",)),
        ("/dev/nvidi", ()),
        ("/run", ("/run/mpsd",)),
        ("/var/run", ("/run/mpsd",)),
        ("/var/run/mpsd/gpu0", ("/run/mpsd",)),
        ("/var", ("/var/lib/kubelet/device-plugins",)),
        ("/run/mpsd-other", ()),
        ("/home/../dev", PATTERNS),
        ("/home/..x", ()),
    ],
)
def test_a_path_of_the_host_leads_to_what_is_above_and_below_it(
    path: str, places: tuple[str, ...]
) -> None:
    assert reached(path, PATTERNS) == places


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/run/mpsd/client/", "/run/mpsd"),
        ("/run//x/../mpsd", "/run/mpsd"),
        ("/../../dev/nvidia0", "/dev/nvidia*"),
        ("/var/run/mpsd", "/run/mpsd"),
        ("/run", ""),
        ("/", ""),
        ("/data/run/mpsd", ""),
    ],
)
def test_a_path_inside_a_container_is_read_to_its_end(path: str, place: str) -> None:
    assert host_inside(path, PATTERNS) == place


def test_a_path_of_megabytes_is_followed_as_a_short_one_is() -> None:
    there_and_back = "/a" * 500_000 + "/.." * 500_000
    assert host_inside(f"{there_and_back}/dev/nvidia0", PATTERNS) == "/dev/nvidia*"
    assert host_inside(f"{there_and_back}/data", PATTERNS) == ""
    assert reached("/dev/" + "./" * 500_000 + "nvidia0", PATTERNS) == ("/dev/nvidia*",)
