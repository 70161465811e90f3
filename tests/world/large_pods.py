"""Pods as large as the API server keeps them, which is what a tenant may write, behind a simulated
API server without controllers, a process of its own.

`python -m tests.world.large_pods DIR PODS [NODE]` writes DIR/kubeconfig, says `ready`, and serves
until SIGTERM. NODE: all are bound to it. SIGUSR1 changes some of each kind.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mpsd.simulator.api_server.cluster import SimulatedCluster
from mpsd.simulator.api_server.kinds import CRDS, NODES, PODS
from mpsd.simulator.api_server.server import ApiServer, write_kubeconfig

Object = dict[str, Any]
_DEFINITION = Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml"
_BYTES = 1_400_000  # etcd refuses 1.5 MiB
_DEEP = 8_000  # Go's readers refuse 10 000
_EACH = 2  # of each other way than one long text, which costs the server little


_CHANGED = 30  # of the first ones, of every way


def _container(name: str, limits: Object | None = None) -> Object:
    asked = limits or {"aliyun.com/gpu-mem": "1"}
    return {"name": name, "image": "none", "resources": {"limits": asked}}


def large_pods(count: int, node: str) -> Iterator[Object]:
    """Those that ask for a GPU. node: that they are bound to; empty for none."""
    long = "x" * _BYTES
    deep = msgspec.Raw(b'{"f:a":' * _DEEP + b"{}" + b"}" * _DEEP)
    for number in range(count):
        main = _container("main")
        more: list[Object] = []
        metadata: Object = {"name": f"large-{number:04}", "uid": f"uid-{number}"}
        metadata |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        match number // _EACH:
            case 0:
                main["env"] = [{"name": f"V{one}"} for one in range(_BYTES // 18)]
            case 1:
                more = [_container(f"c{one}") for one in range(_BYTES // 90)]
            case 2:
                other = {f"example.com/d{one}": "1" for one in range(_BYTES // 28)}
                more = [_container("many", other)]
            case 3:
                keys = ("mpsd.io/gpu", "mpsd.io/gpu-priority", "any")
                metadata["annotations"] = dict.fromkeys(keys, long[:80000])
                # six bytes each in JSON
                main["env"] = [{"name": "ESCAPED", "value": "\1" * (_BYTES - 240_000)}]
            case 4:
                metadata["managedFields"] = [{"fieldsV1": deep}]
            case _:
                main["env"] = [{"name": "LONG", "value": long}]
        spec = {"containers": [main, *more], "nodeName": node, "schedulerName": "s"}
        yield {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _put(cluster: SimulatedCluster, count: int, node: str, said: str) -> None:
    for pod in large_pods(count, node):
        pod["status"]["reason"] = said
        key = cluster.objects.key(PODS, "default", pod["metadata"]["name"])
        cluster.store.put(key, pod)


async def _serve(folder: Path, count: int, node: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    cluster = SimulatedCluster()
    loop.add_signal_handler(signal.SIGUSR1, _put, cluster, min(count, _CHANGED), node, "changed")
    await cluster.create(CRDS, "v1", "", yaml.safe_load(_DEFINITION.read_text()))
    if node:
        cluster.store.put(
            cluster.objects.key(NODES, "", node), {"metadata": {"name": node, "uid": "n"}}
        )
    _put(cluster, count, node, "")
    server = ApiServer(cluster, bookmark_s=1)
    await server.start()
    await cluster.stop()
    write_kubeconfig(server, folder)
    print("ready", flush=True)
    await stop.wait()
    await server.stop()


class LargePods:
    """The server. kubeconfig: by which it is asked."""

    def __init__(self, process: subprocess.Popen[bytes], kubeconfig: Path) -> None:
        self._process = process
        self.kubeconfig = kubeconfig

    def change(self) -> None:
        """Some of each kind, as a tenant may whenever they like."""
        self._process.send_signal(signal.SIGUSR1)


@contextmanager
def serving(folder: Path, count: int, node: str = "") -> Iterator[LargePods]:
    command = [sys.executable, "-m", "tests.world.large_pods", str(folder), str(count), node]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout
    try:
        assert server.stdout.readline() == b"ready\n"
        yield LargePods(server, folder / "kubeconfig")
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def peak_mib(pid: int) -> float:
    """The most memory that it ever had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
