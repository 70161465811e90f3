"""kubectl's plugins that this project installs, as kubectl starts them."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster import Cluster, Said


def kubectl_mps(cluster: Cluster, *words: str) -> Said:
    return _plugin(cluster, "kubectl-mps", *words)


def inspect_cgpu(cluster: Cluster, *words: str) -> Said:
    return _plugin(cluster, "kubectl-inspect-cgpu", *words)


def _plugin(cluster: Cluster, name: str, *words: str) -> Said:
    command = [str(Path(sys.executable).parent / name), *words, "--kubeconfig", str(cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return Said(done.returncode, done.stdout, done.stderr)
