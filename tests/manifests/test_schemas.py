"""Every object against the schemas of the Kubernetes versions that it is promised to."""

import json
from functools import cache

import kubernetes_validate
import pytest

from tests.manifests.rendering import LATEST, PLAIN, SINCE, VALUES, rendered

_OLDEST = 25  # the oldest that the library has; tests/e2e/admission asks API servers themselves
_NOT_OURS = {
    "Certificate": "cert-manager's own kind",
    "Issuer": "cert-manager's own kind",
    "PodMonitor": "the Prometheus operator's own kind",
    "PrometheusRule": "the Prometheus operator's own kind",
}


def _versions() -> list[tuple[str, int]]:
    """Each values file, for the first and the last version that it is for."""
    found = []
    for name in (PLAIN, *VALUES):
        first = max(SINCE.get(name, 0), _OLDEST)
        found += [(name, minor) for minor in dict.fromkeys((first, LATEST))]
    return found


@pytest.mark.parametrize(("name", "minor"), _versions())
def test_every_object_is_valid_where_it_is_promised_to_be(name: str, minor: int) -> None:
    for thing in rendered(f"{name}@{minor}"):
        if thing["kind"] in _NOT_OURS:
            continue  # no schema: a kind of somebody else's
        _validate(json.dumps(thing), f"1.{minor}")


@cache
def _validate(thing: str, version: str) -> None:
    """Once for all values files that make the same object."""
    kubernetes_validate.validate(json.loads(thing), version, strict=True)
