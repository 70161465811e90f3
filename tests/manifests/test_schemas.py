"""Every object of every overlay against the schemas of the Kubernetes versions that it promises."""

import json
from functools import cache

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import SchemaNotFoundError

from tests.manifests.rendering import ALL, MANIFESTS, VERSIONS, called, of_kind, rendered

_LATEST = kubernetes_validate.latest_version()
_OLDEST = 25  # the oldest that the library has; tests/e2e/admission asks API servers themselves
_SINCE = {place: f"1.{max(first, _OLDEST)}" for place, (first, _last) in VERSIONS.items()}
_NOT_OURS = {
    "Certificate": "cert-manager's own kind",
    "Issuer": "cert-manager's own kind",
    "PodMonitor": "the Prometheus operator's own kind",
    "PrometheusRule": "the Prometheus operator's own kind",
}


def _versions() -> list[tuple[str, str]]:
    return [(place, version) for place in ALL for version in dict.fromkeys((_SINCE[place], _LATEST))]


@pytest.mark.parametrize(("place", "version"), _versions())
def test_every_object_is_valid_where_it_is_promised_to_be(place: str, version: str) -> None:
    for thing in rendered(place):
        if thing["kind"] in _NOT_OURS:
            continue  # no schema: a kind of somebody else's
        _validate(json.dumps(thing), version)


@cache
def _validate(thing: str, version: str) -> None:
    """Once for all overlays that have the same object."""
    kubernetes_validate.validate(json.loads(thing), version, strict=True)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("overlays/policies", "ValidatingAdmissionPolicy"),
        ("overlays/hostile-tenants", "ValidatingAdmissionPolicy"),
        ("overlays/policies-mutating", "MutatingAdmissionPolicy"),
    ],
)
def test_policies_are_promised_from_the_first_version_that_knows_them(place: str, kind: str) -> None:
    major, minor = _SINCE[place].split(".")
    for thing in of_kind(place, kind):
        with pytest.raises(SchemaNotFoundError):
            kubernetes_validate.validate(thing, f"{major}.{int(minor) - 1}", strict=True)


def test_the_top_is_the_base() -> None:
    assert rendered("") == rendered("base")


@pytest.mark.parametrize("place", ALL)
def test_no_object_comes_twice(place: str) -> None:
    names = [(called(thing), thing["metadata"].get("namespace")) for thing in rendered(place)]
    assert len(names) == len(set(names))


def test_every_file_is_part_of_something() -> None:
    """A file that no kustomization names would be applied by nobody."""
    for kustomization in MANIFESTS.rglob("kustomization.yaml"):
        said = yaml.safe_load(kustomization.read_text())
        named = {*said.get("resources", ()), *(patch.get("path") for patch in said.get("patches", ()))}
        named |= {file for made in said.get("configMapGenerator", ()) for file in made.get("files", ())}
        for file in kustomization.parent.glob("*.yaml"):
            assert file == kustomization or file.name in named, file
