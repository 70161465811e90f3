"""What the part of `mpsd bench` that asks PyTorch does where there is none, and how it speaks with its two programs."""

import importlib.util
import sys

import pytest

from mpsd.bench import parts
from mpsd.bench.rules.rows import SharingMode
from mpsd.bench.testbeds import BenchContext, CannotMeasure
from mpsd.platform.limits_files import load_limits

# As resnet.py speaks: twice as many images as percents of the threads, a batch's part less.
PROGRAM = """
import json, os, sys
percent = float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
for word in sys.argv[2:]:
    kind, _, batch = word.partition("=")
    print(json.dumps({"ready": os.getpid(), "work": kind, "batch": int(batch), "sms": int(percent)}), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)
    print(json.dumps({"work": kind, "batch": int(batch), "per_s": 2 * percent + 1 / int(batch)}), flush=True)
"""


def context_with(simulate: str, steps: list[str]) -> BenchContext:
    return BenchContext(simulate=simulate, facts=load_limits(None).facts, window_s=0.1, rounds=1, step=steps.append)


def test_simulated_gpus_run_no_pytorch() -> None:
    context = context_with("H200", [])
    with pytest.raises(CannotMeasure, match="simulated GPUs run no PyTorch"):
        next(parts.torch(context))
    assert parts.torch_steps(context) == 0


def test_who_has_no_pytorch_hears_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    remedy = r"has no torch and no torchvision; .* -m pip install torch torchvision"
    with pytest.raises(CannotMeasure, match=remedy):
        next(parts.torch(context_with("", [])))


def test_one_pair_of_programs_goes_through_every_kind_and_batch() -> None:
    steps: list[str] = []
    context = context_with("H200", steps)
    with context.testbed(SharingMode.MPS) as testbed:  # starts sooner than mpsd, with the same variables
        rows = list(parts.torch_pairs(context, testbed, (sys.executable, "-S", "-c", PROGRAM)))

    asked = [(name, batch) for _kind, name, batches in parts.TORCH_KINDS for batch in batches]
    assert [(row.work, row.batch) for row in rows] == asked
    assert {row.sms for row in rows} == {(20, 40)}, "each had its own percent of the threads"
    assert all(row.per_s == (40 + 1 / (row.batch or 1), 80 + 1 / (row.batch or 1)) for row in rows)
    assert len(steps) == 1 + len(asked)
