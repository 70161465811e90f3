"""`mpsd smi`: who uses what of each GPU now, and what is left of it."""

import json
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mpsd.platform.command_line import TAB
from tests.whole.machine.conftest import on_machine, serving_on
from tests.whole.machine.machine import MPSD, Machine, Program, eventually

_COMPUTE = {"cards": {"1": {"policy": 3, "max_inst": 20}}}


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30, nothing running."""
    yield from on_machine("A30")


@pytest.fixture(scope="module")
def serving() -> Iterator[Machine]:
    """Two A30, the second of which is divided as cGPU's policy 3 does."""
    yield from serving_on("A30×2", compute=_COMPUTE)


def smi(machine: Machine, *words: str) -> Program:
    return machine.start([MPSD, "smi", *words])


def answered(asked: Program) -> str:
    assert asked.exit_code() == 0, asked
    return asked.output


def use(machine: Machine, *words: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(answered(smi(machine, "-o", "json", *words)))
    return found


def rows(text: str, first: str) -> list[list[str]]:
    """The words of the rows that begin with `first`."""
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


def test_of_two_grants_on_a_gpu_nobody_can_say_which_computes_and_alone_it_is_busy(served: Machine) -> None:
    idle = served.client(6, "alloc=500")
    assert use(served)["grants"][0]["cards"][0]["sm_percent"] == 0
    busy = served.run("--gpu-mem 8 --gpu-core 50", "sim-cuda", "alloc=1000", "work")
    busy.heard("launches")

    def seen() -> Mapping[int, Any]:
        """Once it computes: between two of the simulator's measurements it does nothing for a moment."""
        told = use(served)
        grants = {grant["holder_pid"]: grant for grant in told["grants"]}
        return grants if told["gpus"][0]["sm_percent"] and grants[busy.pid]["cards"][0]["sm_percent"] is None else {}

    found = eventually(seen, "the GPU computes")
    (of_busy,), (of_idle,) = found[busy.pid]["cards"], found[idle.pid]["cards"]
    assert (of_busy["sm_percent"], of_idle["sm_percent"]) == (None, None)
    assert (found[busy.pid]["thread_percent"], found[idle.pid]["thread_percent"]) == (50, 100)
    assert 1000 < of_busy["used_mib"] < 2000
    assert (of_busy["memory_mib"], of_busy["reserved_percent"]) == (8 * 1024, 50)
    idle.send(signal.SIGTERM)
    eventually(lambda: served.holders == {busy.pid}, "it is alone")
    assert eventually(lambda: use(served)["grants"][0]["cards"][0]["sm_percent"], "it is the only one") == 100


def test_a_program_that_is_not_on_the_gpu_is_unknown_and_never_idle(served: Machine) -> None:
    absent = served.run("--gpu-mem 4", "sleep", "60")
    eventually(lambda: served.holders == {absent.pid}, "it holds its grant")
    (grant,) = use(served)["grants"]
    assert grant["cards"][0]["sm_percent"] is None
    (row,) = (row for row in rows(answered(smi(served)), "gpu0") if "sleep" in row)
    assert row == ["gpu0", "-", "sleep", "60", "?", "-", "-", "0", "MiB", "4096", "MiB"]


def test_a_gpu_that_is_lost_says_nothing_and_nobody_on_it_is_idle(served: Machine) -> None:
    served.client(4)
    card = served.card()
    card.lost = True
    try:
        shown = use(served)
        (grant,) = shown["grants"]
        assert (grant["cards"][0]["sm_percent"], grant["cards"][0]["used_mib"]) == (None, None)
        assert any("how busy gpu0 is: NVML:" in what for what in shown["unknown"])
    finally:
        card.lost = False


def test_what_is_left_of_each_gpu_is_told_with_its_compute_policy(served: Machine) -> None:
    served.run("--gpu-mem 8 --gpu-core 30", "sim-cuda", "hold").heard("ready")
    told = use(served)
    first, second = told["gpus"]
    total = served.node().gpus[0].promised_mib
    assert first == {
        "gpu": first["gpu"],
        "label": "gpu0",
        "policy": 5,
        "policy_name": "native",
        "max_inst": None,
        "free_weight": None,
        "free_mib": total - 8 * 1024,
        "free_percent": 70,
        "sm_percent": 0,
    }
    assert (second["policy"], second["max_inst"], second["free_weight"], second["free_percent"]) == (3, 20, 20, 100)
    text = answered(smi(served))
    assert rows(text, "gpu0")[-1] == ["gpu0", "0", "%", "5", "native", "-", "-", str(total - 8192), "MiB", "70", "%"]
    assert rows(text, "gpu1")[-1] == [
        "gpu1",
        "0",
        "%",
        "3",
        "fixed",
        "share",
        "20",
        "20",
        str(total),
        "MiB",
        "100",
        "%",
    ]


def test_one_is_shown_by_its_id_and_for_a_word_that_means_none_those_there_are_are_named(served: Machine) -> None:
    first, second = served.client(2), served.client(3)
    ids = {served.grant_of(first).id, served.grant_of(second).id}
    one = served.grant_of(first).id
    assert [grant["id"] for grant in use(served, one)["grants"]] == [one]
    nobody = smi(served, "no-such-one")
    assert nobody.exit_code() == 1
    assert all(each in nobody.errors for each in ids)


def test_a_watch_shows_it_again_and_outlives_the_agent(served: Machine) -> None:
    watch = smi(served, "-o", "json", "--watch", "0.2")
    eventually(lambda: len(watch.lines) >= 2, "it is shown twice")
    watch.send(signal.SIGINT)
    assert watch.exit_code() == 130


def test_without_mpsd_the_answer_is_no_and_the_remedy(machine: Machine) -> None:
    alone = smi(machine)
    assert alone.exit_code() == 1
    assert "start it with `mpsd up`" in alone.errors


def completions(machine: Machine, *words: str) -> list[str]:
    """What a shell is offered for the last word."""
    asked = machine.start([MPSD, TAB, *words])
    assert asked.exit_code() == 0, asked
    return asked.output.split()


@pytest.mark.parametrize("verb", ["smi", "set"])
def test_tab_offers_who_holds_a_grant(served: Machine, verb: str) -> None:
    held = served.grant_of(served.client(2)).id
    assert completions(served, verb, held[:3]) == [held]
    assert completions(served, verb, f"{held}x") == []


def test_tab_offers_nothing_and_complains_of_nothing_where_mpsd_does_not_run(machine: Machine) -> None:
    assert completions(machine, "smi", "a") == []


def test_help_lists_both_verbs(machine: Machine) -> None:
    listed = answered(machine.start([MPSD, "--help"]))
    assert "smi" in listed
    assert "set" in listed
