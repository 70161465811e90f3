"""The command line of the CUDA client, which both devices have; and its kernels."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.bench import cuda_client
from tests.contract.platforms import ROOT


def _complaint(*words: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-I", "-S", cuda_client.__file__, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    said = re.fullmatch(r"[a-z_-]+: (.*)\n", answer.stderr)
    assert said is not None, answer.stderr
    return said[1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("info juggle", "juggle is not one of alloc, "),
        ("info lift=0=0", "lift=0=0 is after the first action; write lift= before the actions"),
        ("kernel=0 work", "kernel=0 is not above 0 and up to 60000 ms"),
        ("kernel=nan work", "kernel=nan is not above 0 and up to 60000 ms"),
        ("gemm=0 work", "gemm=0 is not a whole number from 1 to 65536"),
        ("kernel=10 gemm=4096 work", "kernel=10 and gemm=4096 are kernels of two kinds"),
        ("prepare=small measure=1 reconnect measure=2", "measure=2 has nothing prepared before it"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(words: str, complaint: str) -> None:
    assert _complaint(*words.split()).startswith(complaint)


def test_without_a_driver_it_cannot_begin_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    answer = subprocess.run(
        [sys.executable, "-I", "-S", cuda_client.__file__, "hold"],
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (answer.returncode, answer.stderr) == (3, "")
    said = json.loads(answer.stdout)
    assert said["fail"] == "libcuda"
    assert "libcuda.so.1" in said["err"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_are_valid(tmp_path: Path, architecture: str) -> None:
    assembler = shutil.which("ptxas")
    if assembler is None:
        pytest.skip("ptxas, of the CUDA toolkit, is not on PATH")
    said = subprocess.run(
        [assembler, f"-arch={architecture}", "-o", tmp_path / "kernels.cubin", cuda_client.KERNELS],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (said.returncode, said.stderr) == (0, "")
