"""Which pods are known to hold no grant: never one that holds any, however late or wrong what is
known may be."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry
from mpsd.kubelet.rules.node_pods import NodePod, PodKey, read_node_pod
from mpsd.kubelet.rules.ungranted import late, since, ungranted, unserved, without_devices
from mpsd.model.identity import PodName
from tests.model.manifests import with_admission
from tests.model.worlds import POLICY
from tests.status.node_worlds import (
    MEM,
    container,
    devices,
    entry,
    mem_ids,
    named,
    node_pod,
    pod_object,
)

MIRROR = "kubernetes.io/config.mirror"


def read(thing: dict[str, Any]) -> NodePod | None:
    return read_node_pod(thing, POLICY)


def judged(
    *rows: NodePod | None,
    held: tuple[ContainerDevices, ...] = (),
    journal: tuple[JournalEntry, ...] = (),
    unallocated: Collection[str] = (),
) -> dict[str, PodName]:
    return ungranted([row for row in rows if row], held, journal, unallocated, POLICY)


def found(*things: dict[str, Any], **more: Any) -> dict[str, PodName]:
    return judged(*map(read, things), **more)


def test_a_pod_that_asks_for_no_gpu_holds_none() -> None:
    plain = pod_object("web", container(resources={"limits": {"cpu": "1", "memory": "1Gi"}}))
    assert found(plain) == {"uid-of-web": PodName("default", "web", "uid-of-web")}


@pytest.mark.parametrize("amount", [7, "40Gb", "16Ki", None, {}])
def test_whoever_asks_for_memory_is_not_judged_however_it_is_written(amount: object) -> None:
    assert found(pod_object("train", container(resources={"limits": {MEM: amount}}))) == {}
    assert found(pod_object("train", container(resources={"requests": {MEM: amount}}))) == {}


def test_a_pod_without_its_devices_is_late_after_a_minute() -> None:
    pod = node_pod("train")
    first_seen = since({}, [pod], 100.0)
    assert late(first_seen, [pod], 159.9) == ()
    assert late(since(first_seen, [pod], 130.0), [pod], 160.0) == (pod,)


@pytest.mark.parametrize("amount", [0, "0", "0Gi", "0e9", "-0"])
def test_to_ask_for_nothing_of_it_is_not_to_ask(amount: object) -> None:
    assert set(found(pod_object("web", container(resources={"limits": {MEM: amount}})))) == {
        "uid-of-web"
    }


def test_a_share_of_the_threads_alone_is_no_gpu() -> None:
    assert set(found(pod_object("train", container(percent=30)))) == {"uid-of-train"}


@pytest.mark.parametrize(
    "resources",
    [{"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/mig-1g.5gb": "1"}}],
)
def test_who_may_have_a_gpu_from_another_is_not_judged(resources: dict[str, object]) -> None:
    assert found(pod_object("other", container(resources=resources))) == {}


# -- who asks another device plugin

_FOREIGN: dict[str, Any] = {"limits": {"nvidia.com/x": 1}}
_KEY = ("default", "other")


def of_another(phase: str = "Running", resources: dict[str, Any] = _FOREIGN) -> NodePod:
    row = read(pod_object("other", container(resources=resources), phase=phase))
    assert row
    return row


def test_a_name_that_kubelet_lists_no_device_of_excuses_nobody() -> None:
    """Kubelet runs what asks for a resource that nobody offers, on a node that the pod names."""
    row = of_another()
    found = unserved([row], {_KEY}, (), POLICY)
    assert found == {row.uid}
    assert judged(row) == {}, "before kubelet has listed"
    assert set(judged(row, unallocated=found)) == {row.uid}


@pytest.mark.parametrize(
    ("listed", "is_unserved"),
    [
        ((), True),
        (((_KEY, "nvidia.com/x"),), False),
        (((_KEY, "example.com/nic"),), True),
        ((((*_KEY[:1], "another"), "nvidia.com/x"),), True),
    ],
)
def test_a_device_of_what_the_container_asks_for_excuses_it(
    listed: tuple[tuple[PodKey, str], ...], is_unserved: bool
) -> None:
    assert bool(unserved([of_another()], {_KEY}, listed, POLICY)) is is_unserved


@pytest.mark.parametrize("phase", ["", "Pending", "Succeeded", "Failed"])
def test_the_excuse_stays_while_a_pod_does_not_run(phase: str) -> None:
    """Kubelet never lists the devices of plain init containers."""
    assert not unserved([of_another(phase)], {_KEY}, (), POLICY)


def test_a_pod_that_kubelet_does_not_list_yet_is_not_judged() -> None:
    assert not unserved([of_another()], (), (), POLICY)


@pytest.mark.parametrize(
    ("resources", "kept"),
    [
        ({"limits": {"cpu": 1}}, ("nvidia.com/*",)),
        ({"limits": {"example.com/nic": 1}}, ("nvidia.com/*",)),
        ({"limits": {MEM: 1, "nvidia.com/x": 1}}, ("nvidia.com/*",)),
        ({"limits": {"deviceclass.resource.kubernetes.io/a": 1}}, ("deviceclass.*",)),
        ({"claims": [{"name": "a"}]}, ("deviceclass.resource.kubernetes.io/a",)),
    ],
)
def test_who_asks_otherwise_is_not_judged_by_what_kubelet_lists_of_others(
    resources: dict[str, object], kept: tuple[str, ...]
) -> None:
    """Claims are in no list of devices, and who asks for memory of ours has a minute."""
    row = of_another(resources=resources)
    assert not unserved([row], {_KEY}, (), with_admission(visible_devices_kept_for=kept))


@pytest.mark.parametrize(
    ("kept", "judges"),
    [
        (("nvidia.com/*",), True),
        (("nvidia.com/*", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"), False),
        (("deviceclass.resource.kubernetes.io/*",), False),
    ],
)
def test_a_resource_claim_spares_a_pod_only_where_the_policy_names_a_device_class(
    kept: tuple[str, ...], judges: bool
) -> None:
    """A claim can be for anything or for nothing, and its pod does not say for what."""
    for resources in (
        {"claims": [{"name": "empty"}]},
        {"claims": [{"name": "empty"}], "limits": {"cpu": 1}},
    ):
        row = read(pod_object("other", container(resources=resources)))
        assert row
        policy = with_admission(visible_devices_kept_for=kept)
        assert ungranted([row], (), (), (), policy).keys() == (
            {row.identity.uid} if judges else set()
        )


def test_who_asks_is_judged_only_after_long_and_no_longer_once_he_is_served() -> None:
    late = node_pod("late", phase="Running")
    assert judged(late) == {}
    assert set(judged(late, unallocated={late.uid})) == {late.uid}
    held = (devices(named("late"), mem_ids(7)),)
    assert judged(late, unallocated={late.uid}, held=held) == {}
    noted = (entry(mem_ids(7), named("late"), 100, 1.0, late.uid),)
    assert judged(late, unallocated={late.uid}, journal=noted) == {}


def test_where_kubelet_and_the_api_say_different_things_nobody_is_judged() -> None:
    web = pod_object("web", container())
    assert found(web, held=(devices(named("web"), mem_ids(7)),)) == {}


def test_whoever_shares_a_claim_cannot_hide_it_behind_what_else_is_in_the_pod() -> None:
    thing = pod_object("web", container(), annotations={str(n): "" for n in range(11_000)})
    thing["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "share"}]
    found = read(thing)
    assert found is not None
    assert found.claims == ("share",)


# -- a cluster in which everything is late, and the guesses are wrong

KINDS = {
    "granted": lambda: container(mem=3),
    "granted with threads": lambda: container(mem=3, percent=30),
    "odd": lambda: container(resources={"limits": {MEM: "16Ki"}}),
    "of another": lambda: container(resources={"limits": {"nvidia.com/gpu": 1}}),
    "forged": lambda: container(resources={"limits": {"nvidia.com/x": 1}}),
    "plain": container,
    "threads alone": lambda: container(percent=5),
}
HOLD_NOTHING = {"plain", "threads alone", "forged"}


@dataclass
class World:
    """What is so, and what the agent knows of it. changes: of the API's pods, of which the mirror
    has seen some."""

    # from the uid of its cgroups to the pod's kind
    true: dict[str, str] = field(default_factory=dict)
    api: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[tuple[str, dict[str, Any] | None]] = field(default_factory=list)
    seen: int = 0
    mirror: dict[str, dict[str, Any]] = field(default_factory=dict)
    kubelet: dict[str, ContainerDevices] = field(default_factory=dict)  # by uid
    held: tuple[ContainerDevices, ...] = ()
    unserved: frozenset[str] = frozenset()
    journal: list[Any] = field(default_factory=list)
    guessed: set[str] = field(default_factory=set)  # uids that are in it, rightly or wrongly
    uids: int = 0

    def create(self, name: str, kind: str, liar: int) -> None:
        """liar: 0, or it says that it is the pod that came so long before; nobody can guess a uid
        beforehand."""
        if name in self.api:
            return
        self.uids += 1
        uid = f"uid-{self.uids}"
        annotations = {MIRROR: f"uid-{self.uids - liar}"} if 0 < liar < self.uids else {}
        thing = pod_object(name, KINDS[kind](), annotations=annotations, metadata={"uid": uid})
        self.true[uid] = kind
        self.change(name, thing)
        if kind.startswith("granted"):
            ids = mem_ids(3, first=3 * self.uids)
            self.kubelet[uid] = devices(named(name), ids)

    def run(self, name: str) -> None:
        """Kubelet has allocated whatever the pod asks for, and says so."""
        if thing := self.api.get(name):
            self.change(name, {**thing, "status": {"phase": "Running"}})

    def list_devices(self) -> None:
        """Of the others' devices; of a name that nobody has taken over since."""
        here = [row for row in self.rows() if self._uid_now(row.name) == row.uid]
        of_others = []
        for name, thing in self.api.items():
            is_running = thing.get("status", {}).get("phase") == "Running"
            if is_running and self.true[self._uid_now(name)] == "of another":
                of_others.append((("default", name), "nvidia.com/gpu"))
        listed = {("default", name) for name in self.api}
        self.unserved = unserved(here, listed, of_others, POLICY)

    def _uid_now(self, name: str) -> str:
        thing = self.api.get(name)
        return str(thing["metadata"]["uid"]) if thing else ""

    def change(self, name: str, thing: dict[str, Any] | None) -> None:
        self.changes.append((name, thing))
        if thing is None:
            self.api.pop(name)
        else:
            self.api[name] = thing

    def allocate(self, guess: str | None) -> None:
        """Kubelet asks for the devices of the pod that came last; the guess is any pod that the
        mirror knows."""
        if self.kubelet:
            ids = list(self.kubelet.values())[-1].memory
            row = self.mirror.get(guess or "")
            uid = str(row["metadata"]["uid"]) if row else ""
            self.guessed.add(uid)
            self.journal.append(
                entry(ids, named(guess) if guess and row else None, 100, self.uids, uid)
            )

    def catch_up(self, count: int) -> None:
        for name, thing in self.changes[self.seen : self.seen + count]:
            self.mirror = {
                key: value
                for key, value in {**self.mirror, name: thing}.items()
                if value is not None
            }
        self.seen = min(len(self.changes), self.seen + count)

    def rows(self) -> list[NodePod]:
        return [row for row in map(read, self.mirror.values()) if row]

    def judged(self) -> dict[str, PodName]:
        known = {"held": self.held, "journal": tuple(self.journal)}
        return judged(*self.rows(), unallocated=self.unserved, **known)


STEPS = st.one_of(
    st.tuples(
        st.just("create"),
        st.sampled_from("abcd"),
        st.sampled_from(sorted(KINDS)),
        st.sampled_from([0, 0, 0, 1, 2]),
    ),
    st.tuples(st.just("delete"), st.sampled_from("abcd")),
    st.tuples(st.just("run"), st.sampled_from("abcd")),
    st.tuples(st.just("allocate"), st.sampled_from(["a", "b", "c", "d", None])),
    st.tuples(st.just("catch up"), st.integers(1, 3)),
    st.tuples(st.just("kubelet says"), st.sampled_from(["all", "none"])),
    st.tuples(st.just("restart")),
)


def take(world: World, step: tuple[Any, ...]) -> None:
    match step:
        case ("create", name, kind, liar):
            world.create(name, kind, liar)
        case ("delete", name) if name in world.api:  # by force: its processes go on for a while
            world.change(name, None)
        case ("run", name):
            world.run(name)
        case ("allocate", guess):
            world.allocate(guess)
        case ("catch up", count):
            world.catch_up(count)
        case ("kubelet says", what):
            world.held = tuple(world.kubelet.values()) if what == "all" else ()
            world.list_devices()
        case ("restart",):
            world.mirror, world.seen, world.held = {}, 0, ()


@given(st.lists(STEPS, min_size=8, max_size=25))
def test_nobody_who_holds_a_gpu_is_ever_judged(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    for step in steps:
        take(world, step)
        for uid, pod in world.judged().items():
            assert world.true[uid] in HOLD_NOTHING, (uid, pod)


@given(st.lists(STEPS, min_size=8, max_size=25))
def test_who_holds_nothing_is_known_once_everybody_has_spoken(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    for step in steps:
        take(world, step)
    for name in world.api:
        world.run(name)
    world.catch_up(len(world.changes))
    world.list_devices()
    here = {str(thing["metadata"]["uid"]): name for name, thing in world.api.items()}
    world.held = tuple(one for uid, one in world.kubelet.items() if uid in here)
    nothing = {uid for uid, kind in world.true.items() if uid in here and kind in HOLD_NOTHING}
    # Whom a guess names may have what kubelet tells of nobody, as it does not tell of init
    # containers.
    assert nothing - world.guessed <= set(world.judged())


# Which pods run without having been given their devices.


def test_a_pod_that_runs_without_devices_is_found_and_no_other() -> None:
    """A kubelet that has just started lists nobody before it has heard from the API, and an init
    container's devices nobody once it has ended."""
    pod, listed = node_pod("a", container(mem=7), phase="Running"), {("default", "a")}
    assert without_devices([pod], (), listed, ()) == (pod,)
    assert without_devices([pod], (), (), ()) == ()
    assert without_devices([pod], (devices(named("a"), mem_ids(7)),), listed, ()) == ()
    noted = entry(mem_ids(7), named("a"), 100, 1.0, pod.uid)
    assert without_devices([pod], (), listed, (noted,)) == ()
    for phase in ("Pending", "Succeeded", "Failed"):
        other = node_pod("a", container(mem=7), phase=phase)
        assert without_devices([other], (), listed, ()) == ()
    initial = node_pod("a", container(), init=(container("first", mem=5),), phase="Running")
    assert without_devices([initial], (), listed, ()) == ()


def test_the_time_begins_anew_where_it_was_not_so_for_a_moment() -> None:
    pod = node_pod("a", container(mem=7), phase="Running")
    first = since({}, [pod], 10.0)
    assert since(first, [pod], 20.0) == {pod.uid: 10.0}
    assert since(since(first, [], 15.0), [pod], 20.0) == {pod.uid: 20.0}
