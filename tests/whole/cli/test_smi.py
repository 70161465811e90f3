"""`mpsd smi`: who uses what of each GPU now, and what is left of it."""

import json
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from mpsd.platform.command_line import TAB
from tests.whole.machine.machine import MPSD, Machine, Program, eventually

# The second is divided as cGPU's policy 3 does.
GPUS = "A30×2"
POLICY = {"compute": {"cards": {"1": {"policy": 3, "max_inst": 20}}}}


def smi(machine: Machine, *words: str) -> Program:
    return machine.start([MPSD, "smi", *words])


def answered(asked: Program) -> str:
    assert asked.exit_code() == 0, asked
    return asked.output


def use(machine: Machine, *words: str) -> Mapping[str, Any]:
    return json.loads(answered(smi(machine, "-o", "json", *words)))


def rows(text: str, first: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


def test_what_is_left_of_each_gpu_is_told_with_its_compute_policy(served: Machine) -> None:
    served.run("--gpu-mem 8 --gpu-core 30", "sim-cuda", "hold").heard("ready")
    told = use(served)
    first, second = told["gpus"]
    total = served.node().gpus[0].promised_mib
    assert (first["label"], first["computePolicy"], first["smPercent"]) == ("gpu0", 5, 0)
    assert (first["freeMiB"], first["freePercent"]) == (total - 8 * 1024, 70)
    assert (second["computePolicy"], second["maxInst"], second["freeWeight"]) == (3, 20, 20)
    text = answered(smi(served))
    free = f"0 % 5 native - - {total - 8192} MiB 70 %"
    assert rows(text, "gpu0")[-1] == ["gpu0", *free.split()]
    (grant,) = served.node().grants
    assert [one["id"] for one in use(served, grant.id)["grants"]] == [grant.id]
    nobody = smi(served, "no-such-one")
    assert (nobody.exit_code(), grant.id in nobody.errors) == (1, True)


def test_a_watch_shows_it_again_until_ctrl_c(served: Machine) -> None:
    watch = smi(served, "-o", "json", "--watch", "0.2")
    eventually(lambda: len(watch.lines) >= 2, "it is shown twice")
    watch.send(signal.SIGINT)
    assert watch.exit_code() == 130


def completions(machine: Machine, *words: str) -> list[str]:
    asked = machine.start([MPSD, TAB, *words])
    assert asked.exit_code() == 0, asked
    return asked.output.split()


@pytest.mark.parametrize("verb", ["smi", "set"])
def test_tab_offers_who_holds_a_grant(served: Machine, verb: str) -> None:
    held = served.grant_of(served.client(2)).id
    assert completions(served, verb, held[:3]) == [held]
    assert completions(served, verb, f"{held}x") == []
