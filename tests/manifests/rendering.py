"""The objects of the chart for each of the values files."""

from functools import cache

import yaml

from mpsd.model.policy import Policy
from mpsd.platform.limits_files import read_policy
from tests.manifests.helm import MANIFESTS, Object, merged, rendered_by_helm, values

LATEST = 36
# The first minor version of Kubernetes that a values file is for, where it is not 20.
SINCE = {
    "cdi": 29,
    "dra": 36,
    "hostile-tenants": 30,
    "policies": 30,
    "policies-mutating": 36,
    "startup-taint": 30,
}
VALUES = tuple(sorted(path.stem for path in (MANIFESTS / "values").glob("*.yaml")))
PLAIN, OLD = "", "@20"  # without values, for the latest and the oldest Kubernetes
# Places: values files for the latest Kubernetes, or for that after the @.
ALL = (PLAIN, OLD, "@29", "scheduler@20", "scheduler@24", *VALUES)


def values_of(names: str) -> Object:
    """names: of values files, with a plus between them, the later over the earlier."""
    given = values(createNamespace=True)
    for name in filter(None, names.split("+")):
        given = merged(given, yaml.safe_load((MANIFESTS / f"values/{name}.yaml").read_text()))
    return given


@cache
def rendered(place: str) -> tuple[Object, ...]:
    names, _at, minor = place.partition("@")
    return rendered_by_helm(values_of(names), f"v1.{minor or LATEST}.2")


def of_kind(place: str, kind: str) -> list[Object]:
    return [thing for thing in rendered(place) if thing["kind"] == kind]


def only(place: str, kind: str) -> Object:
    (found,) = of_kind(place, kind)
    return found


def named(place: str, kind: str, name: str) -> Object:
    (found,) = [thing for thing in of_kind(place, kind) if thing["metadata"]["name"] == name]
    return found


def workload(place: str, name: str) -> Object:
    """The spec of a DaemonSet or Deployment."""
    kinds = ("DaemonSet", "Deployment")
    (found,) = [
        thing
        for thing in rendered(place)
        if thing["kind"] in kinds and thing["metadata"]["name"] == name
    ]
    return found["spec"]


def pod_of(place: str, name: str) -> Object:
    return workload(place, name)["template"]["spec"]


def container_of(place: str, name: str, container: str = "") -> Object:
    """The only one, or the one of this name."""
    found = pod_of(place, name)["containers"]
    (one,) = [one for one in found if container in {"", one["name"]}]
    return one


def policy_of(place: str) -> Policy:
    data = named(place, "ConfigMap", "mpsd-limits")["data"]
    return read_policy(yaml.safe_load(data["policy.yaml"]), "policy.yaml")


def assert_confined(container: Object) -> None:
    """What holds of every container of ours that needs no device: it may change nothing, and says
    what it takes."""
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def called(thing: Object) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"
