"""`mpsd stop`: how programs of `mpsd run` end by it, who may do that, and what is said of those
that are not there."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mpsd.platform import local_api, processes
from tests.whole.machine.machine import MPSD, Machine, Program, eventually

UNHANDLED = ("sim-cuda", "kernel=100", "launch=600")  # it would die of a SIGTERM
KILLED = 128 + signal.SIGKILL


# A client is stopped for as long as a test needs to see it, where a neighbour computes.
POLICY = {"graces": {"end_drain_s": 1}}


@pytest.fixture
def neighbour(served: Machine) -> Iterator[Program]:
    made = served.run("--gpu-mem 2", "sim-cuda", "kernel=100", "work")
    made.heard("launches")
    yield made
    made.send(signal.SIGTERM)
    assert made.exit_code() == 0, made


def running(machine: Machine, *command: str) -> Program:
    program = machine.run("--gpu-mem 2", *command)
    program.heard("devices")
    return program


def asked(machine: Machine, *words: str | Program) -> Program:
    named = [machine.grant_of(word).id if isinstance(word, Program) else word for word in words]
    return machine.start([MPSD, "stop", *named])


def answer(machine: Machine, *words: str | Program) -> list[Mapping[str, Any]]:
    question = asked(machine, *words, "-o", "json")
    assert question.exit_code() == 0, question
    return json.loads(question.output)


def stopped(machine: Machine) -> list[int]:
    return [line["pid"] for line in machine.part("up").logged("client stopped")]


def test_a_program_that_handles_sigterm_ends_by_itself(served: Machine) -> None:
    client = served.client(2)
    grant = served.grant_of(client).id
    (one,) = answer(served, client)
    assert (one["grant"], one["outcome"], one["processes"], one["reasons"]) == (
        grant,
        "terminated",
        1,
        [],
    )
    assert client.exit_code() == 0
    assert client.pid not in stopped(served)
    assert not served.node().grants, "its grant has ended at the answer"


def test_a_program_that_would_die_of_it_is_stopped_first(
    served: Machine, neighbour: Program
) -> None:
    client = running(served, *UNHANDLED)
    (one,) = answer(served, client)
    assert (one["outcome"], one["processes"]) == ("killed", 1)
    assert client.exit_code() == KILLED
    assert client.pid in stopped(served)


def test_what_a_program_has_started_ends_with_it(served: Machine, neighbour: Program) -> None:
    script = "trap '' TERM; sleep 600 & sim-cuda kernel=100 launch=600 & sim-cuda hold & wait"
    program = running(served, "sh", "-c", script)
    eventually(lambda: served.grant_of(program).clients == 2, "both are on the GPU")
    (one,) = answer(served, program, "--grace", "1")
    assert (one["outcome"], one["processes"]) == ("killed", 4)
    assert program.exit_code() in {0, KILLED}, "the shell may see the others end first"
    assert not [pid for pid, command in served.processes_left().items() if command == "sleep 600"]


def test_several_programs_are_stopped_at_once_and_each_problem_is_said(served: Machine) -> None:
    first, second = served.client(2), running(served, *UNHANDLED)
    grants = [served.grant_of(one).id for one in (first, second)]
    question = asked(served, first, "nobody", second, "-o", "json")
    assert question.exit_code() == 1
    assert [(one["grant"], one["outcome"]) for one in json.loads(question.output)] == [
        *zip(grants, ("terminated", "killed"), strict=True)
    ]
    (line,) = question.errors.splitlines()
    assert '"nobody"' in line
    assert (first.exit_code(), second.exit_code()) == (0, KILLED)


def test_a_grant_that_has_ended_is_not_there(served: Machine) -> None:
    client = served.client(2)
    grant = served.grant_of(client).id
    answer(served, client)
    question = asked(served, grant)
    assert (question.exit_code(), question.output) == (1, "")
    assert f"{grant} holds no grant: it has ended" in question.errors
    assert asked(served, grant, "--grace", "-1").exit_code() == 2


AS_NOBODY = (
    sys.executable,
    "-c",
    "import os; os.setresuid(65534, 65534, 65534); os.execv('/bin/sleep', ['sleep', '600'])",
)


def asked_by_nobody(machine: Machine, program: Program) -> str:
    asks = {"grants": [machine.grant_of(program).id], "grace_s": 5}
    said = machine.answer_to_nobody("/v1/programs/stop", asks)
    (one,) = json.loads(said.partition("\n\n")[2])
    return one["outcome"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_a_user_ends_programs_of_its_own_and_no_others(served: Machine) -> None:
    own = served.run("--gpu-mem 2", *AS_NOBODY)
    roots = served.client(2)
    in_part = served.run("--gpu-mem 2", "sh", "-c", '"$@" & wait', "sh", *AS_NOBODY)
    for program in (own, in_part):
        eventually(lambda program=program: nobodys(served, program), "it has changed its user")
    assert [asked_by_nobody(served, program) for program in (roots, in_part, own)] == [
        "refused",
        "refused",
        "killed",
    ]
    assert own.exit_code() == KILLED
    assert roots.running
    assert in_part.running
    ended_by_root = [one["outcome"] for one in answer(served, roots, in_part)]
    assert ended_by_root == ["terminated", "killed"]


def nobodys(machine: Machine, program: Program) -> bool:
    pids = (program.pid, *processes.descendants_of(program.pid))
    return any(
        processes.user_of(pid) == 65534 and processes.command_of(pid) == "sleep 600" for pid in pids
    )


def test_what_has_begun_goes_on_after_ctrl_c(served: Machine, neighbour: Program) -> None:
    client = running(served, *UNHANDLED)
    question = asked(served, client)
    eventually(lambda: client.pid in stopped(served), "it is stopped")
    question.send(signal.SIGINT)
    assert question.exit_code() == 128 + signal.SIGINT
    assert question.errors
    assert client.exit_code() == KILLED


def test_a_client_that_an_end_was_begun_for_is_killed_by_the_next_mpsd(
    served: Machine, neighbour: Program
) -> None:
    client = running(served, *UNHANDLED)
    question = asked(served, client)
    eventually(lambda: client.pid in stopped(served), "it is stopped")
    served.part("up").kill()
    assert question.exit_code() == 1
    assert client.running
    served.up()
    assert client.exit_code() == KILLED


def test_a_program_without_time_to_end_gets_no_sigterm(served: Machine, neighbour: Program) -> None:
    client = served.client(2)
    (one,) = answer(served, client, "--grace", "0")
    assert one["outcome"] == "killed"
    assert client.exit_code() == KILLED
    assert client.pid in stopped(served)


def test_a_grace_that_is_none_is_refused_by_the_interface(served: Machine) -> None:
    client = served.client(2)
    for grace_s in (-1, 3601, None, "3"):
        asks = {"grants": [served.grant_of(client).id], "grace_s": grace_s}
        code, body = local_api.ask(
            served.run_directory / "mpsd.sock", "POST", "/v1/programs/stop", asks
        )
        assert (code, json.loads(body)["for_ever"]) == (400, True)
    assert client.running
