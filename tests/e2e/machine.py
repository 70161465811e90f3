"""The machine under the cluster that `make e2e` starts: its kubelet, and what only root on the node
can do."""

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

_UP = Path(__file__).parent / "kube" / "up.sh"
_RUN = Path("/run/mpsd")


@dataclass(frozen=True, slots=True)
class Machine:
    programs: Path
    state: Path

    def kubelet(self, verb: str) -> None:
        """verb: start, stop or kill. Pods go on."""
        self._up("kubelet", verb)

    def api(self, verb: str) -> None:
        """The API server. verb: kill, or start, which returns once it serves."""
        self._up("api", verb)

    def reboot(self) -> None:
        """What a reboot leaves of a node whose kubelet is down: no container, and nothing in
        /run."""
        address = str(self.state / "containerd.sock")
        tasks = [*("ctr", "-a", address, "-n", "k8s.io", "tasks")]
        for task in subprocess.run(
            [*tasks, "ls", "-q"], check=True, capture_output=True, text=True
        ).stdout.split():
            subprocess.run([*tasks, "rm", "-f", task], capture_output=True)
        for process in mps_processes():
            subprocess.run(["kill", "-KILL", str(process)])
        shutil.rmtree(_RUN)

    def _up(self, *words: str) -> None:
        kubeconfig = {"KUBECONFIG": str(self.state / "kubeconfig")}
        command = [str(_UP), str(self.programs), str(self.state), *words]
        subprocess.run(command, check=True, timeout=120, env=os.environ | kubeconfig)


def this_machine() -> Machine:
    state, programs = os.environ.get("MPSD_E2E_STATE"), os.environ.get("MPSD_E2E_PROGRAMS")
    if not state or not programs or os.geteuid() != 0:
        pytest.skip(
            "needs root on the node of a cluster that tests/e2e/kube/with-cluster.sh started"
        )
    return Machine(Path(programs), Path(state))


def mps_processes() -> list[int]:
    """The control daemons below /run/mpsd, which outlive their container, and their servers."""
    names = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone
            folders = process.environ().values()
            is_ours = any(folder.startswith("/run/mpsd/") for folder in folders)
            if is_ours and any(word.endswith(names) for word in process.cmdline()):
                found.append(process.pid)
    return found
