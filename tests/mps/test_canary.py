"""What the canary's clients must see, what is said when they see something else, and for how long
it counts."""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.cuda_limit_parser import Limited, memory_limit_as_read
from mpsd.model.node_view import Canary
from mpsd.model.policy import CanaryRule
from mpsd.mps import canary as client
from mpsd.mps.canary import CanarySetup, FirstContext
from mpsd.mps.control_daemon import PROGRAM, ControlPipe
from mpsd.mps.rules import canary
from mpsd.mps.rules.canary import (
    OWN_LIMIT,
    SERVER_LIMIT,
    Broken,
    CanaryFinding,
    CanaryScope,
    NoContext,
    Outcome,
    ProbeResult,
)
from mpsd.platform.logs import logger
from tests.model.worlds import GPUS, NOW

GPU = GPUS[0]
CONTEXT_MIB, SMS = GPU.capability.context_cost_mib(8), 8
OUT_OF_MEMORY = NoContext("ctx", "2:CUDA_ERROR_OUT_OF_MEMORY")
HERE = CanaryScope("a-boot", "580.1")
UNDER_SERVER = ProbeResult(GPU.uuid, 1024 - CONTEXT_MIB, SMS)
UNDER_OWN = ProbeResult(GPU.uuid, 512 - CONTEXT_MIB, SMS)


def found(server: Outcome = UNDER_SERVER, own: Outcome = UNDER_OWN) -> CanaryFinding:
    return canary.finding(GPU, {SERVER_LIMIT: server, OWN_LIMIT: own})


def of(problem: str = "", here: CanaryScope = HERE) -> Canary:
    return canary.in_one([CanaryFinding(problem, "", 57, 8)], [], here, NOW)


@pytest.mark.parametrize(("comes", "failed"), [(True, 0), (False, 3)])
async def test_a_context_that_fails_beside_a_client_says_nothing_of_the_gpu(
    tmp_path: Path, comes: bool, failed: int
) -> None:
    """As where a tenant takes all 48 clients of the GPU just after none was listed."""
    listed = tmp_path / "clients"
    listed.touch()
    control = tmp_path / PROGRAM
    control.write_text(f"#!/bin/sh\nexec cat {listed}\n")
    control.chmod(0o755)
    program = tmp_path / "client"
    coming = f"echo {os.getpid()} > {listed}\n" * comes
    said = '{"fail": "cuInit", "err": "808:CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"}'
    program.write_text(f"#!/bin/sh\n{coming}echo '{said}'\nexit 3\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = asyncio.Event()
    setup = CanarySetup((str(program),), (GPU,), lambda: "580.1")
    first = FirstContext(setup, environment, ended.set, logger(role="test"))
    outcomes: list[str] = []
    first.on_outcome = lambda _gpu, failure: outcomes.append(failure)
    first.begin(ControlPipe(tmp_path, environment, 60.0), (1,), 60.0)
    await ended.wait()
    assert len(outcomes) == failed


def test_a_driver_that_obeys_passes_and_its_context_is_measured() -> None:
    assert found() == CanaryFinding(context_mib=CONTEXT_MIB, sms=SMS)
    assert canary.denial_problem(GPU, OUT_OF_MEMORY) == ""


def test_the_clients_own_limit_is_the_one_form_that_libcuda_reads_as_meant() -> None:
    environment = OWN_LIMIT.environment(GPU.uuid, "/pipe")
    assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
    read = memory_limit_as_read(environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], [GPU.uuid])
    assert read == Limited({0: OWN_LIMIT.limit_mib * 1024**2})
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in SERVER_LIMIT.environment(GPU.uuid, "/pipe")


NO_LIBCUDA = NoContext("libcuda", "libcuda.so.1 cannot be loaded: no such file")
DISOBEYED = {
    "server-memory": found(server=ProbeResult(GPU.uuid, 23000, SMS)),
    "own-memory": found(own=ProbeResult(GPU.uuid, 952, SMS)),
    "threads": found(server=replace(UNDER_SERVER, sms=GPU.sms)),
    "another-gpu": found(own=replace(UNDER_OWN, uuid="GPU-other")),
    "out-of-memory": found(server=OUT_OF_MEMORY),
    "no-context": found(server=NoContext("cuInit", "807:X")),
    "no-end": found(own=Broken("did not end within 30 s")),
    "no-libcuda": found(server=NO_LIBCUDA),
}
NOT_SHUT: dict[str, Outcome] = {
    "context": ProbeResult(GPU.uuid, 23000, 8),
    "other-error": NoContext("cuInit", "807:X"),
    "killed": Broken("was killed by signal 11"),
}
DEAR = found(ProbeResult(GPU.uuid, 900, SMS), ProbeResult(GPU.uuid, 388, SMS))
ROUNDED = found(replace(UNDER_SERVER, sms=6), replace(UNDER_OWN, sms=6))


@pytest.mark.parametrize("finding", DISOBEYED.values(), ids=DISOBEYED)
def test_a_driver_that_does_not_obey_is_refused_in_words(finding: CanaryFinding) -> None:
    assert finding.problem.startswith("gpu0: ")
    assert finding == CanaryFinding(problem=finding.problem)


def test_what_both_clients_have_to_say_is_said_once() -> None:
    assert found(NO_LIBCUDA, NO_LIBCUDA).problem.count("libcuda.so.1") == 1


@pytest.mark.parametrize("outcome", NOT_SHUT.values(), ids=NOT_SHUT)
def test_a_gpu_that_cannot_be_kept_shut_is_refused(outcome: Outcome) -> None:
    assert canary.denial_problem(GPU, outcome).startswith("gpu0: ")


def test_a_context_that_costs_more_than_the_facts_say_is_a_warning_with_the_figure() -> None:
    assert (DEAR.problem, DEAR.context_mib) == ("", 124)
    assert all(
        figure in DEAR.warning for figure in ("124 MiB", f"{CONTEXT_MIB} as in limits/gpus.yaml")
    )


def test_a_percentage_that_is_rounded_another_way_is_a_warning() -> None:
    assert (ROUNDED.problem, ROUNDED.sms) == ("", 6)
    assert all(figure in ROUNDED.warning for figure in ("6 SMs", "8 as in limits/gpus.yaml"))


def test_a_card_that_is_nearly_full_makes_no_context_dear() -> None:
    """What is left of the card, 500 MiB, is less than the server's limit."""
    assert found(server=ProbeResult(GPU.uuid, 500, SMS)).context_mib == CONTEXT_MIB


def test_a_domain_fails_with_any_of_its_gpus_and_shows_its_dearest_context() -> None:
    both = canary.in_one(
        [
            CanaryFinding("gpu0: bad"),
            CanaryFinding("", "gpu1: dear", 90, 12),
            CanaryFinding("", "", 57, 8),
        ],
        ["", "gpu1: open"],
        HERE,
        NOW,
    )
    assert (both.problem, both.warning) == ("gpu0: bad; gpu1: open", "gpu1: dear")
    assert (both.context_mib, both.sms) == (90, 12)


@pytest.mark.parametrize(
    ("before", "rule", "in_use", "due"),
    [
        (None, CanaryRule.REQUIRE, False, True),
        (None, CanaryRule.WARN, False, True),
        (None, CanaryRule.REQUIRE, True, False),  # their restart is not held up
        (None, CanaryRule.SKIP, False, False),
        (of(), CanaryRule.REQUIRE, False, False),
        (of(here=CanaryScope("a-boot", "590.1")), CanaryRule.REQUIRE, False, True),
        (of(here=CanaryScope("another", "580.1")), CanaryRule.REQUIRE, False, True),
        (of(here=CanaryScope("another", "580.1")), CanaryRule.REQUIRE, True, False),
        (of("bad"), CanaryRule.REQUIRE, True, True),  # it does not serve, so nothing is held up
        (of("bad"), CanaryRule.WARN, False, True),
        (of("bad"), CanaryRule.WARN, True, False),
        (of("bad"), CanaryRule.SKIP, False, False),
    ],
)
def test_when_it_is_run(before: Canary | None, rule: CanaryRule, in_use: bool, due: bool) -> None:
    assert canary.is_due(before, HERE, rule, in_use=in_use) is due


def test_only_what_failed_in_this_boot_under_this_driver_stands_in_the_way() -> None:
    assert canary.obstacle(of("bad"), HERE, CanaryRule.REQUIRE).endswith(": bad")
    assert canary.obstacle(of(), HERE, CanaryRule.REQUIRE) == ""
    assert canary.obstacle(None, HERE, CanaryRule.REQUIRE) == ""
    for elsewhere in (CanaryScope("another", "580.1"), CanaryScope("a-boot", "590.1")):
        assert canary.obstacle(of("bad"), elsewhere, CanaryRule.REQUIRE) == ""
    for rule in (CanaryRule.WARN, CanaryRule.SKIP):
        assert canary.obstacle(of("bad"), HERE, rule) == ""


# -- what a client said

LINE = {
    "pid": 7,
    "devices": 1,
    "uuid": GPU.uuid,
    "total_MiB": 24062,
    "meminfo_free_MiB": 967,
    "sms": 8,
    "init_s": 0.1,
}


@pytest.mark.parametrize(
    ("code", "output", "errors", "outcome"),
    [
        (0, json.dumps(LINE) + '\n{"end": "0:CUDA_SUCCESS"}\n', "", ProbeResult(GPU.uuid, 967, 8)),
        (3, '{"fail": "ctx", "err": "2:CUDA_ERROR_OUT_OF_MEMORY"}\n', "", OUT_OF_MEMORY),
        (-11, "", "", Broken("was killed by signal 11")),
        (-9, json.dumps(LINE), "", Broken("was killed by signal 9")),
        (1, "", "Traceback:\nKeyError: 7\n", Broken('ended with code 1 and printed "KeyError: 7"')),
        (1, json.dumps(LINE), "", Broken(f'ended with code 1 and printed "{json.dumps(LINE)}"')),
        (0, "", "", Broken('ended with code 0 and printed ""')),
        (0, '{"uuid": 7, "meminfo_free_MiB": "9", "sms": 8}', "", None),
    ],
)
def test_what_a_client_said_is_read_with_its_end(
    code: int, output: str, errors: str, outcome: Outcome | None
) -> None:
    read = canary.outcome_of(code, output, errors)
    assert read == outcome if outcome else isinstance(read, Broken)


@given(st.integers(-64, 255), st.text(), st.text())
def test_whatever_a_program_says_is_an_outcome_of_one_line(
    code: int, output: str, errors: str
) -> None:
    outcome = canary.outcome_of(code, output, errors)
    assert not isinstance(outcome, ProbeResult)
    assert "\n" not in str(outcome)
    assert found(server=outcome).problem


# One client of the canary as a process: whatever it does, it is over by its deadline and nothing
# else notices.

CLIENT_LINE = '{"uuid": "GPU-1", "meminfo_free_MiB": 952, "sms": 12}'


def run(program: Sequence[str], deadline_s: float = 10) -> Outcome:
    return asyncio.run(client.run(program, {"PATH": os.environ["PATH"], "LIMIT": "7"}, deadline_s))


def test_what_became_of_it_is_known() -> None:
    script = f"test $LIMIT = 7 && echo '{CLIENT_LINE}'"
    assert run(["sh", "-c", script]) == ProbeResult("GPU-1", 952, 12)
    assert run(["sh", "-c", "kill -SEGV $$"]) == Broken("was killed by signal 11")


def test_one_that_babbles_is_cut_short() -> None:
    found = run(["sh", "-c", "head -c 3000000 /dev/zero; exit 4"])
    assert isinstance(found, Broken)
    assert found.how.startswith("ended with code 4")
    assert len(found.how) < 400


def test_one_that_hangs_is_over_at_its_deadline_and_leaves_no_process(tmp_path: Path) -> None:
    began = time.monotonic()
    found = run(["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"], deadline_s=0.5)
    assert found == Broken("did not end within 0.5 s")
    assert time.monotonic() - began < 60, "far from the 600 s that it wanted"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_one_that_is_not_there_is_said() -> None:
    found = run(["/nowhere/canary"])
    assert isinstance(found, Broken)
    assert "could not be started: [Errno 2] No such file or directory" in found.how


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="a driver is installed here")
def test_the_real_one_says_what_it_lacks() -> None:
    found = run(client.PROGRAM)
    assert isinstance(found, NoContext)
    assert found.step in {"libcuda", "cuInit"}
