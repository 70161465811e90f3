"""Whether two programs that train or ask ResNet-50 under PyTorch, with shares of 1:2, get 1:2.

One rule: PyTorch is what the user's own Python has; mpsd neither needs nor imports it (mpsd/bench/resnet.py is a
program of its own). NVIDIA's published figures of inference are TensorRT's: only ratios compare with these.
"""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpsd.bench.ground import BenchShare, Ground
from mpsd.bench.here import BenchContext, CannotMeasure
from mpsd.bench.ratio import PERCENTS
from mpsd.bench.rules.rows import RatioRow

# What the program calls it, what a reader does, and the batches.
KINDS = (
    ("train", "ResNet-50 training", (16, 32, 64, 128)),
    ("infer", "ResNet-50 inference", (1, 8, 32, 128)),
    ("infer-graph", "ResNet-50 inference, CUDA graph", (1, 8, 32, 128)),
)
_PROGRAM = Path(__file__).with_name("resnet.py")
_NEEDED = ("torch", "torchvision")
_MEMORY_GIB = 16  # training with 128 images takes about 12
_READY_S = 240.0  # PyTorch is read from a disk that may be cold, and cuDNN looks for its fastest kernels
_GRACE_S = 60.0  # a pass may be long with few SMs


def steps(here: BenchContext) -> int:
    return 0 if _obstacle(here) else 1 + sum(len(batches) for _kind, _name, batches in KINDS)


def measure(here: BenchContext) -> Iterator[RatioRow]:
    if obstacle := _obstacle(here):
        raise CannotMeasure(obstacle)
    with here.under_mpsd() as ground:
        if (has_gib := ground.gpu.memory_mib // 1024) < (needs_gib := len(PERCENTS) * _MEMORY_GIB + 1):
            raise CannotMeasure(f"two programs need {needs_gib} GiB, and {ground.gpu.name} has {has_gib}")
        yield from pairs(here, ground, (sys.executable, "-P", str(_PROGRAM)))


def pairs(here: BenchContext, ground: Ground, command: Sequence[str]) -> Iterator[RatioRow]:
    """Two of this program (resnet.py's lines) at once go through every kind and batch, begun together each time."""
    here.step("PyTorch is loaded")
    wanted = [(kind, name, batch) for kind, name, batches in KINDS for batch in batches]
    words = [*command, f"{here.window_s:g}", *(f"{kind}={batch}" for kind, _name, batch in wanted)]
    programs = [ground.start_command(words, BenchShare(_MEMORY_GIB, percent)) for percent in PERCENTS]
    for _kind, name, batch in wanted:
        sms = [program.line_with("ready", _READY_S)["sms"] for program in programs]
        here.step(f"two programs of {name}, batch {batch}, 20 % and 40 %")
        for program in programs:
            program.go_on()
        per_s = [program.line_with("per_s", here.window_s + _GRACE_S)["per_s"] for program in programs]
        yield RatioRow(
            work=name,
            batch=batch,
            percents=PERCENTS,
            sms=(sms[0], sms[1]),
            per_s=(per_s[0], per_s[1]),
            unit="images",
        )
    ground.end_programs()


def _obstacle(here: BenchContext) -> str:
    """Why there is nothing to measure; empty where there is."""
    if here.simulate:
        return "simulated GPUs run no PyTorch"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        python = f"{sys.executable} has no {' and no '.join(missing)}"
        return f"{python}; `{sys.executable} -m pip install {' '.join(missing)}` brings it"
    return ""
