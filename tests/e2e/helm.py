"""Helm's own code against the cluster under test, as a person calls `helm`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
from helm_python import _native

from tests.e2e.cluster import Object
from tests.e2e.installation import SYSTEM
from tests.manifests.helm import CHART

NAME = "mpsd"


@dataclass(frozen=True, slots=True)
class Helm:
    """A release of the chart. Options are those of libhelm_c, more than helm_python's functions
    take."""

    kubeconfig: Path

    def install(self, values: Object, *, chart: Path = CHART, **options: Any) -> Object:
        return self._with_chart("helm_install", chart, values, options)

    def upgrade(self, values: Object, *, chart: Path = CHART, **options: Any) -> Object:
        return self._with_chart("helm_upgrade", chart, values, options)

    def rollback(self, **options: Any) -> None:
        with self._config() as config:
            _native.call_status("helm_rollback", config._raw(), NAME, json.dumps(options))

    def uninstall(self) -> None:
        with self._config() as config:
            config.uninstall(NAME, ignore_not_found=True)

    def test(self, timeout: int) -> None:
        with self._config() as config:
            config.test(NAME, timeout=timeout)

    def revisions(self) -> list[str]:
        with self._config() as config:
            return [one["status"] for one in config.history(NAME)]

    def _config(self) -> helm_python.Config:
        return helm_python.Config(kubeconfig_path=self.kubeconfig, namespace=SYSTEM)

    def _with_chart(self, what: str, chart: Path, values: Object, options: Object) -> Object:
        with self._config() as config:
            arguments = (config._raw(), _native.HANDLE(0), _native.HANDLE(0), str(chart), NAME)
            answer = _native.call_string(what, *arguments, json.dumps(values), json.dumps(options))
        return json.loads(answer)
