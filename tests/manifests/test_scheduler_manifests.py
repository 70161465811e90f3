"""What the schedulers' manifests promise: a scheduler beside the cluster's own, with few rights,
asked on loopback."""

from typing import Any

import pytest
import yaml

from mpsd.scheduler.settings import SchedulerSettings, scheduler_settings
from tests.manifests.rendering import (
    assert_confined,
    called,
    container_of,
    named,
    of_kind,
    pod_of,
    policy_of,
    rendered,
)

_NAME = "mpsd-scheduler"
_SECOND = ("scheduler", "scheduler@20", "scheduler@24")
_EXTENDER = "scheduler-extender"
_VERSIONS = {_SECOND[0]: "v1", _SECOND[1]: "v1beta1", _SECOND[2]: "v1beta2"}


def _settings(place: str) -> SchedulerSettings:
    """As its container starts it."""
    environment = {
        entry["name"]: entry["value"] for entry in container_of(place, _NAME, "scheduler")["env"]
    }
    return scheduler_settings({}, environment | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def _configuration(place: str) -> dict[str, Any]:
    return yaml.safe_load(
        named(place, "ConfigMap", "mpsd-kube-scheduler")["data"]["kube-scheduler.yaml"]
    )


def _extender(place: str) -> dict[str, Any]:
    (found,) = _configuration(place)["extenders"]
    return found


@pytest.mark.parametrize("place", [*_SECOND, _EXTENDER])
def test_nothing_else_in_the_cluster_changes(place: str) -> None:
    base = {called(thing): thing for thing in rendered(place.removeprefix(place.partition("@")[0]))}
    here = {called(thing): thing for thing in rendered(place)}
    assert base.items() <= here.items()
    more = here.keys() - base.keys()
    assert all(thing.split()[1] == "mpsd-kube-scheduler" or _NAME in thing for thing in more)
    for kind in more:
        assert not kind.startswith(
            ("ValidatingWebhook", "MutatingWebhook", "Namespace", "CustomResource")
        )


@pytest.mark.parametrize("place", _SECOND)
def test_it_serves_pods_that_name_it_and_leads_under_a_name_of_its_own(place: str) -> None:
    said = _configuration(place)
    assert said["apiVersion"] == f"kubescheduler.config.k8s.io/{_VERSIONS[place]}"
    assert [profile["schedulerName"] for profile in said["profiles"]] == [_NAME]
    assert _NAME in policy_of(place).admission.schedulers, "admission lets GPU pods name it"
    elected = said["leaderElection"]
    assert (elected["leaderElect"], elected["resourceName"], elected["resourceNamespace"]) == (
        True,
        _NAME,
        "mpsd-system",
    )
    (rule,) = [rule for rule in named(place, "Role", _NAME)["rules"] if "get" in rule["verbs"]]
    assert rule["resourceNames"] == [elected["resourceName"]]


def test_what_it_serves_without_tls_nobody_else_reaches() -> None:
    """1.20 to 1.22 do, on every address unless told otherwise; later ones do not."""
    said = _configuration("scheduler@20")
    for key in ("healthzBindAddress", "metricsBindAddress"):
        assert said[key].startswith("127.0.0.1:")


@pytest.mark.parametrize("place", _SECOND)
def test_it_asks_mpsd_of_its_own_pod_and_waits_while_that_is_away(place: str) -> None:
    extender, settings = _extender(place), _settings(place)
    assert extender["urlPrefix"] == f"http://{settings.address}:{settings.port}"
    assert settings.address == "127.0.0.1"
    assert {
        verb: extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "bind", "preempt")
    } == {verb: verb for verb in ("filter", "prioritize", "bind", "preempt")}
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)


@pytest.mark.parametrize("place", _SECOND)
def test_it_asks_about_pods_that_ask_for_gpus_and_still_checks_the_nodes_sum(place: str) -> None:
    managed = {
        one["name"]: one["ignoredByScheduler"] for one in _extender(place)["managedResources"]
    }
    assert managed == {policy_of(place).resources.memory: False}


@pytest.mark.parametrize("place", [*_SECOND, _EXTENDER])
def test_kube_scheduler_has_what_kubernetes_gives_every_one_and_mpsd_alone_has_not(
    place: str,
) -> None:
    bindings = [
        thing for kind in ("ClusterRoleBinding", "RoleBinding") for thing in of_kind(place, kind)
    ]
    ours = [thing for thing in bindings if [one["name"] for one in thing["subjects"]] == [_NAME]]
    assert all(one["namespace"] == "mpsd-system" for thing in ours for one in thing["subjects"])
    bound = {(thing["roleRef"]["kind"], thing["roleRef"]["name"]) for thing in ours}
    kubernetes = {
        ("ClusterRole", "system:kube-scheduler"),
        ("ClusterRole", "system:volume-scheduler"),
        ("Role", "extension-apiserver-authentication-reader"),
        ("Role", _NAME),
    }
    assert bound == {("ClusterRole", _NAME)} | (set() if place == _EXTENDER else kubernetes)


@pytest.mark.parametrize("place", [*_SECOND, _EXTENDER])
def test_the_pods_may_do_little_and_gpu_pods_do_not_wait_behind_others_for_them(place: str) -> None:
    pod = pod_of(place, _NAME)
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(pod.get(key) for key in ("hostPID", "hostIPC"))
    assert not any("hostPath" in volume for volume in pod["volumes"])
    for container in pod["containers"]:
        assert_confined(container)
    assert container_of(place, _NAME, "scheduler")["resources"]["limits"] == {"memory": "512Mi"}
    assert pod["terminationGracePeriodSeconds"] >= _settings(place).drain_s + 10


@pytest.mark.parametrize("place", [*_SECOND, _EXTENDER])
def test_ports_and_folders_are_the_programs_own(place: str) -> None:
    container, settings = container_of(place, _NAME, "scheduler"), _settings(place)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["metrics"] == settings.metrics_port
    home, others = settings.listen.addresses
    assert home.is_loopback
    assert not others.is_loopback
    assert ports["readers"] == others.port
    assert str(settings.limits_directory) in [
        mount["mountPath"] for mount in container["volumeMounts"]
    ]


def test_on_a_control_plane_node_nothing_listens_on_its_network_but_what_asks_for_a_token() -> None:
    pod, settings = pod_of(_EXTENDER, _NAME), _settings(_EXTENDER)
    assert pod["hostNetwork"] is True
    assert pod["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}
    assert (settings.address, settings.metrics_address) == ("127.0.0.1", "127.0.0.1")
    container = container_of(_EXTENDER, _NAME)
    hosts = {port["name"]: port.get("hostIP") for port in container["ports"]}
    assert hosts == {"extender": "127.0.0.1", "metrics": "127.0.0.1", "readers": None}
    _home, others = settings.listen.addresses
    wanted = {settings.port, settings.metrics_port, others.port}
    assert {port["containerPort"] for port in container["ports"]} == wanted
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["host"] == "127.0.0.1"
