"""The DaemonSet of the control daemons: which revision is the newest, and which pod of a node counts."""

from typing import Any

from mpsd.model.times import seconds
from mpsd.operations.lifecycle.rules.upgrade import control_pods, pod_selector, read_control_set

OWNER = [{"uid": "ds", "controller": True}]


def daemon_set(generation: int = 2, observed: int | None = 2) -> Any:
    template = {"spec": {"containers": [{"name": "control", "image": "mpsd:1"}]}}
    spec = {"template": template, "selector": {"matchLabels": {"b": "2", "a": "1"}}}
    metadata = {"name": "control", "namespace": "mpsd-system", "uid": "ds", "generation": generation}
    return {"metadata": metadata, "spec": spec, "status": {} if observed is None else {"observedGeneration": observed}}


def revision(number: int, hash_: str, owner: Any = OWNER) -> Any:
    metadata = {"name": hash_, "labels": {"controller-revision-hash": hash_}, "ownerReferences": owner}
    return {"metadata": metadata, "revision": number}


def pod(name: str, node: str = "a", *, ending: bool = False, at: str = "2026-11-21T08:00:00Z", **status: Any) -> Any:
    metadata = {"name": name, "uid": name, "creationTimestamp": at, "ownerReferences": OWNER}
    metadata |= {"deletionTimestamp": at} if ending else {}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"image": "mpsd:1"}]}, "status": status}


def test_the_newest_revision_is_that_of_the_highest_number_of_this_daemon_set() -> None:
    others = revision(9, "c", [{"uid": "another"}])
    assert read_control_set(daemon_set(), [revision(3, "a"), revision(2, "b"), others]).revision == "a"
    assert read_control_set(daemon_set(), [others]).revision == ""


def test_no_revision_is_the_newest_before_the_last_change_was_seen() -> None:
    for unseen in (daemon_set(generation=3), daemon_set(observed=None)):
        assert read_control_set(unseen, [revision(3, "a")]).revision == ""


def test_of_two_pods_of_a_node_the_one_that_stays_counts() -> None:
    old, new = pod("old", ending=True), pod("new", at="2026-11-21T08:10:00Z")
    for order in ([old, new], [new, old]):
        assert control_pods(order, "ds")["a"].name == "new"
    assert control_pods([old], "ds")["a"].ending
    assert control_pods([pod("unplaced", node="")], "ds") == {}
    assert control_pods([new], "another") == {}


def test_a_pod_has_started_once_each_of_its_containers_runs() -> None:
    running: Any = {"state": {"running": {"startedAt": "2026-11-21T08:00:05Z"}}}
    waiting: Any = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    began = control_pods([pod("a", containerStatuses=[running])], "ds")["a"]
    assert began.started_at == seconds("2026-11-21T08:00:05Z")
    held = control_pods([pod("a", containerStatuses=[running, waiting])], "ds")["a"]
    assert (held.started_at, held.trouble) == (None, "ImagePullBackOff: no such image")
    assert control_pods([pod("a")], "ds")["a"].started_at is None


def test_pods_are_asked_for_by_the_daemon_sets_own_selector() -> None:
    assert pod_selector(daemon_set()) == "a=1,b=2"
