"""The Helm chart on an API server: over what kubectl applied, over its previous version, back, and
away."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest
import yaml

import mpsd
from tests.e2e.cluster import Cluster, Object
from tests.e2e.helm import Helm
from tests.e2e.installation import AGENT, CONTROL, SYSTEM
from tests.e2e.versions import needs
from tests.e2e.waiting import eventually
from tests.manifests.helm import CHART, files_by_helm, rendered_by_helm

_NOWHERE = {"mpsd.io/e2e": "nowhere"}  # there is no image on the nodes: tests/e2e/node has pods
_VALUES: Object = {
    "image": {"repository": "mpsd"},
    "nodeSelector": _NOWHERE,
    "webhook": {"nodeSelector": _NOWHERE},
}
_OWNER = "meta.helm.sh/release-name"
_WEBHOOKS = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")
_CRD = "mpsnodes.mpsd.io"
_BUNDLE = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="


@pytest.fixture
def helm(cluster: Cluster) -> Iterator[Helm]:
    """With the namespace as docs/install.md has it made, and nothing else of mpsd."""
    cluster.do("create", "namespace", SYSTEM)
    cluster.do(
        "label",
        "namespace",
        SYSTEM,
        "mpsd.io/exempt=true",
        "pod-security.kubernetes.io/enforce=privileged",
    )
    release = Helm(cluster.kubeconfig)
    try:
        yield release
    finally:
        release.uninstall()
        cluster.do("delete", "crd", _CRD, "--ignore-not-found")
        gone = cluster.kubectl("delete", "namespace", SYSTEM, within_s=180.0)
        assert gone.ok, gone.err


def _workloads(cluster: Cluster) -> dict[str, tuple[str, Object]]:
    """The uid of each and what its pods are made of: new pods come where one of them is another."""
    found = cluster.get("daemonsets,deployments", "-n", SYSTEM)["items"]
    return {
        one["metadata"]["name"]: (one["metadata"]["uid"], one["spec"]["template"]) for one in found
    }


def _serve(cluster: Cluster) -> None:
    patch = [
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": _BUNDLE},
    ]
    for kind in _WEBHOOKS:
        cluster.do("patch", kind, "mpsd-webhook", "--type=json", "-p", json.dumps(patch))


def _is_serving(cluster: Cluster) -> list[bool]:
    webhooks = [cluster.get(kind, "mpsd-webhook")["webhooks"][0] for kind in _WEBHOOKS]
    return [
        (one["failurePolicy"], one["clientConfig"].get("caBundle")) == ("Fail", _BUNDLE)
        for one in webhooks
    ]


def _placement(cluster: Cluster) -> str:
    text = cluster.get("configmap", "mpsd-limits", "-n", SYSTEM)["data"]["policy.yaml"]
    return yaml.safe_load(text)["placement"]


def test_what_kubectl_applied_becomes_helms_and_kubectls_again_and_no_pod_is_made_anew(
    cluster: Cluster, helm: Helm
) -> None:
    things = rendered_by_helm(_VALUES, cluster.version)
    cluster.apply_all(things)
    _serve(cluster)
    before = _workloads(cluster)
    with pytest.raises(helm_python.HelmError, match="cannot be imported into the current release"):
        helm.install(_VALUES)
    helm.install(_VALUES, take_ownership=True, force_conflicts=True)
    assert _workloads(cluster) == before
    assert _is_serving(cluster) == [True, True]
    for kind, name in (("daemonset", CONTROL), ("crd", _CRD), ("clusterrole", "mpsd-agent")):
        found = cluster.get(kind, name, "-n", SYSTEM)["metadata"]["annotations"]
        assert found[_OWNER] == "mpsd", name
    helm.upgrade(_VALUES | {"policy": {"placement": "spread"}}, force_conflicts=True)
    assert _placement(cluster) == "spread"
    assert _workloads(cluster) == before
    cluster.apply_all(things)
    assert _placement(cluster) == "binpack", "what was applied counts again"
    assert _workloads(cluster) == before


def test_an_upgrade_changes_what_its_values_change_and_a_rollback_puts_it_back(
    cluster: Cluster, helm: Helm
) -> None:
    helm.install(_VALUES)
    _serve(cluster)
    first = _workloads(cluster)
    changed = {
        "policy": {"placement": "spread"},
        "agent": {"resources": {"limits": {"memory": "1Gi"}}},
    }
    helm.upgrade(_VALUES | changed)
    second = _workloads(cluster)
    assert [name for name in first if first[name] != second[name]] == [AGENT]
    assert _placement(cluster) == "spread"
    assert _is_serving(cluster) == [True, True]
    helm.rollback(force_conflicts=True)
    assert _placement(cluster) == "binpack"
    third = _workloads(cluster)
    assert [name for name in second if second[name] != third[name]] == [AGENT]
    assert helm.revisions() == ["superseded", "superseded", "deployed"]


def test_an_upgrade_from_an_earlier_chart_brings_the_crd_and_the_policys_new_fields(
    cluster: Cluster, helm: Helm, tmp_path: Path
) -> None:
    chart = tmp_path / "mpsd"
    shutil.copytree(CHART, chart)
    crd = chart / "templates/crd/mpsnode.yaml"
    old = [line for line in crd.read_text().splitlines() if "name: Driver" not in line]
    crd.write_text("\n".join(old) + "\n")
    (chart / "templates/gone.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mpsd-gone}\n"
    )
    for name in ("Chart.yaml", "files/policy.yaml", "values.schema.json"):
        text = (chart / name).read_text()
        (chart / name).write_text(
            text.replace(f"version: {mpsd.__version__}", "version: 0.0.9").replace(
                "too_many_clients", "many"
            )
        )
    helm.install({**_VALUES, "image": {"repository": "mpsd", "tag": mpsd.__version__}}, chart=chart)
    assert "Driver" not in _columns(cluster)
    before = _workloads(cluster)
    helm.upgrade(_VALUES)
    assert "Driver" in _columns(cluster)
    assert _workloads(cluster) == before
    assert not cluster.kubectl("get", "configmap", "mpsd-gone", "-n", SYSTEM).ok
    policy = yaml.safe_load(
        cluster.get("configmap", "mpsd-limits", "-n", SYSTEM)["data"]["policy.yaml"]
    )
    assert "too_many_clients" in policy["violations"]


def _columns(cluster: Cluster) -> list[str]:
    return [
        one["name"]
        for one in cluster.get("crd", _CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    ]


def test_an_uninstallation_leaves_the_nodes_status_and_can_be_taken_back(
    cluster: Cluster, helm: Helm
) -> None:
    helm.install(_VALUES)
    node = {
        "apiVersion": "mpsd.io/v1alpha1",
        "kind": "MPSNode",
        "metadata": {"name": "kept"},
        "spec": {"cordoned": ["all"]},
    }
    eventually(lambda: cluster.kubectl("create", "-f", "-", given=node).ok, "MPSNodes")
    helm.uninstall()
    kinds = "all,clusterroles,clusterrolebindings,roles,rolebindings,configmaps"

    def left() -> list[str]:
        found = cluster.do("get", kinds, "-A", "-o", "name").out.split()
        return [name for name in found if "mpsd" in name or "mps-" in name]

    eventually(lambda: not left(), "nothing left")
    assert cluster.get("mpsnode", "kept")["spec"] == {"cordoned": ["all"]}
    helm.install(_VALUES)
    assert cluster.get("mpsnode", "kept")["spec"] == {"cordoned": ["all"]}


def test_every_object_that_the_chart_can_make_is_taken_by_the_api_server(
    cluster: Cluster, helm: Helm
) -> None:
    needs(cluster, 30, "ValidatingAdmissionPolicy")
    more = {
        "scheduler": {"enabled": True, "nodeSelector": _NOWHERE},
        "networkPolicy": {"enabled": True},
        "exemptions": True,
        "admissionPolicies": {"enabled": True, "mutating": cluster.minor >= 36},
        "agent": {"startupTaint": True},
        "dra": {"enabled": cluster.minor >= 34},
    }
    given = {**_VALUES, **more, "prometheus": {"dashboard": True}, "runtimeClassName": "nvidia"}
    helm.install(given)
    hooks = files_by_helm(given)["templates/tests/sample.yaml"]
    cluster.do("create", "--dry-run=server", "-f", "-", given=hooks)
    assert cluster.get("networkpolicies", "-n", SYSTEM)["items"]
    helm.upgrade(_VALUES)
    assert not cluster.get("networkpolicies", "-n", SYSTEM)["items"], "what is switched off goes"
    assert not cluster.kubectl("get", "deployment", "mpsd-scheduler", "-n", SYSTEM).ok


def test_kinds_that_the_cluster_does_not_have_are_refused_before_anything_is_written(
    cluster: Cluster, helm: Helm
) -> None:
    more = {"prometheus": {"serviceMonitor": True, "rules": True}}
    given = {
        **_VALUES,
        **more,
        "webhook": {**_VALUES["webhook"], "tls": {"source": "cert-manager"}},
    }
    with pytest.raises(
        helm_python.HelmError, match=r"2 problems(.|\n)*prometheus\.(.|\n)*webhook\.tls\.source is"
    ):
        helm.install(given)
    assert not cluster.kubectl("get", "crd", _CRD).ok
    assert not cluster.get("all", "-n", SYSTEM)["items"]
