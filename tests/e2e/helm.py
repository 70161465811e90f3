"""Helm's own code against the cluster under test, as a person calls `helm`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
from helm_python import _native

from tests.e2e.cluster import Object
from tests.e2e.installation import SIMULATED, SYSTEM, Images, Installation
from tests.manifests.chart import CHART
from tests.manifests.rendering import MANIFESTS

NAME = "mpsd"


def values_of(images: Images) -> Object:
    """Those of an installation with these images and simulated GPUs."""
    simulate = {"extraArgs": [f"--simulate={SIMULATED}"]}
    values = {"image": _image(images.mpsd), "control": simulate, "agent": simulate}
    if images.kube_scheduler:
        values["scheduler"] = {"enabled": True, "kubeScheduler": _image(images.kube_scheduler)}
    return values


def _image(name: str) -> Object:
    repository, _colon, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


@dataclass(frozen=True, slots=True)
class Helm:
    """A release of the chart. Options are those of libhelm_c, more than helm_python's functions take."""

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

    def is_installed(self) -> bool:
        with self._config() as config:
            return any(one["name"] == NAME for one in config.list())

    def test(self, timeout: int) -> None:
        with self._config() as config:
            config.test(NAME, timeout=timeout)

    def revisions(self) -> list[str]:
        """The status of each."""
        with self._config() as config:
            return [one["status"] for one in config.history(NAME)]

    def _config(self) -> helm_python.Config:
        return helm_python.Config(kubeconfig_path=self.kubeconfig, namespace=SYSTEM)

    def _with_chart(self, what: str, chart: Path, values: Object, options: Object) -> Object:
        with self._config() as config:
            arguments = (config._raw(), _native.HANDLE(0), _native.HANDLE(0), str(chart), NAME)
            answer = _native.call_string(what, *arguments, json.dumps(values), json.dumps(options))
        found: Object = json.loads(answer)
        return found


@dataclass(frozen=True, slots=True)
class HelmInstallation(Installation):
    """mpsd by the chart, which also takes over what kubectl applied."""

    def apply(self) -> None:
        self.cluster.do("apply", "-f", str(MANIFESTS / "base/namespace.yaml"))
        helm = Helm(self.cluster.kubeconfig)
        if helm.is_installed():
            helm.upgrade(values_of(self.images), force_conflicts=True)
        else:
            helm.install(values_of(self.images), take_ownership=True, force_conflicts=True)

    def uninstall(self) -> None:
        """As docs/install.md says, with what it says stays."""
        Helm(self.cluster.kubeconfig).uninstall()
        self.cluster.do("delete", "crd", "mpsnodes.mpsd.io", "--ignore-not-found")
        self.cluster.do("delete", "namespace", SYSTEM, "--wait=false")
