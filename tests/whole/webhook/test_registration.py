"""From an empty cluster to a registered webhook, whatever stands in the way, and back to it when
somebody meddles."""

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpsd.admission.rules.configurations import NOT_CALLED
from mpsd.platform.certificates import issue, new_authority
from mpsd.platform.rules.certificates import read_annotation
from tests.whole.machine.machine import eventually
from tests.whole.webhook.api_server import ApiServer, Asked, api_server
from tests.whole.webhook.world import (
    HOST,
    MUTATING,
    OWN,
    SECRET,
    SYSTEM,
    VALIDATING,
    Webhook,
    bundles,
    is_registered,
    put_shipped_objects,
    review_of,
    webhook,
    webhooks,
)

REVIEW = review_of({"kind": "ConfigMap", "apiVersion": "v1"})
QUICK = {"serving_life": "15s", "authority_life": "1h"}  # looks more than once a second


@pytest.fixture
def flags(api: ApiServer, tmp_path: Path) -> dict[str, str]:
    return {"kubeconfig": str(api.kubeconfig(tmp_path)), **QUICK}


def until_registered(api: ApiServer) -> None:
    eventually(lambda: is_registered(api), "both configurations say Fail")


@dataclass(frozen=True, slots=True)
class Registered:
    """A cluster, and the webhook in it that is registered."""

    api: ApiServer
    one: Webhook


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    folder = tmp_path_factory.mktemp("webhook")
    with api_server() as api:
        put_shipped_objects(api)
        with webhook(folder, kubeconfig=str(api.kubeconfig(folder)), **QUICK) as one:
            until_registered(api)
            eventually(
                lambda: one.log("all is as it must be"), "it has said all of its own changes"
            )
            yield Registered(api, one)


@pytest.fixture
def registered(standing: Registered) -> Iterator[Registered]:
    """The same for all tests that leave it registered."""
    yield standing
    until_registered(standing.api)


def told(api: ApiServer) -> list[float]:
    """When the served certificate ends, as each configuration says."""
    read = [read_annotation(api.get(path)) for path in (VALIDATING, MUTATING)]
    return [one.ends_at for one in read if one]


def test_an_empty_cluster_gets_a_webhook_that_is_asked(
    api: ApiServer, flags: dict[str, str], tmp_path: Path
) -> None:
    with webhook(tmp_path, **flags) as one:
        until_registered(api)
        assert api.get(SYSTEM)["metadata"]["labels"] == {"mpsd.io/exempt": "true"}
        assert api.get(OWN)["metadata"]["labels"] == {"team": "gpu", "mpsd.io/exempt": "true"}
        for bundle in bundles(api):
            assert one.review("/validate", REVIEW, bundle)["allowed"]
        eventually(lambda: one.metric("mpsd_admission_registered") == 1, "it knows")
        assert one.metric('mpsd_certificate_expiry_timestamp_seconds{certificate="serving"}') > 0
        eventually(lambda: len(told(api)) == 2, "both tell when that is")


def test_nothing_is_written_once_all_is_as_it_must_be(
    api: ApiServer, flags: dict[str, str], tmp_path: Path
) -> None:
    with webhook(tmp_path, **flags) as one:
        eventually(lambda: one.log("all is as it must be"), "registered")
        written, asked = len(api.writes("")), len(api.asked)
        eventually(lambda: len(api.asked) > asked + 10, "it has looked again")
        assert len(api.writes("")) == written
        assert len(one.log("all is as it must be")) == 1


def test_a_lost_race_for_the_secret_is_the_others_win(
    api: ApiServer, flags: dict[str, str], tmp_path: Path
) -> None:
    with webhook(tmp_path, **flags):
        until_registered(api)
    theirs = api.objects.pop(SECRET)
    put_shipped_objects(api)

    def be_first(asked: Asked) -> None:
        if asked.verb == "create" and asked.path in SECRET:
            api.put(SECRET, theirs)
        else:
            api.before_write = be_first

    api.before_write = be_first
    with webhook(tmp_path, **flags):
        until_registered(api)
        written = api.get(SECRET)["data"]
    # a serving certificate of 15 s may have been renewed since
    for part in ("authority.crt", "authority.key"):
        assert written[part] == theirs["data"][part]


def test_an_api_server_that_is_away_at_first_is_waited_for(
    api: ApiServer, flags: dict[str, str], tmp_path: Path
) -> None:
    api.away = True
    with webhook(tmp_path, **flags) as one:
        eventually(lambda: one.log("not yet as it must be"), "it says what it waits for")
        eventually(lambda: len(api.asked) > 3, "it tries again")
        assert one.public("/healthz").status == 200
        readiness = one.public("/readyz")
        assert readiness.status == 503
        assert "unable to handle the request" in readiness.text
        assert len(one.log("not yet as it must be")) == 1
        api.away = False
        until_registered(api)
        one.wait_until_ready()


def test_a_webhook_serves_on_while_the_api_server_is_away(registered: Registered) -> None:
    api, one = registered.api, registered.one
    (bundle,) = set(bundles(api))
    said = len(one.log("not yet as it must be"))
    api.away = True
    try:
        eventually(lambda: len(one.log("not yet as it must be")) > said, "it notices")
        assert one.public("/readyz").status == 200
        assert one.review("/validate", REVIEW, bundle)["allowed"]
    finally:
        api.away = False


@dataclass(frozen=True)
class Policies:
    """What both configurations say of a webhook that does not answer."""

    api: ApiServer

    def are(self, policy: str) -> bool:
        return [each["failurePolicy"] for each in webhooks(self.api)] == [policy] * 2

    def until(self, policy: str) -> None:
        eventually(lambda: self.are(policy), f"both configurations say {policy}")


def not_called(api: ApiServer) -> list[str | None]:
    return [
        (api.get(path)["metadata"].get("annotations") or {}).get(NOT_CALLED)
        for path in (VALIDATING, MUTATING)
    ]


def test_a_webhook_that_the_api_server_cannot_call_never_fails_closed(
    api: ApiServer, flags: dict[str, str], tmp_path: Path
) -> None:
    api.calls_webhooks = False
    policies = Policies(api)
    with webhook(tmp_path, **flags) as one:
        eventually(lambda: not_called(api) == ["true"] * 2, "it says so to the doctor")
        asked = len(api.asked)
        eventually(lambda: len(api.asked) > asked + 20, "it has looked again")
        assert policies.are("Ignore")
        assert one.metric("mpsd_admission_registered") == 0
        (said,) = {line["reasons"][0] for line in one.log("not yet as it must be")}
        assert "TCP port" in said
        api.calls_webhooks = True
        policies.until("Fail")
        eventually(lambda: not_called(api) == [None] * 2, "it takes that back")


def test_what_somebody_changes_is_put_right_and_said_once(registered: Registered) -> None:
    api, one = registered.api, registered.one
    before = api.get(VALIDATING)["webhooks"]
    said = len(one.log("configuration changed"))
    changed = api.get(VALIDATING)
    changed["webhooks"][0] |= {"namespaceSelector": {}}
    api.put(VALIDATING, changed)

    def is_right() -> bool:
        (found,), (right,) = api.get(VALIDATING)["webhooks"], before
        return all(found[key] == right[key] for key in right if key != "rules")

    eventually(is_right, "it is put right")
    eventually(lambda: len(one.log("configuration changed")) > said, "it says so")
    assert len(one.log("configuration changed")) == said + 1


def put_certificate(folder: Path) -> bytes:
    """As a mounted Secret has it; gives the authority that signed it."""
    authority = new_authority("someone", time.time(), 3600)
    pair = issue(authority, [HOST], time.time(), 600)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return authority.certificate


def inject(api: ApiServer, authority: bytes, **fields: str) -> None:
    """As cert-manager would. fields: of each webhook, as manifests have them."""
    for path in (VALIDATING, MUTATING):
        thing = api.get(path)
        for one in thing["webhooks"]:
            one["clientConfig"]["caBundle"] = base64.b64encode(authority).decode()
            one |= fields
        api.put(path, thing)


def test_with_certificates_of_a_folder_a_configuration_that_it_may_not_change_is_enough(
    api: ApiServer, flags: dict[str, str], tmp_path: Path
) -> None:
    """As with cert-manager: somebody else writes caBundle, and the manifests say Fail."""
    authority = put_certificate(tmp_path)
    api.forbidden = {("patch", path.rsplit("/", 2)[1]) for path in (VALIDATING, MUTATING)}

    inject(api, authority)
    with webhook(tmp_path, cert_dir=str(tmp_path), **flags) as one:
        remedy = "set webhook.failClosed"
        eventually(lambda: remedy in one.log_text, "it says what to do")
        assert one.metric("mpsd_admission_registered") == 0
        inject(api, authority, failurePolicy="Fail")
        eventually(lambda: one.metric("mpsd_admission_registered") == 1, "it is registered")
        assert not any(
            "mpsd.io/serving-certificate" in str(api.get(path)) for path in (VALIDATING, MUTATING)
        )


def test_a_webhook_that_registers_nowhere_tells_nothing_of_it_so_that_no_alert_fires_for_ever(
    tmp_path: Path,
) -> None:
    put_certificate(tmp_path)
    with webhook(tmp_path, cert_dir=str(tmp_path)) as one:
        one.wait_until_ready()
        (tmp_path / "tls.key").write_bytes(b"half")  # so that it says when it has looked
        eventually(lambda: one.log("not yet as it must be"), "it has looked")
        told = one.public("/metrics").text
        assert "mpsd_certificate_expiry_timestamp_seconds{" in told
        assert "mpsd_admission_registered" not in told
