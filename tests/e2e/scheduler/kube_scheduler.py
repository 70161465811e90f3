"""The real kube-scheduler as a process beside the cluster, with a configuration of ours."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.e2e.cluster import Object


def configuration(name: str, extender: Object) -> Object:
    """For the pods that name this scheduler. As Kubernetes 1.20 to 1.22 read it; there is one of
    it, so it leads."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": name}],
        "extenders": [extender],
    }


@contextmanager
def kube_scheduler(program: Path, kubeconfig: Path, said: Object, folder: Path) -> Iterator[Path]:
    """Runs while the block does. Gives its log."""
    config, log = folder / "scheduler.yaml", folder / "scheduler.log"
    client = {"clientConnection": {"kubeconfig": str(kubeconfig)}}
    config.write_text(yaml.safe_dump(said | client))
    command = [str(program), "--config", str(config), "--port=0", "--secure-port=0"]
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield log
        finally:
            process.terminate()
            process.wait(timeout=20)
