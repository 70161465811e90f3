"""One client of the canary as a process: whatever it does, it is over by its deadline and nothing else notices."""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mpsd.mps import canary
from mpsd.mps.rules.canary import Broken, NoContext, Outcome, ProbeResult

LINE = '{"uuid": "GPU-1", "meminfo_free_MiB": 952, "sms": 12}'


def run(program: Sequence[str], deadline_s: float = 10) -> Outcome:
    return asyncio.run(canary.run(program, {"PATH": os.environ["PATH"], "LIMIT": "7"}, deadline_s))


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (f"test $LIMIT = 7 && echo '{LINE}'", ProbeResult("GPU-1", 952, 12)),
        ("kill -SEGV $$", Broken("was killed by signal 11")),
        ("echo out of luck >&2; exit 1", Broken('ended with code 1 and printed "out of luck"')),
    ],
    ids=["obeyed", "crashes", "fails"],
)
def test_what_became_of_it_is_known(script: str, outcome: Outcome) -> None:
    assert run(["sh", "-c", script]) == outcome


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
    found = run(canary.PROGRAM)
    assert isinstance(found, NoContext)
    assert found.step in {"libcuda", "cuInit"}
