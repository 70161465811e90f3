"""What `mpsd doctor` makes of what it saw: the worst first, and never well where it is not
known."""

import os
import stat
from dataclasses import fields, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.engines.configuration import LAUNCHER, Engine
from mpsd.containers.engines.launcher import Launched, launched, launcher
from mpsd.model.domain import State
from mpsd.model.gpu_health import GpuCondition, HealthCause
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_report import DomainReport, NodeReport
from mpsd.model.node_view import Canary, DomainRecord
from mpsd.model.seen_gpus import SeenGpu
from mpsd.operations.doctor.host import Host
from mpsd.operations.doctor.node import is_full
from mpsd.operations.doctor.rules.checks import (
    Check,
    CheckVerdict,
    Finding,
    NotApplicable,
    Severity,
    Unknown,
    diagnose,
    each,
)
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.operations.doctor.rules.node_facts import (
    AgentSilent,
    DaemonSeen,
    DomainSeen,
    GpuSeen,
    LauncherSeen,
    NodeFacts,
    RunDirectorySeen,
)
from mpsd.platform.limits_files import load_limits

UUID = "GPU-00000000-0000-0000-0000-000000000000"
A30 = SeenGpu(0, UUID, "NVIDIA A30", "8.0", 24062, 3584)
DAEMON = ProcessIdentity(70, 7, "boot")
CANARY = Canary("boot", "580.1", 0, "", 1, 1)
RECORD = DomainRecord(
    *(1, "gpu0", (UUID,), State.READY, 0.0, "", DAEMON, (71,), 0, 0, 0.0, {UUID: 0}), canary=CANARY
)
DOCKER = f'{{"runtimes": {{"mpsd": {{"path": "{LAUNCHER}"}}}}}}'
WELL = NodeFacts(
    limits_folder="limits",
    limits_faults=(),
    policy=load_limits(None).policy,
    gpu_facts=load_limits(None).facts,
    nvml="",
    driver="580.1",
    gpus=(GpuSeen(0, UUID, "NVIDIA A30", "", A30, 3),),
    control_program=True,
    run_directory=RunDirectorySeen("/run/mpsd", 0, 0, ""),
    holder=60,
    domains=(DomainSeen(RECORD, daemon_lives=True),),
    unreadable=(),
    daemons=(DaemonSeen(70, "/run/mpsd/gpu0/pipe"),),
    agent=NodeReport(version="0.1.0"),
    uvm=True,
    default_pipe=False,
    selinux={"/run/mpsd/gpu0/client": "container_file_t"},
    engines={Engine.DOCKER: DOCKER},
    launcher=LauncherSeen((), ("runc",), "usr/bin/runc"),
    toolkit=True,
    unlinked=(),
    kubelet="",
)
NAMES = [field.name for field in fields(NodeFacts) if field.name != "limits_folder"]


def verdicts(facts: NodeFacts) -> dict[str, CheckVerdict]:
    return {outcome.check.id: outcome.verdict for outcome in diagnose(facts, NODE_CHECKS).outcomes}


def headline(**changes: Any) -> str:
    return diagnose(replace(WELL, **changes), NODE_CHECKS).headline


def test_where_nothing_is_wrong_every_check_is_well() -> None:
    assert set(verdicts(WELL).values()) == {CheckVerdict.WELL}
    assert diagnose(WELL, NODE_CHECKS).headline == f"all is well: {len(NODE_CHECKS)} checks"


class Recorder:
    """Facts that keep in mind which of them a check reads."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(WELL, name)


def looks_at(check: Check[Any]) -> set[str]:
    recorder = Recorder()
    assert not list(check.find(recorder))
    return recorder.read & set(NAMES)


LOOKS_AT = {check.id: looks_at(check) for check in NODE_CHECKS}


def test_ids_are_unique_and_every_row_looks_at_facts_and_every_fact_is_looked_at() -> None:
    assert len(LOOKS_AT) == len(NODE_CHECKS)
    assert all(LOOKS_AT.values())
    assert set.union(*LOOKS_AT.values()) == set(NAMES)


@pytest.mark.parametrize(
    ("check", "name"),
    [(check, name) for check, names in LOOKS_AT.items() for name in sorted(names)],
)
def test_a_check_is_not_well_where_what_it_looks_at_is_unknown(check: str, name: str) -> None:
    unknown: dict[str, Any] = {name: Unknown("nobody knows")}
    diagnosis = diagnose(replace(WELL, **unknown), NODE_CHECKS)
    (outcome,) = (one for one in diagnosis.outcomes if one.check.id == check)
    assert (outcome.verdict, outcome.why) == (CheckVerdict.UNKNOWN, "nobody knows")
    assert not diagnosis.is_well
    assert diagnosis.headline.startswith("nothing wrong was found, but not known is whether ")


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.sampled_from([Unknown("hidden"), NotApplicable("none here")])
    )
)
def test_what_is_hidden_makes_nothing_wrong_and_nothing_well(hidden: dict[str, Any]) -> None:
    diagnosis = diagnose(replace(WELL, **hidden), NODE_CHECKS)
    for outcome in diagnosis.outcomes:
        is_hidden = not hidden.keys().isdisjoint(LOOKS_AT[outcome.check.id])
        assert outcome.verdict in (
            {CheckVerdict.UNKNOWN, CheckVerdict.NOT_APPLICABLE}
            if is_hidden
            else {CheckVerdict.WELL}
        ), outcome
    assert diagnosis.is_well == (
        CheckVerdict.UNKNOWN not in verdicts(replace(WELL, **hidden)).values()
    )


def test_notes_alone_are_no_failure() -> None:
    noted = diagnose(replace(WELL, default_pipe=True), NODE_CHECKS)
    assert ([one.check.id for one in noted.of(CheckVerdict.FOUND)], noted.is_well) == (
        ["default-pipe"],
        True,
    )
    assert not diagnose(replace(WELL, default_pipe=True, uvm=False), NODE_CHECKS).is_well


# -- the order


def row(number: int, severity: Severity, verdict: CheckVerdict) -> Check[Any]:
    def find(_facts: NodeFacts) -> Any:
        if verdict is CheckVerdict.UNKNOWN:
            raise Unknown("hidden")
        if verdict is CheckVerdict.NOT_APPLICABLE:
            raise NotApplicable("none here")
        if verdict is CheckVerdict.FOUND:
            yield Finding(f"check{number} is wrong", "mend it")

    return Check(f"check{number}", severity, "all is good", "looking", find)


VERDICTS, SEVERITIES = list(CheckVerdict), list(Severity)
KINDS = st.lists(st.tuples(st.sampled_from(Severity), st.sampled_from(CheckVerdict)), max_size=8)


@given(KINDS)
def test_found_come_first_then_the_worst_then_the_cause(
    kinds: list[tuple[Severity, CheckVerdict]],
) -> None:
    checks = [row(number, *kind) for number, kind in enumerate(kinds)]
    diagnosis = diagnose(WELL, checks)
    keys = [
        (VERDICTS.index(one.verdict), SEVERITIES.index(one.check.severity), checks.index(one.check))
        for one in diagnosis.outcomes
    ]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(checks), "the order is total"
    found = diagnosis.of(CheckVerdict.FOUND)
    if found:
        assert diagnosis.headline == f"{found[0].check.id} is wrong; mend it"


def test_what_was_found_before_something_unknown_is_still_found() -> None:
    old, blind = (
        GpuSeen(at, f"GPU-{at}", "NVIDIA P4", "", seen, 0)
        for at, seen in enumerate((replace(A30, compute_capability="6.1"), Unknown("hid")))
    )
    for order in permutations((old, blind)):
        diagnosis = diagnose(replace(WELL, gpus=order), NODE_CHECKS)
        assert diagnosis.headline.startswith(
            f"gpu0 (NVIDIA A30, {UUID[:12]}) has compute capability 6.1"
        )
        (found,) = (one for one in diagnosis.of(CheckVerdict.FOUND) if one.check.id == "capability")
        assert found.why == "hid"


def test_of_things_that_are_not_known_the_unknown_one_is_said_and_not_that_there_is_none() -> None:
    facts = {1: NotApplicable("none here"), 2: Unknown("hidden"), 3: NotApplicable("none here")}
    with pytest.raises(Unknown, match="hidden"):
        list(each(facts, facts.__getitem__))


# -- what is broken

(GPU,) = WELL.gpus  # type: ignore[misc]  # known here
RUN: RunDirectorySeen = WELL.run_directory  # type: ignore[assignment]  # known here
FOREIGN = DaemonSeen(99, "/tmp/nvidia-mps")


def domain(lives: bool = True, **changes: Any) -> tuple[DomainSeen, ...]:
    return (DomainSeen(replace(RECORD, **changes), daemon_lives=lives),)


def agent(**more: Any) -> NodeReport:
    served = DomainReport(name="gpu0", gpus=(UUID,), state="ready")
    return NodeReport(**{"domains": (served,), "version": "0.1.0", **more})


BREAKS: dict[str, list[dict[str, Any]]] = {
    "limits-unsound": [
        {"limits_faults": ("limits/policy.yaml: placement is 1: is not known; write binpack",)}
    ],
    "driver-silent": [{"nvml": "NVML: nvmlInit failed: Driver Not Loaded"}],
    "gpu-lost": [{"gpus": ()}, {"gpus": (replace(GPU, lost="GPU is lost"),)}],
    "driver-old": [{"driver": "470.57"}],
    "capability": [
        {"gpus": (replace(GPU, seen=replace(A30, compute_capability="6.1")),)},
        {"gpus": (replace(GPU, seen=replace(A30, compute_capability="99.0")),)},
        {"gpus": (replace(GPU, seen=replace(A30, memory_mib=None)),)},
        {"gpus": (replace(GPU, seen=replace(A30, mig=True)),)},
    ],
    "no-control-program": [{"control_program": False}],
    "no-uvm": [{"uvm": False}],
    "run-directory": [
        {"run_directory": replace(RUN, owner=7)},
        {"run_directory": replace(RUN, unwritable="its file system is read-only")},
    ],
    "other-daemon": [{"daemons": (FOREIGN,)}, {"daemons": (replace(FOREIGN, pipe=""),)}],
    "compute-mode-left": [
        {"gpus": (replace(GPU, compute_mode=2),)},
        {"holder": None, "domains": domain(lives=False, compute_modes={UUID: 0})},
    ],
    "compute-mode-lost": [{"gpus": (replace(GPU, compute_mode=0),)}],
    "default-pipe": [{"default_pipe": True}],
    "record-strange": [
        {"domains": domain(version=2)},
        {"unreadable": ("gpu0/record.json: cut off",)},
    ],
    "not-running": [{"holder": None}, {"holder": None, "domains": ()}],
    "domain-stopped": [
        {"domains": domain(lives=False)},
        {"domains": domain(state=State.WEDGED, reason="no answer")},
        {"domains": domain(state=State.REFUSED, reason="the canary failed")},
    ],
    "gpu-sick": [
        {"domains": domain(health=(GpuCondition(UUID, HealthCause.ECC, "2 more errors; reset"),))}
    ],
    "agent-silent": [{"agent": AgentSilent("mpsd does not answer; see its log")}],
    "agent-blind": [
        {"agent": agent(unknown=("NVML: GPU is lost",))},
        {"agent": agent(claim_driver="gpu.mpsd.io", claims_trouble="not registered with kubelet")},
    ],
    "launcher-broken": [
        {"launcher": None},
        {"launcher": LauncherSeen(("/opt/python",), ("runc",), "usr/bin/runc")},
        {"launcher": LauncherSeen((), ("nvidia-container-runtime", "runc"), "")},
        {"toolkit": False},
    ],
    "device-links": [{"unlinked": ("/dev/nvidia0", "/dev/nvidiactl")}],
    "kubelet-folder": [{"kubelet": "/var/lib/kubelet/device-plugins"}],
    "selinux": [{"selinux": {"/run/mpsd/gpu0/client": "var_run_t"}}],
}


def test_every_check_is_broken_here() -> None:
    assert BREAKS.keys() == LOOKS_AT.keys()


@pytest.mark.parametrize(
    ("check", "at"), [(check, at) for check, some in BREAKS.items() for at in range(len(some))]
)
def test_a_check_finds_what_is_broken_and_says_what_to_do(check: str, at: int) -> None:
    diagnosis = diagnose(replace(WELL, **BREAKS[check][at]), NODE_CHECKS)
    (found,) = (one for one in diagnosis.outcomes if one.check.id == check)
    assert found.verdict is CheckVerdict.FOUND
    assert all(one.what and one.remedy for one in found.findings)


def test_a_device_without_a_link_in_dev_char_is_seen_where_systemd_runs(tmp_path: Path) -> None:
    (tmp_path / "dev/char").mkdir(parents=True)
    os.mknod(tmp_path / "dev/nvidia0", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    (tmp_path / "dev/nvidia-caps").mkdir()
    host = Host(tmp_path)
    assert isinstance(host.look(tmp_path)["unlinked"], NotApplicable)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert host.look(tmp_path)["unlinked"] == ("/dev/nvidia0",)
    (tmp_path / "dev/char/0:0").symlink_to("/dev/nvidia0")  # as nvidia-ctk writes it
    assert host.look(tmp_path)["unlinked"] == ()


def test_a_domain_that_drains_is_no_fault() -> None:
    for state in (State.DRAINING, State.DRAINED):
        assert (
            verdicts(replace(WELL, domains=domain(state=state)))["domain-stopped"]
            is CheckVerdict.WELL
        )


@pytest.mark.parametrize(
    ("state", "restarts", "lives", "is_well"),
    [
        (State.DOWN, 3, False, False),
        (State.STARTING, 3, True, False),
        (State.STARTING, 3, False, False),
        (State.STARTING, 0, True, True),  # for the first time
        (State.READY, 3, True, True),  # a count that nothing has added to since
    ],
)
def test_a_domain_whose_daemons_end_one_after_the_other_is_never_well_between_two_of_them(
    state: State, restarts: int, lives: bool, is_well: bool
) -> None:
    record = replace(
        RECORD, state=state, restarts=restarts, daemon=None if state is State.DOWN else DAEMON
    )
    seen = verdicts(replace(WELL, domains=(DomainSeen(record, daemon_lives=lives),)))
    assert seen["domain-stopped"] is (CheckVerdict.WELL if is_well else CheckVerdict.FOUND)


def test_a_driver_whose_version_is_no_number_is_not_too_old() -> None:
    assert verdicts(replace(WELL, driver="next"))["driver-old"] is CheckVerdict.WELL


def test_a_configuration_that_nobody_can_read_is_not_said_to_name_mpsd() -> None:
    told = verdicts(replace(WELL, engines={Engine.DOCKER: "{"}, toolkit=False))
    assert told["launcher-broken"] is CheckVerdict.UNKNOWN


def test_a_daemon_in_the_run_directory_is_of_whoever_holds_it() -> None:
    fresh = (DaemonSeen(99, "/run/mpsd/gpu0/pipe"),)
    assert verdicts(replace(WELL, daemons=fresh))["other-daemon"] is CheckVerdict.WELL
    assert headline(daemons=fresh, holder=None).startswith(
        "another control daemon (pid 99 in /run/mpsd/gpu0/pipe) runs on"
    )
    unsure = verdicts(
        replace(WELL, daemons=fresh, holder=None, unreadable=("gpu0/record.json: cut off",))
    )
    assert unsure["other-daemon"] is CheckVerdict.UNKNOWN


def test_a_daemon_whose_folder_was_removed_is_killed_by_its_pid_for_nobody_can_command_it() -> None:
    ours = DaemonSeen(99, "/run/mpsd/gpu0/pipe", pipe_is_there=False)
    said = headline(daemons=(ours,), domains=(), holder=None)
    assert said.startswith(
        "a control daemon (pid 99) still runs, but its folder /run/mpsd/gpu0/pipe was removed; run"
    )
    assert "`kill 99` once its programs have ended" in said
    assert verdicts(replace(WELL, daemons=(ours,)))["other-daemon"] is CheckVerdict.WELL
    foreign = headline(daemons=(replace(ours, pipe="/tmp/nvidia-mps"),))
    assert "mpsd did not start it; stop it (kill 99)" in foreign


# -- the launcher, read back

ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)
PATHS = ASCII.map(lambda text: f"/{text}")


@given(PATHS, st.text(min_size=1), st.one_of(st.just(""), PATHS))
def test_what_a_launcher_starts_is_read_back(python: str, folder: str, following: str) -> None:
    text = launcher(python, folder, "/run/mpsd", following, "/var/log/mpsd/runtime.log")
    names = (following,) if following else ("nvidia-container-runtime", "runc")
    assert launched(text) == Launched(python, folder, names)


@given(st.text())
def test_what_is_no_launcher_is_none(text: str) -> None:
    assert launched(text) is None


@pytest.mark.parametrize("label", ["", "container_ro_file_t", "container_file_t:s0:c1,c2"])
def test_a_label_that_not_every_container_may_use_is_found(label: str) -> None:
    assert headline(selinux={"/run/mpsd/gpu0/client": label}).endswith(
        "chcon -R -t container_file_t -l s0 /run/mpsd/gpu0/client"
    )


# -- file systems


@pytest.mark.parametrize(
    ("blocks", "blocks_left", "files", "files_left", "full"),
    [
        (100, 7, 50, 3, False),
        (100, 0, 50, 3, True),
        (100, 7, 50, 0, True),
        (100, 7, 0, 0, False),  # btrfs counts no files
        (0, 0, 0, 0, False),  # /proc counts nothing
    ],
)
def test_a_file_system_is_full_without_blocks_or_without_files(
    blocks: int, blocks_left: int, files: int, files_left: int, full: bool
) -> None:
    numbers = (4096, 4096, blocks, blocks_left, blocks_left, files, files_left, 0, 0, 255)
    assert is_full(os.statvfs_result(numbers)) is full
