"""A cluster with MPSNodes for tests of `kubectl mps`: the simulated API server, and the program as
people call it."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.cli import kubectl_mps
from mpsd.operations.lifecycle import drain
from mpsd.platform.kube import MPS_NODES, Kube, PatchKind, Resource
from mpsd.simulator.api_server import requests
from tests.mpsnodes import mpsnode
from tests.simulated_api import SimulatedApi
from tests.world.asking import answers

CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
_CRD = yaml.safe_load(
    (Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml").read_text()
)
_PAUSE_S = 0.02


@dataclass(frozen=True)
class Said:
    code: int
    output: str
    errors: str

    def row(self, *first: str) -> list[str]:
        """The words of the one line that begins with these."""
        (found,) = (
            words
            for line in self.output.splitlines()
            if (words := line.split())[: len(first)] == [*first]
        )
        return found


class ClusterWorld:
    def __init__(
        self,
        api: SimulatedApi,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.api = api
        self.kubeconfig = api.kubeconfig(folder)
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("KUBECONFIG", str(self.kubeconfig))

    def ask(self, questions: Callable[[Kube], Awaitable[Any]]) -> Any:
        return answers(self.kubeconfig, questions)

    def install(self) -> None:
        self.ask(lambda kube: kube.create(CRDS, _CRD))

    def put(self, *names: str) -> None:
        """MPSNodes of tests/data, told as long ago as there."""

        async def questions(kube: Kube) -> None:
            for name in names:
                thing = mpsnode(name, time.time())
                await kube.create(MPS_NODES, thing)
                if "status" in thing:
                    await kube.patch(
                        MPS_NODES,
                        name,
                        {"status": thing["status"]},
                        PatchKind.MERGE,
                        subresource="status",
                    )

        self.ask(questions)

    def is_kubernetes(self, version: str) -> None:
        self._monkeypatch.setitem(requests._VERSION, "gitVersion", version)

    def hurry(self, counted_s: float) -> None:
        """What a person waits for at ease is looked at often. counted_s: evictions wait so long for
        kubelets."""
        self._monkeypatch.setattr(drain, "COUNTED_S", counted_s)
        self._monkeypatch.setattr(drain, "PAUSE_S", _PAUSE_S)

    def cordoned(self, node: str) -> list[str]:
        found: list[str] = self.ask(lambda kube: kube.get(MPS_NODES, node))["spec"].get(
            "cordoned", []
        )
        return found

    def kubectl_mps(self, *words: str) -> Said:
        return self.run(kubectl_mps.main, "kubectl-mps", *words)

    def run(self, program: Callable[[], None], *argv: str) -> Said:
        """Runs an entry point in this process, which saves the time that a process takes to
        start."""
        self._monkeypatch.setattr("sys.argv", [*argv])
        self._capsys.readouterr()
        code: object = 0
        try:
            program()
        except SystemExit as end:
            code = end.code
        output, errors = self._capsys.readouterr()
        assert isinstance(code, int)
        return Said(code, output, errors)
