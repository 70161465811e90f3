"""A wrong value of the Helm chart is refused before anything is written, with its path and what to
write."""

from collections.abc import Iterator

import helm_python
import pytest

from tests.manifests.helm import CHART, IMAGE, Object, files_by_helm, values


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": {"repository": ""}}, "image.repository is empty: .*; build one"),
        *(
            (
                {"image": {"repository": name}},
                f'image.repository is "{name}": only .*; write {bare}, .* to image.tag',
            )
            for name, bare in (
                ("r.test/mpsd:1", "r.test/mpsd"),
                ("r.test/mpsd:1@sha256:00", "r.test/mpsd"),
            )
        ),
        (
            {"image": {"repository": "r.test/Mpsd"}},
            'image.repository is "r.test/Mpsd": .* lower-case',
        ),
        (
            {"scheduler": {"kubeScheduler": {"repository": "x:v1"}}},
            "repository is .* to scheduler.kubeScheduler.tag",
        ),
        (
            {"scheduler": {"kubeScheduler": {"tag": "1.36"}}},
            'scheduler.kubeScheduler.tag is "1.36": .* v1.36.2',
        ),
        ({"image": {"digest": "sha256:1"}}, "at '/image/digest': .*does not match pattern"),
        (
            {"webhook": {"tls": {"source": "secret"}}},
            "webhook.tls.secretName is empty: .* name a Secret",
        ),
        (
            {"webhook": {"tls": {"source": "secret"}}},
            "webhook.tls.caBundle is no PEM certificate: .* add --set-file",
        ),
        (
            {"webhook": {"tls": {"secretName": "a"}}},
            "webhook.tls.secretName or .* write source: secret, or remove",
        ),
        ({"webhook": {"failClosed": True}}, "webhook.failClosed is true: .*; write false"),
        (
            {"resources": {"domain": "Aliyun"}},
            'resources.domain is "Aliyun": .*; write lower-case letters',
        ),
        (
            {"resources": {"domain": "node.kubernetes.io"}},
            "Kubernetes keeps kubernetes.io .*; write a domain of yours",
        ),
        (
            {"gpus": "version: v1"},
            "gpus is no gpus.yaml: version, capabilities or cards is missing",
        ),
        (
            {"nodeSelector": {"ack.node.gpu.schedule": "gpushare"}},
            "nodeSelector has ack.* remove it",
        ),
        (
            {"resources": {"domain": "mpsd.io"}, "nodeSelector": {"mpsd.io/share": "yes"}},
            'has mpsd.io/share: "yes", .* mpsd.io/share: mps; remove it',
        ),
        ({"nodeSelector": {"a b": "c"}}, 'nodeSelector has the name "a b", .*; write letters'),
        (
            {"tolerations": [{"operator": "Exists", "value": "a"}]},
            r'tolerations\[0\].value is "a": .*; remove it',
        ),
        (
            {"tolerations": [{"key": "a"}, {"key": "b", "tolerationSeconds": 5}]},
            r"tolerations\[1\].tolerationSeconds is 5: .*; write this effect, or remove",
        ),
        (
            {"control": {"resources": {"requests": {"cpu": "viel"}}}},
            'control.resources.requests.cpu is "viel": .*100m',
        ),
        (
            {"agent": {"resources": {"requests": {"memory": "1Gi"}}}},
            (
                'requests.memory is "1Gi", more than agent.resources.limits.memory, which is'
                ' "512Mi"; raise the limit'
            ),
        ),
        (
            {"webhook": {"enabled": False, "failClosed": True}},
            "webhook.failClosed is true: .* write false, or webhook",
        ),
        (
            {"policy": {"admission": {"claims_for_requests": True}}},
            "without dra.enabled no node serves claims; write dra.enabled: true",
        ),
        (
            {"dra": {"enabled": True}, "policy": {"admission": {"claims_for_requests": True}}},
            "only for API servers that show a certificate; set webhook.tls.clientAuthority",
        ),
        (
            {"dra": {"enabled": True}, "agent": {"deviceListStrategy": "cdi-annotations"}},
            "resource claims have no annotations; with dra.enabled write cdi-cri or envvar",
        ),
        *(
            (
                {"admissionPolicies": {"enabled": True}, "policy": {part: {field: value}}},
                f"policy.{part}.{field} is not as shipped",
            )
            for part, field, value in (
                ("admission", "rules", {"host-pid": "enforce"}),
                ("admission", "host_ipc", "off"),
                ("admission", "allowed_host_paths", []),
                ("requests", "thread_percent_step", 10),
            )
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_what_to_write(given: Object, said: str) -> None:
    given = {**given, "image": {**IMAGE, **given.get("image", {})}}
    with pytest.raises(helm_python.HelmError, match=said):
        files_by_helm(given)


_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
_KEY = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ("-----BEGIN CERTIFICATE-----\nMIIB", "is no PEM certificate"),
        (f"{_CERTIFICATE}-----BEGIN CERTIFICATE-----\nMI", "is no PEM certificate"),
        (_KEY, "has a private key, .* add --set-file .* make a new key"),
        (_CERTIFICATE + _KEY.replace("PRIVATE", "EC PRIVATE"), "has a private key"),
    ],
)
def test_an_authority_that_is_none_or_has_its_key_is_refused(bundle: str, said: str) -> None:
    tls = {"source": "secret", "secretName": "ours", "caBundle": bundle}
    with pytest.raises(helm_python.HelmError, match=f"1 problem .*\n  webhook.tls.caBundle {said}"):
        files_by_helm(values(webhook={"tls": tls}))


@pytest.mark.parametrize(
    "bundle", [_CERTIFICATE, f"# ours\n{_CERTIFICATE}\n{_CERTIFICATE}".replace("\n", "\r\n")]
)
def test_an_authority_of_several_certificates_with_comments_is_taken(bundle: str) -> None:
    files_by_helm(
        values(webhook={"tls": {"source": "secret", "secretName": "ours", "caBundle": bundle}})
    )


@pytest.mark.parametrize(
    ("version", "given", "said"),
    [
        (
            "v1.28.9",
            {"agent": {"deviceListStrategy": "cdi-cri"}},
            "from Kubernetes 1.29 on, and this is v1.28.9",
        ),
        (
            "v1.29.9",
            {"agent": {"startupTaint": True}},
            "agent.startupTaint is true: .* this is v1.29.9; write false",
        ),
        (
            "v1.33.9",
            {"dra": {"enabled": True}},
            "of Kubernetes 1.34 and newer, and this is v1.33.9; write false",
        ),
        (
            "v1.29.9",
            {"admissionPolicies": {"enabled": True}},
            "of Kubernetes 1.30 and newer, and this is v1.29.9; write",
        ),
    ],
)
def test_a_value_that_needs_a_newer_kubernetes_says_so(
    version: str, given: Object, said: str
) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        files_by_helm(values(**given), version)


def test_a_release_in_another_namespace_is_refused_and_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(
        helm_python.HelmError, match=r"add --namespace mpsd-system\n  image.repository is empty"
    ):
        files_by_helm({}, namespace="default")


def _levels(schema: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if "properties" in schema:
        yield path
        for name, one in schema["properties"].items():
            yield from _levels(one, (*path, name))


def test_a_misspelt_value_is_refused_wherever_it_stands() -> None:
    with helm_python.Chart.load(CHART) as chart:
        levels = [*_levels(chart.schema or {})]
        assert ("webhook", "tls") in levels
        for level in levels:
            given: Object = {"mispelt": 1}
            for name in reversed(level):
                given = {name: given}
            with pytest.raises(
                helm_python.HelmValuesError, match="additional properties 'mispelt' not allowed"
            ):
                chart.validate_schema(given)
