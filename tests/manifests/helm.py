"""What Helm makes of the chart: its own code, without a cluster."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml
from helm_python import _native

Object = dict[str, Any]

MANIFESTS = Path(__file__).parents[2] / "manifests"
CHART = MANIFESTS / "chart"
KUBERNETES = "v1.36.2"
IMAGE = {"repository": "mpsd"}  # with the tag of the chart's version
_RELEASE = {"name": "mpsd", "namespace": "mpsd-system"}


def values(**more: Any) -> Object:
    return {"image": IMAGE, **more}


def merged(values: Object, others: Object) -> Object:
    """As Helm does: maps by their fields, all else whole."""
    together = dict(values)
    for name, value in others.items():
        both = isinstance(value, dict) and isinstance(together.get(name), dict)
        together[name] = merged(together[name], value) if both else value
    return together


def rendered_by_helm(given: Object, kubernetes: str = KUBERNETES) -> tuple[Object, ...]:
    return _rendered(json.dumps(given, sort_keys=True), kubernetes)


def files_by_helm(
    given: Object, kubernetes: str = KUBERNETES, namespace: str = "mpsd-system", chart: Path = CHART
) -> dict[str, str]:
    """Each template's text by its path in the chart. helm_python.HelmError where Helm refuses the
    values."""
    # which Chart.render does not take
    options = {**_RELEASE, "namespace": namespace, "kube_version": kubernetes}
    text = _native.call_string(
        "helm_render", _chart(chart)._raw(), json.dumps(given), json.dumps(options)
    )
    return {name.removeprefix("mpsd/"): made for name, made in json.loads(text).items()}


def text_by_helm(given: Object, kubernetes: str = KUBERNETES) -> str:
    """What `helm template --skip-tests` prints: the objects in the order in which they can be
    applied.

    helm_python.HelmError where Helm refuses the values, or the chart is not for this Kubernetes.
    """
    options = {"namespace": "mpsd-system", "dry_run": "client", "kube_version": kubernetes}
    with helm_python.Config(
        kubeconfig_content="{apiVersion: v1, kind: Config}", namespace="mpsd-system"
    ) as config:
        arguments = (
            config._raw(),
            _native.HANDLE(0),
            _native.HANDLE(0),
            str(CHART),
            "mpsd",
            json.dumps(given),
        )
        answer = _native.call_string("helm_install", *arguments, json.dumps(options))
    return json.loads(answer)["manifest"]


@cache
def _chart(path: Path) -> helm_python.Chart:
    return helm_python.Chart.load(path)


@cache
def _rendered(given: str, kubernetes: str) -> tuple[Object, ...]:
    found = yaml.load_all(text_by_helm(json.loads(given), kubernetes), yaml.CSafeLoader)
    return tuple(one for one in found if one)
