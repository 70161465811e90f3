"""What the manifests of a node's pods promise: nothing restarts the daemons, nobody may do more
than it does."""

import pytest

from mpsd.kubelet.settings import kubelet_settings
from mpsd.model.fields import FieldReader
from mpsd.model.pod import read_pod
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.platform.settings import settings
from mpsd.status.rules.mpsnode import UPGRADE_LABEL
from tests.manifests.rendering import (
    ALL,
    PLAIN,
    container_of,
    named,
    of_kind,
    pod_of,
    policy_of,
    workload,
)

_CONTROL, _AGENT = "mps-control-daemon", "mpsd-agent"


def _environment(place: str, name: str) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container_of(place, name)["env"]}


@pytest.mark.parametrize("place", ALL)
def test_the_control_daemon_is_as_the_published_guide_says(place: str) -> None:
    """Its label, its privileges, its priority: what existing tools and queries look for."""
    pod = pod_of(place, _CONTROL)
    labels = workload(place, _CONTROL)["template"]["metadata"]["labels"]
    assert labels["app.aliyun.com/name"] == "mps-control-daemon"
    assert (pod["hostIPC"], pod["hostPID"]) == (True, True)
    assert pod["priorityClassName"] == "system-node-critical"
    assert container_of(place, _CONTROL)["securityContext"]["privileged"] is True
    assert set(pod["nodeSelector"].values()) == {"mps"}


@pytest.mark.parametrize("place", ALL)
def test_nothing_restarts_the_daemons_by_itself(place: str) -> None:
    container = container_of(place, _CONTROL)
    assert not {"livenessProbe", "startupProbe", "lifecycle"} & container.keys()
    assert "limits" not in container["resources"], "a limit of memory is a way to be killed"
    assert workload(place, _CONTROL)["updateStrategy"] == {"type": "OnDelete"}
    (toleration,) = pod_of(place, _CONTROL)["tolerations"]
    assert toleration == {"operator": "Exists"}, "no taint evicts it, NoExecute neither"


@pytest.mark.parametrize("place", ALL)
def test_kubelet_waits_longer_for_the_daemons_than_they_for_their_clients(place: str) -> None:
    assert (
        pod_of(place, _CONTROL)["terminationGracePeriodSeconds"]
        >= policy_of(place).graces.drain_s + 30
    )


@pytest.mark.parametrize("place", ALL)
def test_an_agent_is_wherever_a_control_daemon_is(place: str) -> None:
    control, agent = pod_of(place, _CONTROL), pod_of(place, _AGENT)
    for key in ("nodeSelector", "tolerations", "priorityClassName", "runtimeClassName"):
        assert control.get(key) == agent.get(key), key


def test_with_hostile_tenants_no_node_makes_itself_one_of_mpsd() -> None:
    """kubelet may not write labels of this prefix: admission plugin NodeRestriction."""
    own = pod_of(PLAIN, _AGENT)["nodeSelector"]
    for name in (_CONTROL, _AGENT):
        more = pod_of("hostile-tenants", name)["nodeSelector"].items() - own.items()
        assert [name.partition("/")[0] for name, _value in more] == [
            "node-restriction.kubernetes.io"
        ]


@pytest.mark.parametrize("place", ["hostile-tenants", "hostile-tenants+dra+startup-taint"])
def test_with_hostile_tenants_each_right_to_write_is_held_to_the_agents_node(place: str) -> None:
    policies = of_kind(place, "ValidatingAdmissionPolicy")
    held = {
        resource
        for one in policies
        if one["metadata"]["name"].startswith(f"{_AGENT}-")
        for rule in one["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    written = {
        resource
        for rule in named(place, "ClusterRole", _AGENT)["rules"]
        if {"create", "update", "patch"} & {*rule["verbs"]}
        for resource in rule["resources"]
    }
    assert written - held == {"tokenreviews", "subjectaccessreviews"}, "these are not stored"


_GOES = ("post-maintenance-required", "pod-restart-required", "upgrade-failed")
_STAYS = ("", "upgrade-required", "drain-required", "validation-required", "unheard-of")


@pytest.mark.parametrize("place", ALL)
def test_an_upgrade_of_the_driver_removes_them_from_an_unused_node_alone_and_the_agent_last(
    place: str,
) -> None:
    for state in (*_GOES, *_STAYS):
        for is_unused in (False, True):
            labels = {"nvidia.com/gpu-driver-upgrade-state": state} | (
                {UPGRADE_LABEL: "drained"} if is_unused else {}
            )
            node = read_kubernetes_node({"metadata": {"name": "node1", "labels": labels}})
            specs = [
                read_pod(FieldReader(), {"spec": pod_of(place, name)}).spec
                for name in (_CONTROL, _AGENT)
            ]
            stay = [any(map(node.meets, spec.wishes.terms)) for spec in specs]
            assert stay == [not is_unused, not (is_unused and state in _GOES)], state


@pytest.mark.parametrize("place", ALL)
def test_the_agent_has_no_more_privileges_than_those_that_it_gives_a_reason_for(place: str) -> None:
    pod, security = pod_of(place, _AGENT), container_of(place, _AGENT)["securityContext"]
    assert not any(pod.get(key) for key in ("hostNetwork", "hostIPC"))
    assert "privileged" not in security
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["KILL", "SYS_PTRACE"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    of_claims = {"/var/lib/kubelet/plugins_registry", "/var/run/cdi"} if place == "dra" else set()
    assert (
        paths
        == {"/run/mpsd", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}
        | of_claims
    )


@pytest.mark.parametrize("place", ALL)
def test_the_control_daemon_sees_of_the_host_its_folder_and_the_cgroups(place: str) -> None:
    pod = pod_of(place, _CONTROL)
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {"/run/mpsd", "/sys/fs/cgroup"}
    assert pod["automountServiceAccountToken"] is False, "it never talks to the API"
    assert "hostNetwork" not in pod


@pytest.mark.parametrize("place", ALL)
@pytest.mark.parametrize("name", [_CONTROL, _AGENT])
def test_run_mpsd_is_one_mount_at_the_path_of_the_host(place: str, name: str) -> None:
    """Of one mount, as a hard link needs; at the host's path, as kubelet is told of what is in
    it."""
    mounts = [
        mount for mount in container_of(place, name)["volumeMounts"] if mount["name"] == "run"
    ]
    assert mounts == [{"name": "run", "mountPath": "/run/mpsd"}]
    assert _environment(place, name)["MPSD_RUN_DIR"] == "/run/mpsd"


@pytest.mark.parametrize("place", ALL)
def test_the_daemons_are_moved_out_of_the_container_that_would_end_them(place: str) -> None:
    chosen = settings(environment=_environment(place, _CONTROL))
    container = container_of(place, _CONTROL)
    (cgroups,) = [
        word.partition("=")[2] for word in container["args"] if word.startswith("--daemon-cgroup=")
    ]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    paths = {
        volume["name"]: volume.get("hostPath", {}).get("path")
        for volume in pod_of(place, _CONTROL)["volumes"]
    }
    assert paths[mounts[cgroups]] == "/sys/fs/cgroup"
    assert str(chosen.limits_directory) in mounts


@pytest.mark.parametrize("place", ALL)
def test_the_agents_settings_are_its_own(place: str) -> None:
    container = container_of(place, _AGENT)
    chosen = kubelet_settings({}, {**_environment(place, _AGENT), "MPSD_NODE_NAME": "node1"})
    assert chosen
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(chosen.device_plugins) in mounted
    assert str(chosen.pod_resources.parent) in mounted
    assert {"name": "metrics", "containerPort": chosen.port} in container["ports"]
    assert chosen.kubeconfig is None
    (node,) = [entry for entry in container["env"] if entry["name"] == "MPSD_NODE_NAME"]
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


@pytest.mark.parametrize("place", ALL)
def test_every_component_has_a_service_account_of_its_own(place: str) -> None:
    accounts = {thing["metadata"]["name"] for thing in of_kind(place, "ServiceAccount")}
    pods = [
        thing["spec"]["template"]["spec"]
        for kind in ("DaemonSet", "Deployment")
        for thing in of_kind(place, kind)
    ]
    used = [pod["serviceAccountName"] for pod in pods]
    # whom Prometheus is to mpsd, and no pod of ours
    assert sorted(used) == sorted(accounts - {"mpsd-prometheus"})
    for binding in (*of_kind(place, "ClusterRoleBinding"), *of_kind(place, "RoleBinding")):
        (subject,) = binding["subjects"]
        if binding["roleRef"]["name"] == binding["metadata"]["name"]:
            assert subject["name"] == binding["metadata"]["name"]
        else:  # rights that Kubernetes itself has a name for
            assert subject["name"] == "mpsd-scheduler"
    bound = {thing["metadata"]["name"] for thing in of_kind(place, "ClusterRoleBinding")}
    assert "mpsd-control" not in bound


@pytest.mark.parametrize("place", ALL)
def test_no_right_is_a_wildcard_deletes_or_reaches_further_than_its_reason(place: str) -> None:
    """But for templates of claims, of which a policy leaves the webhook its own."""
    policies = [
        one["spec"]["matchConstraints"]["resourceRules"]
        for one in of_kind(place, "ValidatingAdmissionPolicy")
    ]
    kept = [
        rule["resources"] for rules in policies for rule in rules if "DELETE" in rule["operations"]
    ]
    for role in (*of_kind(place, "ClusterRole"), *of_kind(place, "Role")):
        for rule in role["rules"]:
            assert not any("*" in part for parts in rule.values() for part in parts)
            is_kept = rule.get("resources") == ["resourceclaimtemplates"] in kept
            verbs = {*rule["verbs"]} - ({"delete"} if is_kept else set())
            assert not {"delete", "deletecollection", "escalate", "bind", "impersonate"} & verbs


@pytest.mark.parametrize("place", ALL)
def test_a_role_that_nobody_has_until_an_operator_binds_it_may_read_and_nothing_else(
    place: str,
) -> None:
    (rule,) = named(place, "ClusterRole", "mpsd-reader")["rules"]
    assert rule == {"nonResourceURLs": ["/", "/metrics", "/v1/node", "/v1/page"], "verbs": ["get"]}
    bindings = of_kind(place, "ClusterRoleBinding")
    assert not any(binding["roleRef"]["name"] == "mpsd-reader" for binding in bindings)


@pytest.mark.parametrize("place", ALL)
def test_every_pod_runs_the_same_image_of_a_version(place: str) -> None:
    pods = [
        thing["spec"]["template"]["spec"]
        for kind in ("DaemonSet", "Deployment")
        for thing in of_kind(place, kind)
    ]
    ours = [one for pod in pods for one in pod["containers"] if one["name"] != "kube-scheduler"]
    (image,) = {container["image"] for container in ours}
    _name, tag = image.split(":")
    assert tag[0].isdigit()
    roles = {"agent", "control"}
    if "scheduler" in place:
        roles.add("scheduler")
    if "policies" not in place:
        roles.add("webhook")
    assert sorted(container["args"][0] for container in ours) == sorted(roles)
