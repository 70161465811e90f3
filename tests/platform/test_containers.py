"""Whose process it is, of containers that have cgroups to themselves and of those that have
none."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.containers import (
    ContainerProcesses,
    PodProcesses,
    ProgramCgroups,
    StateUnknown,
    first_process,
    own_cgroups,
)
from mpsd.platform.rules.cgroups import Cgroup, alone_in
from tests.platform.pod_cgroup import ContainerCgroup, PodCgroupHere, needs_cgroups, pod_cgroup
from tests.whole.machine.machine import eventually

pytestmark = needs_cgroups

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a pid namespace")

Start = Callable[..., ProcessIdentity]


class TakesIn(Protocol):
    def take_in(self, pid: int) -> None: ...


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program, in a container's cgroup from before its exec where one is given."""
    with ExitStack() as stack:

        def started(*argv: str, cgroup: TakesIn | None = None) -> ProcessIdentity:
            process = subprocess.Popen(
                ["sh", "-c", 'read go; exec "$@"', "sh", *argv], stdin=subprocess.PIPE
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            if cgroup:
                cgroup.take_in(process.pid)
            # while it waits: what ends at once has none afterwards
            found = processes.identity_of(process.pid)
            assert found
            assert process.stdin
            process.stdin.close()
            return found

        yield started


@pytest.fixture
def cgroup() -> Iterator[ContainerCgroup]:
    made = ContainerCgroup("processes")
    yield made
    made.remove()


def nobody() -> None:
    """There is nothing to settle."""


def cgroup_of(process: ProcessIdentity) -> tuple[Cgroup, ...]:
    """Those that this test is not in too."""
    return alone_in(
        Path(f"/proc/{process.pid}/cgroup").read_text(), [Path("/proc/self/cgroup").read_text()]
    )


def child_of(process: ProcessIdentity) -> ProcessIdentity:
    (child,) = eventually(lambda: psutil.Process(process.pid).children(), "it has forked")
    found = processes.identity_of(child.pid)
    assert found
    return found


def test_whoever_is_in_its_cgroup_is_a_containers_own(
    start: Start, cgroup: ContainerCgroup
) -> None:
    first = start("sleep", "600", cgroup=cgroup)
    containers = ContainerProcesses(nobody)
    containers.put("g", first, own_cgroups(first))
    entered, outside = start("sleep", "600", cgroup=cgroup), start("sleep", "600")
    assert [containers.owner_of(one.pid) for one in (first, entered, outside)] == ["g", "g", None]
    containers.take_out("g")
    assert containers.owner_of(first.pid) is None


def test_a_container_put_into_a_cgroup_with_others_in_it_has_none_to_itself(
    start: Start, cgroup: ContainerCgroup
) -> None:
    neighbour = start("sleep", "600", cgroup=cgroup)
    eventually(lambda: _ticks_now(start) > neighbour.start_ticks, "the kernel's clock has gone on")
    first = start("sh", "-c", "sleep 600; :", cgroup=cgroup)
    assert own_cgroups(first) == ()
    containers = ContainerProcesses(nobody)
    containers.put("g", first, ())
    assert containers.owner_of(first.pid) == "g"
    assert containers.owner_of(child_of(first).pid) == "g"
    assert containers.owner_of(neighbour.pid) is None


def _ticks_now(start: Start) -> int:
    return start("true").start_ticks


@needs_root
def test_without_a_cgroup_to_itself_its_pid_namespace_counts(start: Start) -> None:
    runtime = start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600")
    first = child_of(runtime)
    containers = ContainerProcesses(nobody)
    containers.put("g", first, ())
    entered = child_of(start("nsenter", "--pid", "--target", str(first.pid), "sleep", "600"))
    assert containers.owner_of(entered.pid) == "g"
    assert containers.owner_of(runtime.pid) is None
    assert containers.owner_of(os.getpid()) is None


@needs_root
def test_in_a_cgroup_that_was_anothers_its_pid_namespace_tells_it_from_that_one(
    start: Start, cgroup: ContainerCgroup
) -> None:
    neighbour = start("sleep", "600", cgroup=cgroup)
    containers = ContainerProcesses(nobody)
    containers.put("neighbours", neighbour, own_cgroups(neighbour))
    eventually(lambda: _ticks_now(start) > neighbour.start_ticks, "the kernel's clock has gone on")
    first = child_of(
        start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600", cgroup=cgroup)
    )
    assert own_cgroups(first) == ()
    containers.put("g", first, ())
    entered = start("sleep", "600", cgroup=cgroup)
    assert [containers.owner_of(one.pid) for one in (first, neighbour, entered)] == [
        "g",
        "neighbours",
        "neighbours",
    ]


@needs_root
def test_in_the_pid_namespace_of_one_without_a_cgroup_another_is_known_by_its_own_cgroup(
    start: Start, cgroup: ContainerCgroup
) -> None:
    without = child_of(start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600"))
    beside = child_of(
        start("nsenter", "--pid", "--target", str(without.pid), "sleep", "600", cgroup=cgroup)
    )
    containers = ContainerProcesses(nobody)
    containers.put("without", without, ())
    containers.put("g", beside, cgroup_of(beside))
    assert [containers.owner_of(one.pid) for one in (without, beside)] == ["without", "g"]


def test_a_container_that_was_just_made_is_looked_for_before_a_process_is_nobodys(
    start: Start, cgroup: ContainerCgroup
) -> None:
    first = start("sleep", "600", cgroup=cgroup)
    containers = ContainerProcesses(lambda: containers.put("g", first, own_cgroups(first)))
    assert containers.owner_of(first.pid) == "g"


def test_a_process_that_is_gone_is_nobodys() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ContainerProcesses(nobody).owner_of(process.pid) is None
    assert PodProcesses().owner_of(process.pid) is None


# The cgroups that mpsd makes for programs.

needs_program_cgroups = pytest.mark.skipif(
    bool(ProgramCgroups().why_not), reason=ProgramCgroups().why_not
)
V1 = Path("/sys/fs/cgroup/pids/cgroup.procs")
GRANT = f"test{os.getpid()}"


def in_v2(tree: Path) -> ProgramCgroups:
    return ProgramCgroups()


def in_v1(tree: Path) -> ProgramCgroups:
    """In the only hierarchy of a machine."""
    if not os.access(V1, os.W_OK):
        pytest.skip("needs the controller pids of v1")
    (tree / "pids").symlink_to(V1.parent)
    return ProgramCgroups(tree)


class OfProgram:
    """The cgroup of a program's grant, as `start` takes one."""

    def __init__(self, made: ProgramCgroups, grant: str) -> None:
        self._made, self._grant = made, grant

    def take_in(self, pid: int) -> None:
        first = processes.identity_of(pid)
        assert first
        place = self._made.place_for(first, self._grant)
        assert place
        assert self._made.take_in(first, place) == ""
        self.place = place


@needs_program_cgroups
@pytest.mark.parametrize("hierarchy", [in_v2, in_v1])
def test_a_programs_cgroup_holds_whoever_descends_from_it(
    start: Start, tmp_path: Path, hierarchy: Callable[[Path], ProgramCgroups]
) -> None:
    made, whose = hierarchy(tmp_path), ContainerProcesses(nobody)
    program = OfProgram(made, GRANT)
    first = start("sh", "-c", "setsid sleep 600 & wait", cgroup=program)
    child = child_of(first)
    whose.put("g", first, [program.place])
    assert [whose.owner_of(one.pid) for one in (first, child, start("sleep", "600"))] == [
        "g",
        "g",
        None,
    ]

    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not processes.is_alive(first), "the first has ended")
    made.remove(program.place)
    assert made.has_processes(program.place), "one with a process is never removed"
    assert whose.owner_of(child.pid) == "g"

    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: not made.has_processes(program.place), "it is empty")
    made.remove(program.place)
    assert not made.has_processes(program.place), "nobody is in one that is gone"


@needs_program_cgroups
def test_a_process_that_is_gone_moves_nobody(start: Start) -> None:
    made, living = ProgramCgroups(), start("sleep", "600")
    place = made.place_for(living, GRANT)
    assert place
    another = ProcessIdentity(living.pid, living.start_ticks - 1, living.boot_id)
    assert "did not enter" in made.take_in(another, place)
    assert not made.has_processes(place)
    made.remove(place)


@needs_program_cgroups
def test_a_user_moves_no_process_of_his_out_of_a_programs_cgroup(start: Start) -> None:
    """He has a cgroup of v2 that is delegated to him, as systemd gives one to each user."""
    made = ProgramCgroups()
    v2 = [
        one
        for one in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
        if (one / "cgroup.controllers").exists()
    ]
    if not v2:
        pytest.skip("v1 asks for no right to the cgroup that is left")
    top = v2[0] / f"delegated-{GRANT}"
    (own := top / "user").mkdir(parents=True)
    for path in (own, own / "cgroup.procs"):
        os.chown(path, 65534, 65534)
    his = start("setpriv", "--reuid=65534", "--clear-groups", "sleep", "600")
    (own / "cgroup.procs").write_text(str(his.pid))
    place = made.place_for(his, GRANT)
    assert place
    assert place.path == f"/{top.name}/mpsd-{GRANT}"
    assert made.take_in(his, place) == ""
    leave = ["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c"]
    leave.append(f"echo {his.pid} > {own}/cgroup.procs")
    try:
        assert subprocess.run(leave, stderr=subprocess.DEVNULL, check=False).returncode
        assert made.has_processes(place)
    finally:
        os.kill(his.pid, signal.SIGKILL)
        eventually(lambda: not made.has_processes(place), "it is empty")
        made.remove(place)
        own.rmdir()
        top.rmdir()


def test_without_cgroups_no_place_is_found(tmp_path: Path) -> None:
    made = ProgramCgroups(tmp_path)
    assert made.why_not == f"mpsd may not create cgroups in {tmp_path}"
    assert made.place_for(ProcessIdentity(os.getpid(), 0, ""), "g") is None


# Which process a runtime's state names as a container's first.

HERE = ProcessIdentity(7, 1234, processes.boot_id())
STATE = '{"init_process_pid":7,"init_process_start":1234}'


def write(root: Path, name: str, text: str) -> Path:
    (root / "c1").mkdir(parents=True, exist_ok=True)
    path = root / "c1" / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.json", STATE),
        ("status", '{"pid":7,"process-start-time":1234,"cgroup-path":"/c1","bundle":"/b"}'),
    ],
)
def test_the_state_of_runc_or_crun_names_it(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, name, text)
    assert first_process(str(tmp_path), "c1") == HERE


def test_a_container_that_its_runtime_does_not_know_has_none(tmp_path: Path) -> None:
    assert first_process(str(tmp_path), "c1") is None
    assert first_process(str(tmp_path / "gone"), "c1") is None
    (tmp_path / "c1").mkdir()
    assert first_process(str(tmp_path), "c1") is None
    write(tmp_path, "state.json", '{"init_process_pid":0,"init_process_start":0}')
    assert first_process(str(tmp_path), "c1") is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"init_process_pid":"7"}', '{"init_process_pid":7}', "\0" * 100]
)
def test_a_state_of_another_form_is_unknown_and_not_gone(tmp_path: Path, text: str) -> None:
    write(tmp_path, "state.json", text)
    with pytest.raises(StateUnknown, match=r"c1/state\.json is not understood"):
        first_process(str(tmp_path), "c1")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    real = write(tmp_path / "elsewhere", "state.json", STATE)
    (tmp_path / "c1").symlink_to(real.parent)
    with pytest.raises(StateUnknown):
        first_process(str(tmp_path), "c1")
    (tmp_path / "c1").unlink()
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "state.json").symlink_to(real)
    with pytest.raises(StateUnknown):
        first_process(str(tmp_path), "c1")


def _pipe(state: Path) -> None:
    state.unlink()
    os.mkfifo(state)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        (_pipe, "is no file of at most"),
        (lambda state: os.truncate(state, 1024**3), "is no file of at most"),
        (lambda state: state.chmod(0o666), "may be written by others"),
        (lambda state: os.chown(state, 65534, 65534), "may be written by others"),
    ],
    ids=["a pipe", "too large", "others may write it", "another user's"],
)
def test_a_state_that_others_may_have_made_is_not_believed(
    tmp_path: Path, becomes: Callable[[Path], None], why: str
) -> None:
    becomes(write(tmp_path, "state.json", STATE))
    with pytest.raises(StateUnknown, match=why):
        first_process(str(tmp_path), "c1")


# The pod of a process, by the kernel's word.


@pytest.fixture
def pod() -> Iterator[PodCgroupHere]:
    with pod_cgroup() as made:
        yield made


@needs_root
def test_a_process_of_a_nested_pid_namespace_is_its_pods(pod: PodCgroupHere, start: Start) -> None:
    """Which is how a container without hostPID is seen from the host, and by NVML."""
    unshare = start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600", cgroup=pod)
    assert PodProcesses().owner_of(child_of(unshare).pid) == pod.uid


def test_a_process_of_the_host_is_of_no_pod() -> None:
    assert PodProcesses().owner_of(os.getpid()) is None
