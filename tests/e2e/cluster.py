"""The cluster under test, through kubectl as a person uses it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.e2e.waiting import eventually

Object = dict[str, Any]

_NONE: Mapping[str, str] = {}


def kubectl_program() -> str:
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    assert found, "kubectl is not on PATH"
    return found


def listed(things: Sequence[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(things)}


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("Warning:")]


@dataclass(frozen=True, slots=True)
class Cluster:
    """leaving: the namespaces that were deleted and may still be there."""

    kubeconfig: Path
    leaving: list[str] = field(default_factory=list)

    def kubectl(
        self, *arguments: str, given: Object | str | None = None, within_s: float = 60.0
    ) -> Said:
        """given: what is piped in. Never raises for what kubectl says."""
        text = json.dumps(given) if isinstance(given, dict) else given
        command = [kubectl_program(), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=within_s)
        return Said(done.returncode, done.stdout, done.stderr)

    def do(self, *arguments: str, given: Object | str | None = None) -> Said:
        said = self.kubectl(*arguments, given=given)
        assert said.ok, f"kubectl {' '.join(arguments)}: {said.err or said.out}"
        return said

    def apply(self, thing: Object | str, namespace: str, *options: str) -> Said:
        return self.kubectl("apply", "-n", namespace, "-f", "-", *options, given=thing)

    def apply_all(self, things: Sequence[Object]) -> None:
        self.do("apply", "-f", "-", given=listed(things))

    def get(self, *arguments: str) -> Object:
        return json.loads(self.do("get", *arguments, "-o", "json").out)

    @property
    def version(self) -> str:
        """Of Kubernetes: v1.36.2."""
        return json.loads(self.do("version", "-o", "json").out)["serverVersion"]["gitVersion"]

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])

    def serves(self, plural: str) -> bool:
        """Whether it has such objects, in the version that is its own favourite."""
        return (
            plural
            in self.do("api-resources", "--no-headers", "-o", "name").out.replace(".", " ").split()
        )

    def wait_until_it_takes_pods(self, namespace: str) -> None:
        """A new namespace takes none before it has a service account, which before 1.24 has a
        token."""
        containers = [{"name": "main", "image": "local/busybox:1"}]
        probe = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe"},
            "spec": {"containers": containers},
        }
        eventually(
            lambda: self.do("create", "-n", namespace, "--dry-run=server", "-f", "-", given=probe),
            "a namespace that takes pods",
        )

    @contextmanager
    def namespace(
        self, *, exempt: bool = False, labels: Mapping[str, str] = _NONE
    ) -> Iterator[str]:
        name = f"e2e-{uuid4().hex[:8]}"
        metadata = {
            "name": name,
            "labels": {**labels, **({"mpsd.io/exempt": "true"} if exempt else {})},
        }
        self.do(
            "create",
            "-f",
            "-",
            given={"apiVersion": "v1", "kind": "Namespace", "metadata": metadata},
        )
        try:
            self.wait_until_it_takes_pods(name)
            yield name
        finally:
            self.do("delete", "namespace", name, "--wait=false")
            self.leaving.append(name)

    def until_namespaces_are_gone(self) -> None:
        """That each goes away in time is part of the test that had it; it goes while others run."""
        while self.leaving:
            name = self.leaving.pop()
            eventually(
                lambda name=name: "NotFound" in self.kubectl("get", "namespace", name).err,
                f"{name} gone",
                within_s=60.0,
            )
