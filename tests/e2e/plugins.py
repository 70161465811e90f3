"""kubectl's plugin that this project installs, as kubectl starts it: beside this Python, else on
PATH."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster import Cluster, Said


def kubectl_mps(cluster: Cluster, *words: str) -> Said:
    beside = Path(sys.executable).with_name("kubectl-mps")
    program = str(beside) if beside.exists() else shutil.which("kubectl-mps")
    assert program, f"kubectl-mps is neither beside {sys.executable} nor on PATH"
    command = [program, *words, "--kubeconfig", str(cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return Said(done.returncode, done.stdout, done.stderr)
