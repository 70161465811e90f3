"""The rules for access to the host."""

import pytest

from mpsd.admission.rules.host import inside as host_inside
from mpsd.admission.rules.host import reached
from mpsd.admission.rules.rule import RequestContext
from mpsd.model.policy import HostIPC
from tests.admission.cases import broken, in_kind, with_volume
from tests.model.manifests import MEMORY, container, inside, pod, with_admission


@pytest.mark.parametrize(
    "name", ["ALL", "all", "CAP_ALL", "SYS_ADMIN", "cap_sys_admin", "Cap_Sys_Ptrace", "MKNOD", "CAP_SYS_RAWIO"]
)
def test_capabilities_are_known_in_every_spelling(name: str) -> None:
    thing = in_kind("containers", securityContext={"capabilities": {"add": ["NET_RAW", name]}})
    assert broken(thing) == [
        ("capabilities", "spec.containers[x].securityContext.capabilities.add", f'"{name}"'),
    ]


def test_host_pid_is_for_pods_without_a_gpu() -> None:
    assert broken(pod(container(limits={MEMORY: 7}), hostPID=True)) == [("host-pid", "spec.hostPID", "true")]
    assert broken(pod(container(), hostPID=True)) == []


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
    asking = container(limits={MEMORY: 7}, securityContext=of_container)
    thing = pod(asking, container("beside", securityContext={"runAsUser": 0}), securityContext=of_pod)
    expected = [("host-root", f"spec.containers[main].{where}")] if where else []
    assert [one[:2] for one in broken(thing)] == expected
    thing["spec"]["hostUsers"] = False
    assert broken(thing) == []


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/.", "/dev", "/dev/", "/dev/.//", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/x"),
        *("/dev/char/195:0", "/proc", "/proc/1/root", "/proc/1/root/dev/nvidia0", "/proc/self/cwd"),
        *("/run", "/var", "/var/run", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio"),
        *("/var/lib", "/var/lib/kubelet", "/var/lib/kubelet/device-plugins/kubelet.sock", "/etc", "/etc/cdi"),
        *("/srv/..", "/srv/../dev", "/var/lock/../mpsd", "/a/b/../../c", "..", "dev/nvidia0", ""),
    ],
)
def test_a_path_of_the_host_that_leads_to_a_gpu_is_found_however_it_is_written(path: str, asks: bool) -> None:
    rule = "host-path" if asks else "unasked-host-path"
    assert (rule, "spec.volumes[data].hostPath.path") in [one[:2] for one in broken(with_volume(path, asks))]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    "path", ["/data", "/dev/shm", "/dev/infiniband", "/srv/dev", "/runs", "/var/log", "/etc/localtime", "/..data"]
)
def test_other_paths_of_the_host_are_left_alone(path: str, asks: bool) -> None:
    assert broken(with_volume(path, asks)) == []


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("path", ["/run/mpsd", "/var/run//mpsd/", "/run/mpsd/gpu0/pipe", "/run/./mpsd/gpu0/client"])
def test_mpsds_own_files_are_nobody_elses(path: str, asks: bool) -> None:
    assert [rule for rule, _, _ in broken(with_volume(path, asks))] == ["mpsd-files"]


def test_other_volumes_are_left_alone() -> None:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "x"}}, {"name": "c"}]
    assert broken(pod(container(limits={MEMORY: 7}), volumes=volumes)) == []


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
    assert [one[0] for one in broken(pod(container(limits={MEMORY: 7}), hostIPC=host_ipc), policy)] == [
        *([rule] if rule else [])
    ]
    assert broken(pod(container(), hostIPC=host_ipc), policy) == []


def test_a_pod_that_should_have_been_given_host_ipc_and_was_not_is_refused() -> None:
    policy, late = with_admission(host_ipc=HostIPC.INJECT), RequestContext(is_changed=True)
    thing = pod(container(limits={MEMORY: 7}), hostIPC=None)
    assert [rule for rule, _, _ in broken(thing, policy, late)] == ["host-ipc-missing"]
    job = inside("batch/v1", "Job", thing)
    assert [rule for rule, _, _ in broken(job, policy, late)] == ["host-ipc-added"], "its pods are still to be created"


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
        ("/dev/nvidia0/x", ("/dev/nvidia*",)),
        ("/dev/nvidi", ()),
        ("/dev/dri", ()),
        ("/run", ("/run/mpsd",)),
        ("/var/run", ("/run/mpsd",)),
        ("/var/run/mpsd/gpu0", ("/run/mpsd",)),
        ("/var", ("/var/lib/kubelet/device-plugins",)),
        ("/run/mpsd-other", ()),
        ("/home/../dev", PATTERNS),
        ("/home/..", PATTERNS),
        ("/home/..x", ()),
        ("/DEV", ()),
    ],
)
def test_a_path_of_the_host_leads_to_what_is_above_and_below_it(path: str, places: tuple[str, ...]) -> None:
    assert reached(path, PATTERNS) == places


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/run/mpsd", "/run/mpsd"),
        ("/run/mpsd/client/", "/run/mpsd"),
        ("/run//x/../mpsd", "/run/mpsd"),
        ("/../../dev/nvidia0", "/dev/nvidia*"),
        ("/var/run/mpsd", "/run/mpsd"),
        ("/run", ""),
        ("/", ""),
        ("", ""),
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
