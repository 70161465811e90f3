"""Which pods run without having been given their devices."""

from mpsd.kubelet.rules.reconcile import since, without_devices
from tests.status.node_worlds import container, devices, entry, mem_ids, named, node_pod

LISTED = {("default", "a")}


def test_a_pod_that_runs_without_devices_is_found() -> None:
    pod = node_pod("a", container(mem=7), phase="Running")
    assert without_devices([pod], (), LISTED, ()) == (pod,)


def test_a_pod_that_kubelet_does_not_speak_of_is_none() -> None:
    """One that has just started lists nobody before it has heard from the API."""
    assert without_devices([node_pod("a", container(mem=7), phase="Running")], (), (), ()) == ()


def test_a_pod_that_kubelet_or_the_journal_knows_is_none() -> None:
    pod = node_pod("a", container(mem=7), phase="Running")
    assert without_devices([pod], (devices(named("a"), mem_ids(7)),), LISTED, ()) == ()
    assert without_devices([pod], (), LISTED, (entry(mem_ids(7), named("a"), 100, 1.0, pod.uid),)) == ()


def test_a_pod_that_does_not_run_is_none() -> None:
    pods = [
        node_pod(name, container(mem=7), phase=phase)
        for name, phase in (("a", "Pending"), ("b", "Succeeded"), ("c", "Failed"))
    ]
    assert without_devices(pods, (), {("default", name) for name in "abc"}, ()) == ()


def test_a_pod_whose_init_container_alone_asks_is_none() -> None:
    """Its devices are listed by nobody once it has ended."""
    pod = node_pod("a", container(), init=(container("first", mem=5),), phase="Running")
    assert without_devices([pod], (), LISTED, ()) == ()


def test_the_time_begins_anew_where_it_was_not_so_for_a_moment() -> None:
    pod = node_pod("a", container(mem=7), phase="Running")
    first = since({}, [pod], 10.0)
    assert since(first, [pod], 20.0) == {pod.uid: 10.0}
    assert since(since(first, [], 15.0), [pod], 20.0) == {pod.uid: 20.0}
