"""Containers without Kubernetes, as `mpsd up` sees them: who holds a grant, from when, and until
when."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpsd.model.node_report import GrantReport
from mpsd.platform import processes
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.conftest import parted_on
from tests.whole.machine.machine import Machine, eventually
from tests.whole.machine.oci_player import Played, played

pytestmark = needs_cgroups

TWO_GIB = {"EGPU": "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=2048,WEIGHT=10"}


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    """Two A30 of one domain, with mpsd's two parts apart, so that the agent can be killed."""
    yield from parted_on("A30×2", domains=[[0, 1]])


@pytest.fixture
def two(apart: Machine, tmp_path: Path) -> Iterator[tuple[Played, Played]]:
    with played(apart, tmp_path / "root", "c1", "c2") as (one, other):
        yield one, other
        one.delete()
        other.delete()


@pytest.fixture
def container(two: tuple[Played, Played]) -> Played:
    return two[0]


@pytest.fixture
def other(two: tuple[Played, Played]) -> Played:
    return two[1]


def grants(machine: Machine) -> dict[str, GrantReport]:
    """By the id of the container that holds it."""
    return {grant.container: grant for grant in machine.node().grants if grant.container}


def on_disk(machine: Machine) -> list[str]:
    return sorted(path.name for path in (machine.run_directory / "grants").iterdir())


def known_as(container: Played, pid: int) -> Callable[[], bool]:
    return lambda: grants(container.machine)[container.name].holder_pid == pid


def until_over(container: Played) -> None:
    eventually(lambda: container.name not in grants(container.machine), "its grant has come back")
    assert on_disk(container.machine) == []


# -- from create to its end ----------------------------------------------------------------------


def test_the_grant_goes_from_the_runtime_to_the_first_process_and_ends_with_it(
    container: Played,
) -> None:
    assert container.ask(TWO_GIB) == 201
    assert known_as(container, container.runtime_pid)()
    first = container.make("hold")
    container.end_runtime()
    eventually(known_as(container, first), "its first process holds it")
    assert not grants(container.machine)[container.name].ended
    os.kill(first, signal.SIGKILL)
    until_over(container)


def test_what_a_runtime_did_not_make_is_given_back_when_it_is_killed(container: Played) -> None:
    assert container.ask(TWO_GIB) == 201
    container.kill_runtime()
    until_over(container)
    agent = container.machine.part("agent")
    assert agent.logged("released", container=container.name, reason="not created")


def test_a_state_that_nobody_can_read_is_not_taken_for_no_container(container: Played) -> None:
    assert container.ask(TWO_GIB) == 201
    container.state.parent.mkdir(parents=True)
    container.state.symlink_to("/etc/passwd")
    container.kill_runtime()
    agent = container.machine.part("agent")
    eventually(
        lambda: agent.logged("state of a container unknown", container=container.name), "it is said"
    )
    assert not grants(container.machine)[container.name].ended
    container.state.unlink()
    until_over(container)


def test_an_older_container_of_that_name_is_not_what_came_of_it(container: Played) -> None:
    """One that was made while mpsd did not run: the new runtime finds it in the way, and ends."""
    old = subprocess.Popen(["sleep", "600"])
    try:
        found = processes.identity_of(old.pid)
        assert found
        state = {"init_process_pid": old.pid, "init_process_start": found.start_ticks}
        container.state.parent.mkdir(parents=True)
        container.state.write_text(json.dumps(state))
        eventually(lambda: _ticks_now() > found.start_ticks, "the kernel's clock has gone on")
        assert container.ask(TWO_GIB) == 201
        container.kill_runtime()
        until_over(container)
    finally:
        old.kill()
        old.wait()


def _ticks_now() -> int:
    """When a process starts that starts now."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        found = processes.identity_of(started.pid)
        assert found
        return found.start_ticks


# -- the agent is killed -------------------------------------------------------------------------


def agent_back(machine: Machine) -> None:
    machine.service("agent")
    machine.until_ready()


def test_a_container_that_was_made_while_the_agent_was_away_is_found(container: Played) -> None:
    assert container.ask(TWO_GIB) == 201
    container.machine.part("agent").kill()
    first = container.make("hold")
    container.end_runtime()
    agent_back(container.machine)
    eventually(known_as(container, first), "its first process holds it")


def test_a_container_that_ended_while_the_agent_was_away_is_given_back(
    container: Played, other: Played
) -> None:
    first = container.held(TWO_GIB)
    eventually(known_as(container, first), "its first process holds it")
    assert other.ask(TWO_GIB) == 201
    container.machine.part("agent").kill()
    os.kill(first, signal.SIGKILL)
    other.kill_runtime()
    agent_back(container.machine)
    eventually(lambda: not grants(container.machine), "both are given back")
    assert on_disk(container.machine) == []


# -- whose a process is --------------------------------------------------------------------------


def test_nobody_outside_gets_a_containers_grant_by_its_mark(container: Played) -> None:
    machine = container.machine
    container.held(TWO_GIB)
    outside = machine.start(
        [machine.program("sim-cuda"), "hold"],
        {
            "MPSD_SIMULATION": str(machine.simulation.folder),
            "MPSD_GRANT": container.answer["grant"],
            "CUDA_MPS_PIPE_DIRECTORY": str(machine.run_directory / "gpu0-1" / "client"),
        },
    )
    outside.heard("ready")
    (seen,) = eventually(
        lambda: [one for one in machine.node().clients or () if one.pid == outside.pid],
        "it is seen",
    )
    assert seen.grant is None


# -- one name ------------------------------------------------------------------------------------


def test_a_name_that_lives_gets_no_second_grant(container: Played) -> None:
    first = container.held(TWO_GIB)
    eventually(known_as(container, first), "its first process holds it")
    again = Played(container.machine, container.state.parents[1], container.name, container.cgroup)
    try:
        assert again.ask(TWO_GIB) == 409
        (reason,) = again.answer["reasons"]
        assert (
            f"container {container.name} already holds grant {container.answer['grant']}" in reason
        )
        assert f"its pid {first} is running" in reason
    finally:
        again.kill_runtime()


# -- what its runtime says later -----------------------------------------------------------------


def test_over_gives_a_grant_back_once_its_container_has_ended(container: Played) -> None:
    first = container.held(TWO_GIB)
    assert container.told("over")[0] == 200
    assert known_as(container, first)(), "nothing of a container that lives"
    container.delete()
    assert container.told("over") == (200, {})
    assert grants(container.machine) == {}
    assert container.told("over") == (200, {})


def test_what_is_started_later_is_told_what_holds_now(container: Played) -> None:
    assert container.told("environment")[0] == 404
    container.held(TWO_GIB)
    status, answer = container.told("environment")
    assert (status, answer["environment"]) == (200, container.answer["environment"])


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_another_user_is_refused(container: Played) -> None:
    machine = container.machine
    machine.run_directory.parent.chmod(0o711)
    script = (
        "import os, socket, sys; os.setresuid(65534, 65534, 65534);s ="
        " socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);s.sendall(b'POST /v1/containers"
        " HTTP/1.0\\r\\nContent-Length: 2\\r\\n\\r\\n{}'); print(s.recv(65536).decode())"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(machine.run_directory / "mpsd.sock")],
        capture_output=True,
        text=True,
    )
    assert said.stdout.startswith("HTTP/1.0 403"), said


# -- its out-of-memory script --------------------------------------------------------------------


def test_its_script_is_called_through_its_runtime_before_its_process_is_ended(
    container: Played, tmp_path: Path
) -> None:
    runtime, said = tmp_path / "runtime", tmp_path / "said"
    runtime.write_text(f'#!/bin/sh\necho "$@" >{said}.new\nmv {said}.new {said}\n')
    runtime.chmod(0o755)
    assert container.ask(TWO_GIB, oom_script="/oom.sh", runtime=str(runtime)) == 201
    container.make("hold")
    watching = container.machine.part("agent")
    # a program takes memory piece by piece: the watchdog is to see all of it at once
    watching.send(signal.SIGSTOP)
    try:
        greedy = container.entered("alloc=4000", "hold", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="garbage")
        assert greedy.heard("alloc_MiB") == 4000
    finally:
        watching.send(signal.SIGCONT)
    assert greedy.exit_code() != 0
    words = eventually(lambda: said.exists() and said.read_text().split(), "the script is called")
    root = str(container.state.parents[1])
    assert words[:3] == ["--root", root, "exec"]
    assert words[-2:] == [container.name, "/oom.sh"]
    told = dict(word.split("=", 1) for word in words if word.startswith("MPSD_OOM_"))
    assert told["MPSD_OOM_PID"] == str(greedy.pid)
    assert told["MPSD_OOM_GRANTED_MIB"] == "2048"
    assert int(told["MPSD_OOM_USED_MIB"]) > 4000
