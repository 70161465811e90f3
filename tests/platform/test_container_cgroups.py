"""Which container a process is in, by cgroups that are a container's alone."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform.rules.cgroups import Cgroup, alone_in, container_of_cgroup

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
    assert alone_in(DOCKER.format("x"), [v2("/init.scope")]) == (Cgroup("", "/system.slice/docker-x.scope"),)


def test_the_root_is_nobodys() -> None:
    assert alone_in(v2("/"), []) == ()
    assert alone_in(v2("/../.."), []) == ()


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
def test_nobody_older_is_ever_taken_for_a_containers(first: str, older: list[str], process: str) -> None:
    homes = {"a": alone_in(v2(first), map(v2, older))}
    assert all(container_of_cgroup(v2(path), homes) is None for path in older)
    if container_of_cgroup(v2(process), homes):
        assert f"{process}/".startswith(f"{first}/")
    if homes["a"]:
        assert container_of_cgroup(v2(first), homes) == "a"


@given(path=NAMES, others=st.lists(NAMES))
def test_two_containers_in_one_cgroup_are_told_apart_by_nobody(path: str, others: list[str]) -> None:
    homes = {"a": [Cgroup("", path)], "b": [Cgroup("", path)]}
    assert all(container_of_cgroup(v2(one), homes) is None for one in [path, *others])
