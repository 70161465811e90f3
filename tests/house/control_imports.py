"""Prints the modules of mpsd that the command line `mpsd control` has loaded before it runs: a program of its own.

`control_modules` runs it in a fresh interpreter, in which no test has imported anything.
"""

import subprocess
import sys
from pathlib import Path

from mpsd.cli.main import MPSD


def control_modules() -> list[str]:
    """Their names."""
    command = [sys.executable, "-m", __name__]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


if __name__ == "__main__":
    MPSD.load("control")
    print(*sorted(name for name in sys.modules if name.partition(".")[0] == "mpsd" and "_pb2" not in name))
