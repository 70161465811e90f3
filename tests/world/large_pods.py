"""Pods as large as the API server keeps them: what a tenant may write."""

from typing import Any

Object = dict[str, Any]
OBJECT_BYTES = 1_400_000  # etcd refuses 1.5 MiB
_WAYS = 5


def large_pod(number: int, node: str = "") -> Object:
    """Of about OBJECT_BYTES, in one of several ways. It asks for a GPU. node: it is bound to it."""
    env: list[Object] = []
    more: list[Object] = []
    annotations: dict[str, str] = {}
    match number % _WAYS:
        case 0:
            env = [{"name": "LONG", "value": "x" * OBJECT_BYTES}]
        case 1:
            env = [{"name": f"V{one}"} for one in range(OBJECT_BYTES // 18)]
        case 2:
            more = [_container(f"c{one}") for one in range(OBJECT_BYTES // 70)]
        case 3:
            annotations = {"mpsd.io/gpu": "y" * 250_000, "mpsd.io/gpu-priority": "z" * 250_000}
            env = [{"name": "ESCAPED", "value": "\1" * 100_000}]  # six bytes each in JSON
        case _:
            more = [
                _container(
                    "many", {f"example.com/d{one}": "1" for one in range(OBJECT_BYTES // 24)}
                )
            ]
    asking = _container("main", {"aliyun.com/gpu-mem": "1"}) | {"env": env}
    metadata = {"name": f"large-{number:04}", "namespace": "default", "annotations": annotations}
    spec = {"containers": [asking, *more]} | ({"nodeName": node} if node else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(name: str, limits: Object | None = None) -> Object:
    return {
        "name": name,
        "image": "i",
        "resources": {"limits": limits or {"aliyun.com/gpu-mem": "1"}},
    }


def peak_mib(pid: int) -> float:
    """The most memory that it ever had resident."""
    with open(f"/proc/{pid}/status") as status:
        found = next(line for line in status if line.startswith("VmHWM:"))
    return int(found.split()[1]) / 1024
