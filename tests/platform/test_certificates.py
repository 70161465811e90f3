"""Certificates: what strict peers take, what is read back, and what is refused."""

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509

from mpsd.model.times import DAY_S
from mpsd.platform.certificates import (
    Pair,
    UnusableCertificate,
    fingerprint,
    fingerprints,
    issue,
    load_into,
    new_authority,
    read_authority,
    read_serving,
)
from mpsd.platform.listener import tls_context

NAMES = ["webhook.mpsd.svc", "127.0.0.1", "::1"]
NOW = time.time()
AUTHORITY = new_authority("mpsd-webhook.mpsd-system", NOW, 3600)
SERVING = issue(AUTHORITY, NAMES, NOW, 3000)
STRANGER = new_authority("mpsd-webhook.mpsd-system", NOW, 3600)  # another of the same name


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """The serial number of the certificate shown; ssl.SSLError where the client does not take
    it."""
    ours, theirs = socket.socketpair()

    def accept() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (OSError, ssl.SSLError):
            theirs.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            certificate = connection.getpeercert()
            assert certificate
            return str(certificate["serialNumber"])
    finally:
        ours.close()
        thread.join()


def strict_client(*authorities: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=b"".join(one.certificate for one in authorities).decode()
    )
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def serving(pair: Pair) -> ssl.SSLContext:
    context = tls_context()
    load_into(context, pair)
    return context


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_peer_takes_the_certificate_by_each_of_its_names(name: str) -> None:
    assert handshake(serving(SERVING), strict_client(AUTHORITY), name)


def test_old_tls_is_not_spoken() -> None:
    client = strict_client(AUTHORITY)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(serving(SERVING), client, NAMES[0])


def test_clocks_that_are_days_behind_take_it() -> None:
    for pair in (AUTHORITY, SERVING):
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        assert certificate.not_valid_before_utc.timestamp() <= NOW - 2 * DAY_S


def test_what_is_written_is_read_back() -> None:
    authority = read_authority(AUTHORITY.certificate, AUTHORITY.key)
    assert abs(authority.not_after - (NOW + 3600)) < 1
    found = read_serving(SERVING, [STRANGER.certificate, AUTHORITY.certificate])
    assert found.signed_by == authority.id
    assert found.names == frozenset(NAMES)
    assert abs(found.not_after - (NOW + 3000)) < 1
    assert fingerprints(AUTHORITY.certificate + SERVING.certificate) >= {authority.id}
    assert not read_serving(SERVING, [STRANGER.certificate]).signed_by


def test_a_chain_is_known_by_its_first_certificate() -> None:
    chain = SERVING.certificate + AUTHORITY.certificate
    assert fingerprint(chain) == fingerprint(SERVING.certificate)


def test_no_certificate_outlives_its_authority() -> None:
    authority = read_authority(AUTHORITY.certificate, None)
    assert (
        read_serving(issue(AUTHORITY, NAMES, NOW, 9_999_999), []).not_after == authority.not_after
    )


@pytest.mark.parametrize("broken", [b"", b"x", SERVING.certificate[:200], AUTHORITY.key])
def test_what_cannot_be_read_is_refused_without_quoting_it(broken: bytes) -> None:
    for read in (
        lambda: read_authority(broken, None),
        lambda: read_serving(Pair(broken, SERVING.key), []),
        lambda: load_into(tls_context(), Pair(broken, SERVING.key)),
    ):
        with pytest.raises(UnusableCertificate) as caught:
            read()
        assert "PRIVATE" not in str(caught.value)
    assert not fingerprints(broken)


def test_a_key_of_another_certificate_is_refused() -> None:
    for read in (
        lambda: read_authority(AUTHORITY.certificate, SERVING.key),
        lambda: read_serving(Pair(SERVING.certificate, AUTHORITY.key), []),
        lambda: load_into(tls_context(), Pair(SERVING.certificate, AUTHORITY.key)),
        lambda: read_authority(AUTHORITY.certificate, b"no key"),
    ):
        with pytest.raises(UnusableCertificate):
            read()


def test_a_serving_certificate_may_not_sign() -> None:
    with pytest.raises(UnusableCertificate, match="may not sign"):
        read_authority(SERVING.certificate, SERVING.key)


def test_a_certificate_is_replaced_on_a_live_context_and_a_bad_one_changes_nothing() -> None:
    context, client = serving(SERVING), strict_client(AUTHORITY)
    first = handshake(context, client, NAMES[0])
    with pytest.raises(UnusableCertificate):
        load_into(context, Pair(issue(AUTHORITY, NAMES, NOW, 3000).certificate, SERVING.key))
    assert handshake(context, client, NAMES[0]) == first
    load_into(context, issue(AUTHORITY, NAMES, NOW, 3000))
    assert handshake(context, client, NAMES[0]) != first


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_key_is_in_no_repr_and_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = open_files()
    load_into(tls_context(), SERVING)
    assert "PRIVATE" not in repr(SERVING)
    assert not list(tmp_path.iterdir())
    assert open_files() == before
