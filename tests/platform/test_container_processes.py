"""Whose process it is, of containers that have cgroups to themselves and of those that have none."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.containers import ContainerProcesses, own_cgroups
from mpsd.platform.rules.cgroups import Cgroup, alone_in
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.machine.oci_player import ContainerCgroup

Start = Callable[..., ProcessIdentity]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program, in a container's cgroup from before its exec where one is given."""
    with ExitStack() as stack:

        def started(*argv: str, cgroup: ContainerCgroup | None = None) -> ProcessIdentity:
            process = subprocess.Popen(["sh", "-c", 'read go; exec "$@"', "sh", *argv], stdin=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.kill)
            if cgroup:
                cgroup.take_in(process.pid)
            assert process.stdin
            process.stdin.close()
            found = processes.identity_of(process.pid)
            assert found
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
    return alone_in(Path(f"/proc/{process.pid}/cgroup").read_text(), [Path("/proc/self/cgroup").read_text()])


def child_of(process: ProcessIdentity) -> ProcessIdentity:
    (child,) = eventually(lambda: psutil.Process(process.pid).children(), "it has forked")
    found = processes.identity_of(child.pid)
    assert found
    return found


@needs_cgroups
def test_whoever_is_in_its_cgroup_is_a_containers_own(start: Start, cgroup: ContainerCgroup) -> None:
    first = start("sleep", "600", cgroup=cgroup)
    containers = ContainerProcesses(nobody)
    containers.put("g", first, own_cgroups(first))
    entered, outside = start("sleep", "600", cgroup=cgroup), start("sleep", "600")
    assert [containers.owner_of(one.pid) for one in (first, entered, outside)] == ["g", "g", None]
    containers.take_out("g")
    assert containers.owner_of(first.pid) is None


@needs_cgroups
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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a pid namespace")
def test_without_a_cgroup_to_itself_its_pid_namespace_counts(start: Start) -> None:
    runtime = start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600")
    first = child_of(runtime)
    containers = ContainerProcesses(nobody)
    containers.put("g", first, ())
    entered = child_of(start("nsenter", "--pid", "--target", str(first.pid), "sleep", "600"))
    assert containers.owner_of(entered.pid) == "g"
    assert containers.owner_of(runtime.pid) is None
    assert containers.owner_of(os.getpid()) is None


@needs_cgroups
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a pid namespace")
def test_in_a_cgroup_that_was_anothers_its_pid_namespace_tells_it_from_that_one(
    start: Start, cgroup: ContainerCgroup
) -> None:
    neighbour = start("sleep", "600", cgroup=cgroup)
    containers = ContainerProcesses(nobody)
    containers.put("neighbours", neighbour, own_cgroups(neighbour))
    eventually(lambda: _ticks_now(start) > neighbour.start_ticks, "the kernel's clock has gone on")
    first = child_of(start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600", cgroup=cgroup))
    assert own_cgroups(first) == ()
    containers.put("g", first, ())
    entered = start("sleep", "600", cgroup=cgroup)
    assert [containers.owner_of(one.pid) for one in (first, neighbour, entered)] == ["g", "neighbours", "neighbours"]


@needs_cgroups
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a pid namespace")
def test_in_the_pid_namespace_of_one_without_a_cgroup_another_is_known_by_its_own_cgroup(
    start: Start, cgroup: ContainerCgroup
) -> None:
    without = child_of(start("unshare", "--pid", "--fork", "--kill-child", "sleep", "600"))
    beside = child_of(start("nsenter", "--pid", "--target", str(without.pid), "sleep", "600", cgroup=cgroup))
    containers = ContainerProcesses(nobody)
    containers.put("without", without, ())
    containers.put("g", beside, cgroup_of(beside))
    assert [containers.owner_of(one.pid) for one in (without, beside)] == ["without", "g"]


@needs_cgroups
def test_a_container_that_was_just_made_is_looked_for_before_a_process_is_nobodys(
    start: Start, cgroup: ContainerCgroup
) -> None:
    first = start("sleep", "600", cgroup=cgroup)
    containers = ContainerProcesses(lambda: containers.put("g", first, own_cgroups(first)))
    assert containers.owner_of(first.pid) == "g"


def test_a_process_that_is_gone_is_nobodys(start: Start) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ContainerProcesses(nobody).owner_of(process.pid) is None
