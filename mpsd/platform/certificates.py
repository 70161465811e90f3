"""Makes, reads and loads certificates.

A private key is in memory and in the Secret, never in a log and never in a file that has a name.
"""

import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpsd.platform.rules.certificates import Authority, Serving, Validity

_PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey  # what cert-manager makes

_SKEW = timedelta(hours=1)  # clocks that are behind ours by less than this take our certificates
_LONGEST_COMMON_NAME = 64


class UnusableCertificate(Exception):
    """A certificate or key that cannot be read, or two that do not belong together."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (for a serving one: its chain) and its key, both PEM. The key stays out of every `repr`."""

    certificate: bytes
    key: bytes = field(repr=False)


def new_authority(name: str, now: float, life_s: float) -> Pair:
    """A certificate that can sign serving certificates and nothing else. now: seconds since 1970."""
    key = ec.generate_private_key(ec.SECP256R1())
    itself = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_COMMON_NAME])])
    usage = _usage(signs_certificates=True)
    builder = (
        _builder(itself, itself, key.public_key(), now, now + life_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _signed(builder, key, key)


def issue(authority: Pair, names: Iterable[str], now: float, life_s: float) -> Pair:
    """A serving certificate for these DNS names and IP addresses; it never outlives its authority."""
    signer, signer_key = _certificate(authority.certificate), _key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    ordered = sorted(names)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ordered[0][:_LONGEST_COMMON_NAME])])
    until = min(now + life_s, signer.not_valid_after_utc.timestamp())
    builder = (
        _builder(subject, signer.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, ordered)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_identifier_of(signer), critical=False)
    )
    return _signed(builder, key, signer_key)


def read_authority(certificate: bytes, key: bytes | None) -> Authority:
    """key: None for an authority that only verifies. UnusableCertificate for what cannot sign, or another's key."""
    found = _certificate(certificate)
    try:
        is_authority = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise UnusableCertificate("the certificate may not sign others")
    if key is not None and _key(key).public_key() != found.public_key():
        raise UnusableCertificate("the key is another certificate's")
    return Authority(_fingerprint(found), found.not_valid_after_utc.timestamp())


def read_serving(pair: Pair, authorities: Iterable[bytes]) -> Serving:
    """signed_by is empty where none of these authorities (PEM) signed it. UnusableCertificate for what cannot serve."""
    found = _certificate(pair.certificate)
    if _key(pair.key).public_key() != found.public_key():
        raise UnusableCertificate("the key is another certificate's")
    try:
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternatives = x509.SubjectAlternativeName([])
    names = frozenset(str(name.value) for name in alternatives)
    signers = (_fingerprint(signer) for signer in map(_certificate, authorities) if _is_signed_by(found, signer))
    return Serving(next(signers, ""), names, found.not_valid_after_utc.timestamp())


def validity(certificate: bytes) -> Validity:
    """UnusableCertificate for what is none."""
    found = _certificate(certificate)
    return Validity(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def fingerprint(certificate: bytes) -> str:
    """Of the first certificate of a chain, which is a server's own. UnusableCertificate for what is none."""
    return _fingerprint(_certificate(certificate))


def fingerprints(bundle: bytes) -> frozenset[str]:
    """The certificates of a PEM bundle; none where it cannot be read."""
    try:
        return frozenset(map(_fingerprint, x509.load_pem_x509_certificates(bundle)))
    except ValueError:
        return frozenset()


def load_into(context: ssl.SSLContext, pair: Pair) -> None:
    """Shows this certificate to whoever connects from now on; connections that are open go on.

    UnusableCertificate leaves the context as it was. OpenSSL reads files only, so the pair goes through one without a
    name, in memory.
    """
    try:
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)  # a failure half way would leave the pair mixed
        _load(context, pair)
    except (ssl.SSLError, OSError) as error:
        raise UnusableCertificate(f"the certificate and its key cannot be loaded: {error}") from None


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pair.key.rstrip() + b"\n" + pair.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, until: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now, UTC) - _SKEW)
        .not_valid_after(datetime.fromtimestamp(until, UTC))
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: _PrivateKey) -> Pair:
    certificate = builder.sign(signer, hashes.SHA256())
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), written)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _identifier_of(signer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UnusableCertificate(f"the certificate cannot be read: {error}") from None


def _key(pem: bytes) -> _PrivateKey:
    try:
        found = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):  # the reason is left out: it may quote what it read
        raise UnusableCertificate("the key cannot be read") from None
    if not isinstance(found, _PrivateKey):
        raise UnusableCertificate("the key cannot sign certificates")
    return found


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def _is_signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except Exception:  # cryptography raises InvalidSignature, ValueError or TypeError; each means no
        return False
    return True


@dataclass(frozen=True, slots=True)
class Certificates:
    """What to serve with, and what verifies it.

    authorities: the PEM bundle for both configurations; None where somebody else writes it there.
    expiries: when each certificate ends, by its part, in seconds since 1970.
    """

    serving: Pair
    authorities: bytes | None
    expiries: dict[str, float] = field(compare=False)


class CertificateSource(Protocol):
    async def look(self, now: float, /) -> Certificates:
        """KubeError or UnusableCertificate where there is none to be had now."""


class FolderCertificates:
    """tls.crt and tls.key of a folder, as a mounted Secret of type kubernetes.io/tls has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def look(self, _now: float, /) -> Certificates:
        try:
            pair = Pair((self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes())
        except OSError as error:
            raise UnusableCertificate(f"{error.filename} cannot be read: {error.strerror}") from None
        return Certificates(pair, None, {"serving": read_serving(pair, ()).not_after})
