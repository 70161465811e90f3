"""A Python with PyTorch, JAX and CuPy in pods: MPSD_E2E_FRAMEWORKS names it,
MPSD_E2E_FRAMEWORKS_FOLDER the folders of the node that hold it, with colons between them, or
MPSD_E2E_FRAMEWORKS_IMAGE the image."""

import os

from tests.e2e.cluster import Object

PYTHON = os.environ.get("MPSD_E2E_FRAMEWORKS", "")
_FOLDERS = os.environ.get("MPSD_E2E_FRAMEWORKS_FOLDER", "").split(":")
_IMAGE = os.environ.get("MPSD_E2E_FRAMEWORKS_IMAGE", "")


def runs_python(container: Object, program: str) -> Object:
    """What its pod's spec needs for that."""
    container["command"] = [PYTHON, "-c", program]
    if _IMAGE:
        container["image"] = _IMAGE
    spec: Object = {}
    for number, folder in enumerate(filter(None, _FOLDERS)):
        mounted = {"name": f"frameworks-{number}", "mountPath": folder, "readOnly": True}
        container.setdefault("volumeMounts", []).append(mounted)
        there = {"path": folder, "type": "Directory"}
        spec.setdefault("volumes", []).append({"name": mounted["name"], "hostPath": there})
    return spec
