"""The Helm chart makes the objects that kustomize makes, out of the same files."""

import copy
import os
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.manifests.chart import CHART, made
from tests.manifests.helm import install_without_cluster, rendered_by_helm, values
from tests.manifests.rendering import MANIFESTS, Object, called, rendered

_KEEP = {"helm.sh/resource-policy": "keep"}
_MODERN, _EXEMPTIONS = "components/modern", "components/exemptions"
_SCHEDULER = {"scheduler": {"enabled": True}}
_PROMETHEUS = {"prometheus": {"serviceMonitor": True, "rules": True, "dashboard": True}, **_SCHEDULER}
_VIRTUAL = [{"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}]}]
_ACK = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _VIRTUAL}}}
_CERT_MANAGER = {"tls": {"source": "cert-manager"}}
# Kubernetes' minor version, the values, and the components that say the same to kustomize.
_CASES: dict[str, tuple[int, Object, tuple[str, ...]]] = {
    "nothing": (36, {}, (_MODERN,)),
    "1.30": (30, {}, (_MODERN,)),
    "1.29": (29, {}, ("components/before-1.30",)),
    "1.20": (20, {}, ("components/before-1.30",)),
    "runtime class, CDI": (
        36,
        {"runtimeClassName": "nvidia", "agent": {"deviceListStrategy": "cdi-cri"}},
        ("components/nvidia-runtime", "components/cdi", _MODERN),
    ),
    "ACK": (36, {"affinity": _ACK}, ("components/ack", _MODERN)),
    "names of mpsd.io": (36, {"resources": {"domain": "mpsd.io"}}, ("components/generic", _MODERN)),
    "hostile tenants": (36, {"hostileTenants": True}, ("components/hostile-tenants", _EXEMPTIONS, _MODERN)),
    "hostile tenants, 1.29": (29, {"hostileTenants": True}, ("components/hostile-tenants", "components/before-1.30")),
    "exemptions": (36, {"exemptions": True}, (_EXEMPTIONS, _MODERN)),
    "cert-manager": (36, {"webhook": _CERT_MANAGER}, ("components/cert-manager", _MODERN)),
    "cert-manager, closed": (
        36,
        {"webhook": {**_CERT_MANAGER, "failClosed": True}},
        ("components/cert-manager", "components/fail-closed", _MODERN),
    ),
    "scheduler": (36, _SCHEDULER, (_MODERN, "components/scheduler")),
    "scheduler, 1.24": (
        24,
        _SCHEDULER,
        ("components/before-1.30", "components/scheduler", "components/scheduler-v1beta2"),
    ),
    "scheduler, 1.20": (
        20,
        _SCHEDULER,
        ("components/before-1.30", "components/scheduler", "components/scheduler-v1beta1"),
    ),
    "extender": (
        36,
        {"scheduler": {"enabled": True, "mode": "extender"}},
        (_MODERN, "components/scheduler-extender"),
    ),
    "startup taint": (36, {"agent": {"startupTaint": True}}, ("components/startup-taint", _MODERN)),
    "Prometheus": (36, _PROMETHEUS, (_MODERN, "components/scheduler", "components/prometheus")),
    "claims": (36, {"dra": {"enabled": True}}, (_MODERN, "components/dra")),
    "network policies": (
        36,
        {"networkPolicy": {"enabled": True}, **_SCHEDULER},
        (_MODERN, "components/scheduler", "components/network-policy"),
    ),
}


@pytest.fixture
def by_kustomize(tmp_path: Path) -> Any:
    def objects(components: tuple[str, ...], minor: int) -> tuple[Object, ...]:
        said = {
            "resources": [os.path.relpath(MANIFESTS / "base", tmp_path)],
            "components": [os.path.relpath(MANIFESTS / one, tmp_path) for one in components],
            "images": [{"name": "registry.k8s.io/kube-scheduler", "newTag": f"v1.{minor}.2"}],
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(said))
        return rendered(str(tmp_path))

    return objects


def _comparable(thing: Object) -> tuple[str, Object]:
    """By kind, namespace and name; files of YAML by what they hold, without what Helm alone must be told."""
    made = copy.deepcopy(thing)
    metadata = made["metadata"]
    if metadata.get("annotations") == _KEEP:
        del metadata["annotations"]
    for file, text in made.get("data", {}).items():
        made["data"][file] = yaml.load(text, yaml.CSafeLoader)
    return f"{called(made)} in {metadata.get('namespace')}", _in_order(made)


def _in_order(found: Any) -> Any:
    """Lists that Kubernetes merges by a name, by that name: kustomize puts what it merges in before the rest."""
    if isinstance(found, dict):
        return {name: _in_order(value) for name, value in found.items()}
    if not isinstance(found, list):
        return found
    named = all(isinstance(one, dict) and "name" in one and "image" not in one for one in found)
    return sorted(map(_in_order, found), key=lambda one: one["name"]) if named else list(map(_in_order, found))


@pytest.mark.parametrize("case", _CASES)
def test_helm_makes_what_kustomize_makes_but_for_the_namespace(case: str, by_kustomize: Any) -> None:
    minor, given, components = _CASES[case]
    wanted = dict(map(_comparable, by_kustomize(components, minor)))
    del wanted["Namespace mpsd-system in None"]
    things = rendered_by_helm(values(**given), f"v1.{minor}.2")
    found = dict(map(_comparable, things))
    assert len(found) == len(things), "an object comes twice"
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert found[name] == one, name


def test_what_is_made_of_other_files_is_as_it_would_be_made_now() -> None:
    for name, text in made():
        assert (CHART / name).read_text() == text, f"{name}: make it anew: python -m tests.manifests.chart"
    names = {name for name, _text in made()}
    said = [path for path in CHART.rglob("*.yaml") if "tests.manifests.chart`" in path.read_text()]
    assert {path.relative_to(CHART).as_posix() for path in said} - {"values.yaml"} <= names, "its source is gone"


@pytest.mark.parametrize("given", [{}, values(**_PROMETHEUS, hostileTenants=True)])
def test_helm_finds_nothing_to_mend(given: Object) -> None:
    said = helm_python.lint(CHART, given, namespace="mpsd-system")
    assert [one["error"] for one in said["messages"]] == ["icon is recommended"]


def test_a_packaged_chart_makes_the_same(tmp_path: Path) -> None:
    archive = helm_python.package(CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as packed, helm_python.Chart.load(CHART) as folder:
        release = {"name": "mpsd", "namespace": "mpsd-system"}
        assert packed.render(values(**_PROMETHEUS), **release) == folder.render(values(**_PROMETHEUS), **release)


@pytest.mark.parametrize("version", ["v1.20.2", "v1.33.5-eks-3025e55", "v1.33.5+k3s1"])
def test_helm_takes_the_chart_to_every_version_that_is_promised_and_every_vendors(version: str) -> None:
    install_without_cluster(values(), version)


def test_helm_refuses_a_kubernetes_that_is_too_old() -> None:
    with pytest.raises(helm_python.HelmError, match=r"incompatible with Kubernetes v1\.19\.16"):
        install_without_cluster(values(), "v1.19.16")
