"""What Helm makes of the chart: its own code, without a cluster."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml
from helm_python import _native

from tests.manifests.chart import CHART
from tests.manifests.rendering import Object

KUBERNETES = "v1.36.2"
IMAGE = {"repository": "mpsd"}  # with the chart's version the image of manifests/base
_RELEASE = {"name": "mpsd", "namespace": "mpsd-system"}


def values(**more: Any) -> Object:
    return {"image": IMAGE, **more}


def rendered_by_helm(given: Object, kubernetes: str = KUBERNETES, namespace: str = "mpsd-system") -> tuple[Object, ...]:
    """The objects of an installation with these values, without those of `helm test`."""
    return _rendered(json.dumps(given, sort_keys=True), kubernetes, namespace)


def files_by_helm(
    given: Object, kubernetes: str = KUBERNETES, namespace: str = "mpsd-system", chart: Path = CHART
) -> dict[str, str]:
    """Each template's text by its path in the chart. helm_python.HelmError where Helm refuses the values."""
    options = {**_RELEASE, "namespace": namespace, "kube_version": kubernetes}  # which Chart.render does not take
    text = _native.call_string("helm_render", _chart(chart)._raw(), json.dumps(given), json.dumps(options))
    return {name.removeprefix("mpsd/"): made for name, made in json.loads(text).items()}


def install_without_cluster(given: Object, kubernetes: str) -> None:
    """What `helm install --dry-run=client` says: HelmError where the chart is not for this Kubernetes."""
    options = {"namespace": "mpsd-system", "dry_run": "client", "kube_version": kubernetes}
    with helm_python.Config(kubeconfig_content="{apiVersion: v1, kind: Config}", namespace="mpsd-system") as config:
        arguments = (config._raw(), _native.HANDLE(0), _native.HANDLE(0), str(CHART), "mpsd", json.dumps(given))
        _native.call_string("helm_install", *arguments, json.dumps(options))


@cache
def _chart(path: Path) -> helm_python.Chart:
    return helm_python.Chart.load(path)


@cache
def _rendered(given: str, kubernetes: str, namespace: str) -> tuple[Object, ...]:
    made = files_by_helm(json.loads(given), kubernetes, namespace)
    texts = [text for name, text in made.items() if name.endswith(".yaml") and "/tests/" not in name]
    return tuple(one for text in texts for one in yaml.load_all(text, yaml.CSafeLoader) if one)
