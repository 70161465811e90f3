"""The Helm chart as a whole, and what is made of it and for it."""

import helm_python
import pytest
import yaml

from tests.manifests.helm import CHART, MANIFESTS, Object, text_by_helm, values
from tests.manifests.made import made
from tests.manifests.rendering import PLAIN, VALUES, rendered

_ALL_PARTS = {
    "prometheus": {"serviceMonitor": True, "rules": True, "dashboard": True},
    "scheduler": {"enabled": True},
    "exemptions": True,
}


def test_what_is_made_of_other_files_is_as_it_would_be_made_now() -> None:
    for path, text in made():
        assert path.read_text() == text, f"{path}: make it anew: python -m tests.manifests.made"


def test_the_installation_for_kubectl_is_that_of_ack_and_begins_with_its_namespace() -> None:
    found = list(yaml.load_all((MANIFESTS / "install.yaml").read_text(), yaml.CSafeLoader))
    assert found == [*rendered("ack@30")]
    assert found[0]["kind"] == "Namespace"


def test_every_values_file_says_what_it_is_for_and_changes_something() -> None:
    for name in VALUES:
        assert (MANIFESTS / f"values/{name}.yaml").read_text().startswith("# ")
        assert rendered(name) != rendered(PLAIN), name


@pytest.mark.parametrize("given", [{}, values(**_ALL_PARTS)])
def test_helm_finds_nothing_to_mend(given: Object) -> None:
    said = helm_python.lint(CHART, given, namespace="mpsd-system")
    assert [one["error"] for one in said["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", ["v1.20.2", "v1.33.5-eks-3025e55", "v1.33.5+k3s1"])
def test_helm_takes_the_chart_to_every_version_that_is_promised_and_every_vendors(
    version: str,
) -> None:
    assert text_by_helm(values(), version)
