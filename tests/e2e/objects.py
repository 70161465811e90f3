"""Objects that the tests apply."""

from pathlib import Path
from typing import Any

import mpsd
from tests.e2e.cluster import Object

SAMPLE = (Path(mpsd.__file__).parent / "cli" / "mps-sample.yaml").read_text()
WITHOUT_HOST_IPC = "".join(
    line for line in SAMPLE.splitlines(keepends=True) if "hostIPC" not in line
)
GPU = {"limits": {"aliyun.com/gpu-mem": "1"}}


def pod(name: str, *, gpu: bool = False, **spec: Any) -> Object:
    container: Object = {"name": "main", "image": "local/busybox:1", "imagePullPolicy": "Never"}
    fields: Object = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    if gpu:
        container["resources"] = GPU
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        fields |= {"hostIPC": True, "securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fields | spec}


def with_environment(thing: Object, **variables: str) -> Object:
    container = thing["spec"]["containers"][0] | {
        "env": [{"name": name, "value": value} for name, value in variables.items()]
    }
    return thing | {"spec": thing["spec"] | {"containers": [container]}}


def deployment(name: str, template: Object) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


def environment(thing: Object, container: int = 0) -> dict[str, str]:
    entries = thing["spec"]["containers"][container].get("env", [])
    return {entry["name"]: entry.get("value", "") for entry in entries}
