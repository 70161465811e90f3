"""Memory limits of cgroups: what is set and taken away, on which cgroups, and what an end leaves
behind."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.grants import GpuShare
from mpsd.model.node_view import HeldGrant, LedgerView, UnreadableGrant
from mpsd.model.policy import MemoryCap, Policy
from mpsd.mps.memory_caps import CapFiles, CapProbe, CapRequests, MemoryCaps
from mpsd.mps.rules.canary import CAP, Broken, NoContext, ProbeResult, cap_problem
from mpsd.mps.rules.memory_caps import (
    BY_POLICY,
    INSTANCE,
    NO_CGROUP,
    Cap,
    CappedGrant,
    CapsInForce,
    FoundCgroup,
    WantedCap,
    WantedCaps,
    decide,
    wanted_caps,
)
from mpsd.platform import processes
from mpsd.platform.limits_files import load_limits
from mpsd.platform.logs import logger
from mpsd.platform.nvml import Nvml
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from tests.model.worlds import GPUS, POLICY
from tests.model.worlds import grant as granted

FACTS = load_limits(None).facts
POD = "0b1c2d3e-0000-4000-8000-00000000000a"

# -- what is decided

uuids = st.sampled_from(["GPU-a", "GPU-b"])
found_cgroups = st.builds(
    FoundCgroup,
    st.sampled_from(["/p", "/p/c", "/q"]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)


@st.composite
def capped_grants(draw: st.DrawFn) -> tuple[CappedGrant, ...]:
    """Grants whose cgroups are each their own, as the kernel has them."""
    found: list[CappedGrant] = []
    for number in range(draw(st.integers(0, 3))):
        memory = draw(st.dictionaries(uuids, st.integers(1, 9999), min_size=1))
        cgroups = draw(
            st.lists(found_cgroups, max_size=3, unique_by=lambda one: (one.path, one.inode))
        )
        own = tuple(
            FoundCgroup(f"/g{number}{one.path}", one.inode, one.inside, one.counts)
            for one in cgroups
        )
        found.append(CappedGrant(WantedCap(f"g{number}", memory), own))
    return tuple(found)


caps = st.builds(
    Cap,
    st.sampled_from(["/g0/p", "/g1/p", "/g0/q", "/old"]),
    st.integers(1, 3),
    uuids,
    st.integers(1, 9999),
)
ours_before = st.lists(caps, unique_by=lambda cap: cap.place, max_size=6).map(tuple)
policies = st.sampled_from(["auto", "cgroup", "mps"])


def after(
    policy: MemoryCap, grants: tuple[CappedGrant, ...], ours: tuple[Cap, ...], complete: bool
) -> tuple[Cap, ...]:
    actions = decide(policy, grants, ours, {}, complete=complete)
    kept = {cap.place: cap for cap in ours if cap not in actions.resets}
    return tuple((kept | {cap.place: cap for cap in actions.sets}).values())


@given(policies, capped_grants(), ours_before, st.booleans())
def test_afterwards_every_cgroup_has_the_limit_of_its_grant_and_nothing_more_is_to_be_done(
    policy: MemoryCap, grants: tuple[CappedGrant, ...], ours: tuple[Cap, ...], complete: bool
) -> None:
    now = after(policy, grants, ours, complete)
    wanted = {cap for grant in grants for cap in grant.caps()} if policy != "mps" else set[Cap]()
    assert wanted <= {*now}
    again = decide(policy, grants, now, {}, complete=complete)
    assert (again.sets, again.resets) == ((), ())


@given(policies, capped_grants(), ours_before)
def test_what_no_grant_wants_any_more_is_taken_away_and_nothing_else(
    policy: MemoryCap, grants: tuple[CappedGrant, ...], ours: tuple[Cap, ...]
) -> None:
    actions = decide(policy, grants, ours, {}, complete=True)
    wanted = {cap.place for grant in grants for cap in grant.caps()} if policy != "mps" else set()
    assert {cap.place for cap in actions.resets} == {cap.place for cap in ours} - wanted
    assert {*actions.resets} <= {*ours}


@given(capped_grants(), ours_before)
def test_while_a_grant_may_be_missing_no_limit_is_taken_away(
    grants: tuple[CappedGrant, ...], ours: tuple[Cap, ...]
) -> None:
    assert decide("auto", grants, ours, {}, complete=False).resets == ()


@given(capped_grants(), st.booleans())
def test_every_grant_is_held_or_it_is_said_why_not(
    grants: tuple[CappedGrant, ...], complete: bool
) -> None:
    actions = decide("auto", grants, (), {"GPU-b": "it has none"}, complete=complete)
    held = {cap.cgroup.split("/")[1] for cap in actions.sets}
    for grant in grants:
        name = grant.wanted.grant
        assert (name in held) != (name in actions.without)
        assert (name in actions.without) == (
            "GPU-b" in grant.wanted.memory_mib or not [*grant.caps()]
        )


def test_a_grant_without_a_limit_says_the_first_reason() -> None:
    def why(policy: MemoryCap, gpu: str, *cgroups: FoundCgroup) -> str:
        grant = CappedGrant(WantedCap("g", {gpu: 1}), cgroups)
        return decide(policy, [grant], (), {"GPU-b": "no"}, complete=True).without.get("g", "")

    place = FoundCgroup("/p", 1)
    assert why("mps", "GPU-b") == BY_POLICY
    assert why("auto", "MIG-a", place) == INSTANCE
    assert why("cgroup", "GPU-b", place) == "no"
    assert why("auto", "GPU-a") == NO_CGROUP
    assert why("auto", "GPU-a", place) == ""


def test_a_container_has_a_limit_of_its_own_only_where_the_kernel_counts_it() -> None:
    """Where the driver counts, the nearest limit alone holds: one for each container would let a
    pod have it twice."""
    pod = FoundCgroup("/pod", 1)
    by_driver = CappedGrant(
        WantedCap("g", {"GPU-a": 5}), (FoundCgroup("/pod/c", 2, inside=True), pod)
    )
    assert [cap.cgroup for cap in by_driver.caps()] == ["/pod"]
    by_kernel = CappedGrant(
        by_driver.wanted, (FoundCgroup("/pod/c", 2, inside=True, counts=True), pod)
    )
    assert [cap.cgroup for cap in by_kernel.caps()] == ["/pod", "/pod/c"]


def test_the_agent_asks_for_what_the_ledger_has() -> None:
    grant = granted("one", 4)
    view = LedgerView(held=(HeldGrant(grant, True),), by_place={POD: "one", "other": "two"})
    asked = wanted_caps(view, "boot", pods_known=True)
    assert asked.caps == (
        WantedCap("one", {part.gpu: part.memory_mib for part in grant.parts}, (POD,)),
    )
    assert asked.complete
    assert wanted_caps(view, "boot", pods_known=False).caps[0].pods == ()
    assert not wanted_caps(LedgerView(unknown=("no answer",)), "boot", pods_known=True).complete
    broken = UnreadableGrant("two", "/file", "damaged")
    assert not wanted_caps(LedgerView(unreadable=(broken,)), "boot", pods_known=False).complete


def test_the_canary_believes_what_its_client_saw() -> None:
    gpu = GPUS[0]
    assert cap_problem(gpu, ProbeResult(gpu.uuid, CAP.limit_mib, 8)) == ""
    assert cap_problem(gpu, ProbeResult(gpu.uuid, CAP.limit_mib + 1, 8)).endswith(
        "of 512 MiB saw 513 MiB free"
    )
    assert "got no context: 46:CUDA at ctx" in cap_problem(gpu, NoContext("ctx", "46:CUDA"))
    assert cap_problem(gpu, Broken("was killed by signal 9")).endswith("was killed by signal 9")


# -- what is done, on the simulator's NVML and a folder in the place of the cgroups


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    made = create_node(tmp_path / "node", cards_asked("A30", FACTS), FACTS.capabilities)
    (made.folder / "driver").write_text("615.71.09")
    return made


@pytest.fixture
def nvml(node: SimulatedNode) -> Iterator[Nvml]:
    opened = Nvml(SimulatedNvml(node.folder))
    opened.open()
    with closing(opened):
        yield opened


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "cgroup"
    for folder in ("", f"kubepods/burstable/pod{POD}/main", "mpsd-one"):
        (made / folder).mkdir(parents=True, exist_ok=True)
    for each in (made, *(path for path in made.rglob("*") if path.is_dir())):
        (each / "cgroup.controllers").touch()
    return made


class Ground:
    """A control's part, and what the agent asks of it."""

    def __init__(self, folder: Path, nvml: Nvml, tree: Path, node: SimulatedNode) -> None:
        self.policy: Policy = POLICY
        self.files = CapFiles(folder, logger())
        self.nvml, self.tree, self.gpu = nvml, tree, node.gpus[0].uuid
        self.caps = self.started()

    def started(self) -> MemoryCaps:
        return MemoryCaps(self.files, CapProbe(self.nvml, self.tree), lambda: self.policy, logger())

    def ask(self, *wanted: WantedCap, complete: bool = True) -> CapsInForce:
        self.files.ask(WantedCaps(processes.boot_id(), wanted, complete))
        self.caps.follow([])
        return self.files.in_force()

    def mib(self, path: str) -> int | None:
        return self.nvml.memory_limit_mib(self.gpu, self.tree / path)

    def of_program(self, memory_mib: int = 2048) -> WantedCap:
        return WantedCap("one", {self.gpu: memory_mib}, cgroups=("/mpsd-one",))

    def of_pod(self, memory_mib: int = 2048) -> WantedCap:
        return WantedCap("two", {self.gpu: memory_mib}, (POD,))


@pytest.fixture
def ground(tmp_path: Path, nvml: Nvml, tree: Path, node: SimulatedNode) -> Ground:
    if os.geteuid():
        pytest.skip("needs root, who alone sets limits")
    (tmp_path / "run").mkdir()
    return Ground(tmp_path / "run", nvml, tree, node)


def test_a_program_and_a_pod_are_limited_and_read_back(ground: Ground) -> None:
    found = ground.ask(ground.of_program(), ground.of_pod(4096))
    assert found.grants == ("one", "two")
    assert ground.mib("mpsd-one") == 2048
    assert ground.mib(f"kubepods/burstable/pod{POD}") == 4096
    assert len(found.caps) == 2  # none of the container, which the kernel does not count here
    main = f"kubepods/burstable/pod{POD}/main"
    (ground.tree / main / "dmem.max").touch()
    assert [cap.cgroup for cap in ground.ask(ground.of_pod(4096), ground.of_program()).caps][
        -1
    ] == f"/{main}"


def test_a_limit_is_taken_away_with_its_grant_while_the_cgroup_stays(ground: Ground) -> None:
    ground.ask(ground.of_program(), ground.of_pod())
    assert ground.ask(ground.of_pod()).grants == ("two",)
    assert ground.mib("mpsd-one") is None
    assert ground.mib(f"kubepods/burstable/pod{POD}") == 2048
    ground.caps.end()
    assert ground.mib(f"kubepods/burstable/pod{POD}") is None
    assert ground.files.wanted() is None


def test_a_cgroup_that_is_gone_is_forgotten_and_a_new_one_of_its_name_gets_its_own(
    ground: Ground,
) -> None:
    ground.ask(ground.of_program())
    folder = ground.tree / "mpsd-one"
    folder.rename(ground.tree / "elsewhere")  # keeps its inode from being used again
    assert ground.ask(ground.of_program()).troubles == {"one": NO_CGROUP}
    folder.mkdir()
    (folder / "cgroup.controllers").touch()
    assert ground.ask(ground.of_program()).grants == ("one",)
    assert ground.mib("mpsd-one") == 2048


def test_who_starts_again_finds_what_is_in_force_and_sets_nothing_anew(ground: Ground) -> None:
    before = ground.ask(ground.of_program())
    ground.caps = ground.started()
    set_at = (ground.nvml._library._folder / "memory-limits.json").stat().st_mtime_ns
    assert ground.ask(ground.of_program()) == before
    assert (ground.nvml._library._folder / "memory-limits.json").stat().st_mtime_ns == set_at


def test_a_limit_that_somebody_has_taken_away_is_set_again(ground: Ground) -> None:
    ground.ask(ground.of_program())
    ground.nvml.limit_memory(ground.gpu, ground.tree / "mpsd-one", None)
    for _look in range(61):
        ground.caps.follow([])
    assert ground.mib("mpsd-one") == 2048


def test_a_record_of_another_boot_or_a_damaged_one_changes_nothing(
    ground: Ground, tmp_path: Path
) -> None:
    ground.ask(ground.of_program())
    file = tmp_path / "run" / "memory-caps-wanted.json"
    file.write_text(json.dumps({"boot_id": "another", "caps": []}))
    ground.caps.follow([])
    assert ground.mib("mpsd-one") == 2048
    file.write_text("{")
    ground.caps.follow([])
    assert ground.mib("mpsd-one") == 2048


def test_a_driver_without_them_is_said_and_never_asked_to_set_one(
    ground: Ground, node: SimulatedNode
) -> None:
    (node.folder / "driver").write_text("580.159.04")
    found = ground.ask(ground.of_program())
    assert (found.grants, found.troubles) == ((), {"one": OLD})
    assert not (node.folder / "memory-limits.json").exists()


OLD = "driver 580.159.04 has no memory limits of cgroups, which came with 615 (CUDA 13.4)"


class Asking:
    """An agent's part, on a ledger that it is given."""

    def __init__(self, folder: Path, nvml: Nvml, gpu: str) -> None:
        self.files, self.nvml = CapFiles(folder, logger()), nvml
        self.policy: Policy = POLICY
        self.requests = self.started()
        self.gpu = gpu
        self.hold(2048)

    def hold(self, memory_mib: int) -> None:
        grant = replace(granted("one", 2), parts=(GpuShare(self.gpu, memory_mib, 0),))
        self.ledger = LedgerView(held=(HeldGrant(grant, True),))

    def started(self) -> CapRequests:
        return CapRequests(self.files, self.nvml, lambda: self.policy)

    def asked(self) -> dict[str, str] | None:
        """What of each grant is asked of control; None where nobody has asked."""
        self.requests.ask(self.ledger, pods_known=False)
        wanted = self.files.wanted()
        return wanted and {cap.grant: sum(cap.memory_mib.values()) for cap in wanted.caps}


@pytest.fixture
def asking(tmp_path: Path, nvml: Nvml, node: SimulatedNode) -> Asking:
    return Asking(tmp_path, nvml, node.gpus[0].uuid)


def test_under_a_driver_without_them_nothing_is_asked_and_it_is_known_why(
    asking: Asking, node: SimulatedNode
) -> None:
    (node.folder / "driver").write_text("580.159.04")
    assert asking.requests.in_force(asking.ledger) == (frozenset(), {"one": OLD})
    assert asking.asked() is None
    assert asking.requests.in_force(asking.ledger) == (frozenset(), {"one": OLD})


def test_what_was_asked_under_another_driver_is_taken_back(
    asking: Asking, node: SimulatedNode
) -> None:
    assert asking.asked() == {"one": 2048}
    (node.folder / "driver").write_text("580.159.04")
    asking.requests = asking.started()
    assert asking.asked() == {}


def test_a_grant_or_policy_that_changes_is_asked_for_at_once(asking: Asking) -> None:
    assert asking.asked() == {"one": 2048}
    asking.policy = replace(POLICY, memory_cap="mps")
    assert asking.asked() == {}
    assert asking.requests.in_force(asking.ledger) == (frozenset(), {"one": BY_POLICY})
    asking.policy = POLICY
    assert asking.asked() == {"one": 2048}
    assert asking.requests.in_force(asking.ledger) == (frozenset(), {})
    asking.hold(4096)
    assert asking.asked() == {"one": 4096}


def test_a_grant_that_is_still_held_counts_as_held_whatever_is_asked(asking: Asking) -> None:
    asking.asked()
    asking.files.put(CapsInForce(processes.boot_id(), grants=("one",)))
    asking.policy = replace(POLICY, memory_cap="mps")
    asking.asked()
    assert asking.requests.in_force(asking.ledger) == (frozenset({"one"}), {})


def test_the_policy_may_take_them_all_away(ground: Ground) -> None:
    ground.ask(ground.of_program())
    ground.policy = replace(POLICY, memory_cap="mps")
    assert ground.ask(ground.of_program()).troubles == {"one": BY_POLICY}
    assert ground.mib("mpsd-one") is None


def test_without_cgroup_v2_there_are_none(nvml: Nvml, tmp_path: Path, node: SimulatedNode) -> None:
    probe = CapProbe(nvml, tmp_path)
    assert probe.why_not([node.gpus[0].uuid]) == f"cgroup v2 is not mounted at {tmp_path}"
    assert "MIG instances such as MIG-a" in probe.why_not(["MIG-a"])


def test_an_older_nvidia_ml_py_has_no_such_functions(
    nvml: Nvml, tree: Path, node: SimulatedNode
) -> None:
    class Older:
        """What it has of everything else."""

        def __getattr__(self, name: str) -> object:
            if "MemoryLimits" in name:
                raise AttributeError(name)
            return getattr(nvml._library, name)

    assert nvml.has_memory_limits(node.gpus[0].uuid, tree)
    assert not Nvml(Older()).has_memory_limits(node.gpus[0].uuid, tree)
