"""Whose a process is: the lines are as kernels, kubelets and runtimes write them, with the sources
beside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform.rules.cgroups import (
    Cgroup,
    alone_in,
    container_of_cgroup,
    node_cgroup,
    pod_of_cgroup,
    program_cgroup,
)

UID = "30cea2cf-1b80-4807-abad-d81453e199c5"
UNDERSCORED = UID.replace("-", "_")
OTHER = "96dd7de3-0783-4613-a707-e0effc077ef5"
HASH = "46dac9a538838115821dfd9559149484"
CONTAINER = "a8077b08a56c0c6e33d6716557d882ac940cb09475c50372e22e84c40d0733f2"
NODE = "65a1b6ad09655b3f1475ede1aa0061a97c0d1ada9f2b2acac959afbc92094463"

SEEN = {
    # kubernetes.io/docs/concepts/architecture/cgroups and kubelet's names for its three classes of
    # service
    "v2, cgroupfs, burstable": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}",
    "v2, cgroupfs, guaranteed": f"0::/kubepods/pod{UID}/{CONTAINER}",
    # github.com/cryptnono/cryptnono/issues/47
    "v2, systemd, containerd": (
        "0::/kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope"
    ),
    # github.com/tkestack/vcuda-controller/issues/19
    "v1, systemd, containerd, guaranteed": (
        f"12:hugetlb:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope\n"
        f"4:cpu,cpuacct:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope\n"
        f"1:name=systemd:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope\n"
    ),
    # github.com/iovisor/kubectl-trace/issues/174
    "systemd, CRI-O": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/crio-{CONTAINER}.scope"
    ),
    "systemd, CRI-O with crun, which makes one more below": (
        "0::/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{UNDERSCORED}.slice/crio-{CONTAINER}.scope/container"
    ),
    # github.com/elastic/apm-agent-nodejs/issues/3550: kubelet on systemd, containerd on cgroupfs
    "kubelet and containerd of two minds": (
        "1:name=systemd:/system.slice/containerd.service/"
        f"kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{CONTAINER}"
    ),
    "the same, as the other controllers say it": (
        f"5:memory:/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{CONTAINER}\n"
        "0::/system.slice/containerd.service"
    ),
    # kind, older: kubelet with --cgroup-root=/kubelet, seen from outside and from inside of the
    # node
    "kind, cgroupfs, from outside": (
        f"3:memory:/docker/{NODE}/kubelet/kubepods/besteffort/pod{UID}/{CONTAINER}"
    ),
    "kind, cgroupfs, from inside": f"0::/kubelet/kubepods/besteffort/pod{UID}/{CONTAINER}",
    "kind, systemd": (
        f"0::/system.slice/docker-{NODE}.scope/kubelet.slice/kubelet-kubepods.slice/"
        "kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope"
    ),
    "kind, of two minds": f"0::/kubelet-kubepods-pod{UNDERSCORED}.slice:cri-containerd:{CONTAINER}",
    # cgroup_namespaces(7): an unprivileged agent on v2 sees paths from its own cgroup on
    "another class of service, from a namespace": f"0::/../../../burstable/pod{UID}/{CONTAINER}",
    "the same class of service, from a namespace": f"0::/../../pod{UID}/{CONTAINER}",
    "systemd, from a namespace": (
        f"0::/../../kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope"
    ),
    "a container that ends": f"0::/kubepods/pod{UID}/{CONTAINER} (deleted)",
}


@pytest.mark.parametrize("text", SEEN.values(), ids=SEEN.keys())
def test_a_process_of_a_pod_is_found_under_every_driver_and_runtime(text: str) -> None:
    assert pod_of_cgroup(text) == UID


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods/burstable/pod{HASH}/{CONTAINER}",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice/crio-{CONTAINER}.scope",
    ],
)
def test_a_static_pod_goes_by_its_hash(text: str) -> None:
    assert pod_of_cgroup(text) == HASH


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/init.scope",
        "0::/user.slice/user-1000.slice/session-2.scope",
        "0::/system.slice/containerd.service",
        "0::/system.slice/kubelet.service",
        f"0::/system.slice/docker-{NODE}.scope",
        f"4:memory:/docker/{NODE}",
        "0::/kubepods.slice/kubepods-burstable.slice",
        f"0::/machine.slice/libpod-{CONTAINER}.scope",
        f"0::/home/pod{UID}/{CONTAINER}",
        f"0::/kubepods/podtrain-0/{CONTAINER}",
        f"0::/some-pod{UNDERSCORED}.slice/x-{CONTAINER}.scope",
        "no colons at all",
    ],
)
def test_a_process_of_the_host_is_in_no_pod(text: str) -> None:
    assert pod_of_cgroup(text) is None


@pytest.mark.parametrize(
    "below", ["", "/", "/crio-conmon-" + CONTAINER, "/crio-conmon-" + CONTAINER + ".scope"]
)
def test_what_is_beside_the_containers_of_a_pod_is_of_the_pod_too(below: str) -> None:
    assert pod_of_cgroup(f"0::/kubepods/burstable/pod{UID}{below}") == UID


@pytest.mark.parametrize(
    "inner",
    [
        f"/docker/{NODE}",
        f"/docker/{NODE}/kubelet/kubepods/pod{OTHER}/{NODE}",
        (
            f"/kubelet.slice/kubelet-kubepods-pod{OTHER.replace('-', '_')}.slice"
            f"/cri-containerd-{NODE}.scope"
        ),
        f"/x\x0b0::/kubepods/pod{OTHER}/{NODE}",
        f"/x\u20280::/kubepods/pod{OTHER}/{NODE}",
    ],
)
def test_a_pod_cannot_make_its_processes_another_s(inner: str) -> None:
    assert pod_of_cgroup(f"0::/kubepods/burstable/pod{UID}/{CONTAINER}{inner}") == UID


def test_hierarchies_that_name_two_pods_are_not_believed() -> None:
    assert (
        pod_of_cgroup(
            f"5:memory:/kubepods/pod{UID}/{CONTAINER}\n4:devices:/kubepods/pod{OTHER}/{CONTAINER}"
        )
        is None
    )


def test_on_a_node_in_a_pod_the_pods_are_those_of_that_node() -> None:
    outer = f"/kubepods/burstable/pod{OTHER}/{NODE}"
    own = f"0::{outer}/kubepods/besteffort/pod{HASH}/{CONTAINER}"
    node = node_cgroup(own)
    assert node == outer
    assert pod_of_cgroup(own, node) == HASH
    assert (
        pod_of_cgroup(f"0::{outer}/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{OTHER}/{NODE}", node)
        == UID
    )


@pytest.mark.parametrize(
    "own", ["0::/", "4:memory:/\n0::/", SEEN["v2, systemd, containerd"], SEEN["kind, systemd"]]
)
def test_a_node_that_is_in_no_pod_needs_nothing_taken_off(own: str) -> None:
    assert node_cgroup(own) == ""


PIECES = st.sampled_from(
    ["0::", "/", "kubepods", "pod", UID, UNDERSCORED, ".slice", ":", "..", "-", CONTAINER, "\n"]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join)))
def test_no_text_whatever_raises(text: str) -> None:
    found = pod_of_cgroup(text, node_cgroup(text))
    assert found is None or found in text.replace("_", "-")


# Which container a process is in, by cgroups that are a container's alone.

V1 = "9:name=systemd:{0}\n8:pids:{0}\n4:memory:/init{0}\n0::/\n"
HOST = "9:name=systemd:/\n8:pids:/\n4:memory:/init\n0::/\n"
DOCKER = "0::/system.slice/docker-{}.scope\n"
NAMES = st.lists(st.sampled_from("abc"), max_size=3).map(lambda steps: "/" + "/".join(steps))


def v2(path: str) -> str:
    return f"0::{path}\n"


def test_a_container_has_every_cgroup_to_itself_that_nobody_older_is_in() -> None:
    assert alone_in(V1.format("/c1"), [HOST, V1.format("/c2")]) == (
        Cgroup("name=systemd", "/c1"),
        Cgroup("pids", "/c1"),
        Cgroup("memory", "/init/c1"),
    )
    assert alone_in(DOCKER.format("x"), [v2("/init.scope")]) == (
        Cgroup("", "/system.slice/docker-x.scope"),
    )


def test_a_cgroup_that_somebody_older_is_in_or_below_is_nobodys() -> None:
    """As where the bundle names none, or a slice with others in it."""
    assert alone_in(v2("/user.slice"), [v2("/user.slice")]) == ()
    assert alone_in(v2("/user.slice"), [v2("/user.slice/session-1.scope")]) == ()
    assert alone_in(v2("/user.slice/c1"), [v2("/user.slice"), v2("/user.slice/c10")]) != ()


def test_what_is_in_or_below_a_containers_cgroup_is_its_own() -> None:
    homes = {"a": alone_in(V1.format("/c1"), [HOST]), "b": alone_in(V1.format("/c10"), [HOST])}
    assert container_of_cgroup(V1.format("/c1"), homes) == "a"
    assert container_of_cgroup(V1.format("/c1/inner"), homes) == "a"
    assert container_of_cgroup(V1.format("/c10"), homes) == "b"
    assert container_of_cgroup(HOST, homes) is None


def test_the_innermost_of_two_containers_counts() -> None:
    homes = {"outer": [Cgroup("", "/c1")], "inner": [Cgroup("", "/c1/docker/c2")]}
    assert container_of_cgroup(v2("/c1/docker/c2/x"), homes) == "inner"
    assert container_of_cgroup(v2("/c1/docker/c3"), homes) == "outer"


def test_where_hierarchies_name_different_containers_none_is_believed() -> None:
    homes = {"a": [Cgroup("pids", "/c1")], "b": [Cgroup("memory", "/c2")]}
    assert container_of_cgroup("8:pids:/c1\n4:memory:/c2\n", homes) is None
    assert container_of_cgroup("8:pids:/c1\n4:memory:/\n", homes) == "a"


@given(first=NAMES, older=st.lists(NAMES), process=NAMES)
def test_nobody_older_is_ever_taken_for_a_containers(
    first: str, older: list[str], process: str
) -> None:
    homes = {"a": alone_in(v2(first), map(v2, older))}
    assert all(container_of_cgroup(v2(path), homes) is None for path in older)
    if container_of_cgroup(v2(process), homes):
        assert f"{process}/".startswith(f"{first}/")
    if homes["a"]:
        assert container_of_cgroup(v2(first), homes) == "a"


@given(path=NAMES, others=st.lists(NAMES))
def test_two_containers_in_one_cgroup_are_told_apart_by_nobody(
    path: str, others: list[str]
) -> None:
    homes = {"a": [Cgroup("", path)], "b": [Cgroup("", path)]}
    assert all(container_of_cgroup(v2(one), homes) is None for one in [path, *others])


# -- the cgroup that mpsd makes for a program


def is_roots(path: str) -> bool:
    return "user@" not in path


def made_for(text: str, hierarchy: str = "") -> str | None:
    made = program_cgroup(text, hierarchy, "abc", is_roots)
    return made.path if made else None


def test_a_programs_cgroup_lies_in_the_deepest_that_is_roots() -> None:
    assert made_for(v2("/")) == "/mpsd-abc"
    session = "/user.slice/user-1000.slice/session-3.scope"
    assert made_for(v2(session)) == f"{session}/mpsd-abc", "its limits stay in force"
    delegated = "/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope"
    assert made_for(v2(delegated)) == "/user.slice/user-1000.slice/mpsd-abc", (
        "its owner moves nobody out of it"
    )


def test_a_programs_cgroup_lies_beside_that_of_the_grant_that_it_was_started_under() -> None:
    assert made_for(v2("/user.slice/mpsd-0123/inner")) == "/user.slice/mpsd-abc"


def test_a_programs_cgroup_is_of_the_hierarchy_that_was_asked_for() -> None:
    both = "9:pids:/a\n4:cpu,memory:/b\n1:name=systemd:/c\n"
    assert program_cgroup(both, "memory", "abc", is_roots) == Cgroup("cpu,memory", "/b/mpsd-abc")
    assert made_for(both, "pids") == "/a/mpsd-abc"
    assert made_for(both) is None, "there is no v2"


@given(path=NAMES)
def test_whatever_is_below_a_programs_cgroup_is_its_own(path: str) -> None:
    made = program_cgroup(v2(path), "", "abc", is_roots)
    assert made
    homes = {"abc": [made]}
    assert container_of_cgroup(v2(f"{made.path}/x"), homes) == "abc"
    assert container_of_cgroup(v2(f"{made.path}x"), homes) is None
