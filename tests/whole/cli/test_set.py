"""`mpsd set`: another size for what a program holds while it runs. Containers:
tests/host/test_b_state.py."""

import json
import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.whole.machine.machine import MPSD, Machine, Program, eventually


def asked(machine: Machine, program: Program, *words: str) -> Program:
    return machine.start([MPSD, "set", machine.grant_of(program).id, *words])


def done(machine: Machine, program: Program, *words: str) -> Mapping[str, Any]:
    """With -o json; the answer must be yes."""
    question = asked(machine, program, "-o", "json", *words)
    assert question.exit_code() == 0, question
    return json.loads(question.output)


def ledger(machine: Machine, program: Program) -> tuple[int, int]:
    (card,) = machine.grant_of(program).cards
    return card.memory_mib, card.reserved_percent


def test_what_was_and_what_is_are_told_and_whom_it_reaches(served: Machine) -> None:
    client = served.client(6, "alloc=500")
    question = asked(served, client, "--mem", "8GiB", "--percent", "40")
    assert question.exit_code() == 0, question
    assert (
        "gpu0: memory 6144 MiB -> 8192 MiB, compute limit none -> 40 %, reserved 0 % -> 40 %"
        in question.output
    )
    assert ledger(served, client) == (8192, 40)


def test_less_memory_is_on_disk_at_the_answer_and_the_server_lets_in_less_soon_after(
    served: Machine,
) -> None:
    client = served.client(6)
    eventually(
        lambda: served.limit_mib() == 6144, "the server lets in no more than the largest grant"
    )
    done(served, client, "--mem", "4GiB")
    (kept,) = (served.run_directory / "grants").glob("*.json")
    assert [part["memory_mib"] for part in json.loads(kept.read_text())["parts"]] == [4096]
    eventually(lambda: served.limit_mib() == 4096, "nobody larger is let in")


def test_less_memory_than_is_used_by_force_ends_what_is_over_as_it_said(served: Machine) -> None:
    client = served.client(6, "alloc=3000")
    question = asked(served, client, "--mem", "2GiB", "--force")
    assert question.exit_code() == 0, question
    assert "and 2048 MiB are granted now: mpsd ends those that exceed it" in question.output
    assert client.exit_code() != 0


def test_a_dry_run_says_the_same_and_changes_nothing(served: Machine) -> None:
    client = served.client(6)
    would = done(served, client, "--mem", "8GiB", "--dry-run")
    assert ledger(served, client) == (6144, 0)
    did = done(served, client, "--mem", "8GiB")
    assert (would["dry_run"], did["dry_run"]) == (True, False)
    assert {**would, "dry_run": None} == {**did, "dry_run": None}


def test_where_the_daemon_does_not_let_more_in_it_is_refused_and_as_it_was(served: Machine) -> None:
    client = served.client(6)
    real = served.program("real")
    served.replace_control_program(
        f'[ $# -gt 0 ] && exec {real} "$@"\n'
        "asked=$(cat)\n"
        'case "$asked" in *set_*) echo "it will not"; exit 1;; esac\n'
        f'echo "$asked" | {real}'
    )
    question = asked(served, client, "--mem", "8GiB")
    assert question.exit_code() == 1
    assert "its memory is unchanged" in question.errors
    assert ledger(served, client) == (6144, 0)
    served.restore_control_program()


def test_who_waits_in_the_queue_gets_what_a_change_set_free(served: Machine) -> None:
    client = served.client(20)
    waits = served.run("--gpu-mem 10 --wait", "sim-cuda", "hold")
    eventually(lambda: served.queue == [waits.pid], "it waits")
    done(served, client, "--mem", "8GiB")
    waits.heard("ready")
    waits.send(signal.SIGTERM)
    assert waits.exit_code() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_another_user_changes_nothing(served: Machine) -> None:
    client = served.client(6)
    path = f"/v1/grants/{served.grant_of(client).id}"
    assert served.answer_to_nobody(path, {"percent": 10}).startswith("HTTP/1.0 403")
    assert ledger(served, client) == (6144, 0)


def test_a_change_outlives_mpsd(served: Machine) -> None:
    client = served.client(6)
    done(served, client, "--mem", "5000", "--percent", "30")
    served.part("up").kill()
    served.up()
    assert ledger(served, client) == (5000, 30)


def test_grants_are_changed_one_after_the_other_and_never_over_the_card(served: Machine) -> None:
    clients = [served.client(4) for _ in range(4)]
    total_mib = served.node().gpus[0].promised_mib
    questions = [asked(served, client, "--mem", "8GiB") for client in clients]
    codes = sorted(question.exit_code() for question in questions)
    held_mib = sum(ledger(served, client)[0] for client in clients)
    assert codes == [0, 1, 1, 1]
    assert held_mib == 3 * 4096 + 8192 <= total_mib
