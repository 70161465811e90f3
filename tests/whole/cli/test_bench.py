"""`mpsd bench` as people run it: on simulated GPUs, in the way of others, and stopped half way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpsd.bench.groups import GROUPS
from mpsd.bench.rules.rows import BatchWork, BenchGroup, MachineRow, PriorityRow
from mpsd.bench.run import BenchRun, CannotBegin, require_alone, require_mps, require_turns
from mpsd.bench.testbeds import BenchContext, CannotMeasure
from mpsd.mps.node_gpus import NodeGpus
from mpsd.platform.limits_files import load_limits
from mpsd.platform.nvml import Nvml
from mpsd.simulator.card import EXCLUSIVE_PROCESS, MPS_CLIENT, CardView, ContextClaim
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml

FACTS = load_limits(None).facts
BENCH = [sys.executable, "-m", "mpsd", "bench"]
MACHINE = MachineRow(
    "2026-11-22T05:00:00Z",
    "0.1.0",
    "NVIDIA H200",
    143155,
    132,
    "580",
    "13.0",
    2,
    "3.11",
    simulated=True,
)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MPSD_")}


def folders_of(pid: int) -> list[Path]:
    return list(Path("/tmp").glob(f"mpsd-bench-{pid}-*"))


def processes_of(pid: int) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                text = (process / name).read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"/tmp/mpsd-bench-{pid}-" in text:
                found.append(f"{process.name}: {text}")
    return found


def test_a_run_on_simulated_gpus_is_kept_judged_and_leaves_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "cost.json"
    asked = f"cost --simulate H200 --window 0.1 --rounds 1 -o json --save {kept}"
    with subprocess.Popen(
        [*BENCH, *asked.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        answer, progress = process.communicate(timeout=150)
    assert process.returncode == 0, progress
    told = json.loads(answer)
    assert [(row["work"], row["programs"]) for row in told["cost"]] == [
        ("arithmetic", 1),
        ("arithmetic", 4),
        ("small", 4),
    ]
    assert (told["machine"]["gpu"], told["machine"]["simulated"]) == ("NVIDIA H200", True)
    verdicts = {claim["group"]: claim["verdict"] for claim in told["claims"]}
    assert (verdicts["cost"], verdicts["sharing"]) == ("cannot tell", "not measured")
    record = json.loads(kept.read_text())
    assert record.pop("crc32")
    assert {**record, "claims": told["claims"]} == told
    assert progress.splitlines()[0].startswith("mpsd bench: cost: ")
    assert (folders_of(process.pid), processes_of(process.pid)) == ([], [])


def test_a_signal_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """Of a window of 5 s, under mpsd and without it."""
    kept = str(tmp_path / "kept.json")
    words = ["shares", "--simulate", "H200", "--window", "5", "--save", kept]
    with subprocess.Popen(
        [*BENCH, *words], stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr is not None
        assert "shares: " in process.stderr.readline()
        assert folders_of(process.pid)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(30) == 128 + signal.SIGINT
    assert "stopped, and everything it had started with it" in said
    assert (folders_of(process.pid), processes_of(process.pid)) == ([], [])


# -- others


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[tuple[Nvml, CardView]]:
    node = create_node(tmp_path / "node", cards_asked("A30", FACTS), FACTS.capabilities)
    nvml, card = Nvml(SimulatedNvml(node.folder)), node.card(0)
    nvml.open()
    yield nvml, card
    card.close()
    nvml.close()


def test_who_uses_a_gpu_is_named_with_the_remedy(
    machine: tuple[Nvml, CardView], tmp_path: Path
) -> None:
    nvml, card = machine
    gpus = NodeGpus(nvml, FACTS).now.gpus
    require_alone(nvml, gpus, tmp_path / "mpsd.sock")
    card.claim(ContextClaim(os.getpid(), MPS_CLIENT, 300 * MIB))
    with pytest.raises(
        CannotBegin, match=rf"gpu0: pid {os.getpid()}: .*py.*\n.*end them, or .* --beside-others"
    ):
        require_alone(nvml, gpus, None)


def test_without_the_control_daemons_program_nothing_begins(tmp_path: Path) -> None:
    with pytest.raises(CannotBegin, match="nvidia-cuda-mps-control is not on PATH"):
        require_mps({"PATH": str(tmp_path)})


def test_a_card_that_one_process_has_for_itself_is_refused_and_left_as_it_is(
    machine: tuple[Nvml, CardView],
) -> None:
    nvml, card = machine
    gpu = NodeGpus(nvml, FACTS).now.gpus[0]
    require_turns(nvml, gpu)
    card.compute_mode = EXCLUSIVE_PROCESS
    with pytest.raises(
        CannotBegin, match=r"gpu0 is in compute mode EXCLUSIVE_PROCESS.*nvidia-smi -i 0 -c DEFAULT"
    ):
        require_turns(nvml, gpu)
    assert card.compute_mode == EXCLUSIVE_PROCESS


# -- what ends a run


_ROW = PriorityRow(BatchWork.NONE, 1.0, 2.0, 3.0, 4.0)


def failing(error: Exception) -> Callable[[BenchContext], Iterator[PriorityRow]]:

    def measure(context: BenchContext) -> Iterator[PriorityRow]:
        context.step("a first")
        yield _ROW
        raise error

    return measure


def test_what_was_measured_before_an_error_is_there_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    here = BenchContext("H200", FACTS, 0.1, 1, told.append)
    monkeypatch.setitem(GROUPS, BenchGroup.SHARING, failing(CannotMeasure("the card is too small")))
    monkeypatch.setitem(GROUPS, BenchGroup.SHARES, failing(EOFError("mpsd ended")))
    run = BenchRun(here, MACHINE, (BenchGroup.SHARES, BenchGroup.SHARING))
    with pytest.raises(EOFError):
        list(run.measure())
    assert told == ["sharing: a first", "shares: a first"]
    assert run.now == "shares: a first"
    assert run.so_far.priority == (_ROW,) * 2
    assert run.so_far.skipped == ((BenchGroup.SHARING, "the card is too small"),)
