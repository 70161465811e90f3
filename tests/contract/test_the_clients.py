"""The two CUDA clients are one to whoever calls them."""

import re
import subprocess
import sys

from mpsd import cuda_client
from tests.contract.platforms import ROOT


def _actions(*program: str) -> list[str]:
    """The actions that a client names when it is asked for one it does not have."""
    answer = subprocess.run(
        [sys.executable, *program, "juggle"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    named = re.fullmatch(r".*: juggle is not one of (.*)\n", answer.stderr)
    assert named is not None, answer.stderr
    return named[1].split(", ")


def test_both_take_the_same_actions() -> None:
    assert _actions("-I", "-S", cuda_client.__file__) == _actions("-m", "mpsd.sim.cuda_client")
