"""Certificates. A private key is never in a log or in a file with a name."""

import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpsd.platform.rules.certificates import Authority, Serving, Validity

# what cert-manager makes
_PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

_SKEW = timedelta(days=3)  # for clocks that are behind ours
_LONGEST_COMMON_NAME = 64
_OTHER_USES = ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
_OTHER_USES += ["encipher_only", "decipher_only"]


class UnusableCertificate(Exception):
    """What is unreadable, or two that do not belong together."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, a serving one with its chain, and its key, PEM. The key stays out of every
    `repr`."""

    certificate: bytes
    key: bytes = field(repr=False)


def new_authority(name: str, now: float, life_s: float) -> Pair:
    """An authority for serving certificates. now: seconds since 1970."""
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    return _signed(name, None, now, now + life_s, [(constraints, True)])


def issue(authority: Pair, names: Iterable[str], now: float, life_s: float) -> Pair:
    """A serving certificate for DNS names and IP addresses; it never outlives its authority."""
    signer = _certificate(authority.certificate)
    ordered = sorted(names)
    until = min(now + life_s, signer.not_valid_after_utc.timestamp())
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(map(_general_name, ordered)), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    ]
    return _signed(ordered[0], (signer, _key(authority.key)), now, until, extensions)


def _signed(
    name: str,
    signer: tuple[x509.Certificate, _PrivateKey] | None,
    now: float,
    until: float,
    extensions: Iterable[tuple[x509.ExtensionType, bool]],
) -> Pair:
    """signer None: an authority, which signs itself. extensions: each with whether it is
    critical."""
    key = ec.generate_private_key(ec.SECP256R1())
    is_authority = signer is None
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        **dict.fromkeys(_OTHER_USES, False),
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_COMMON_NAME])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer[0].subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now, UTC) - _SKEW)
        .not_valid_after(datetime.fromtimestamp(until, UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(usage, critical=True)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    certificate = builder.sign(signer[1] if signer else key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    written = key.private_bytes(pem, form, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), written)


def read_authority(certificate: bytes, key: bytes | None) -> Authority:
    """key: None for an authority that only verifies. UnusableCertificate."""
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
    """authorities: PEM of those that may have signed it. UnusableCertificate."""
    found = _certificate(pair.certificate)
    if _key(pair.key).public_key() != found.public_key():
        raise UnusableCertificate("the key is another certificate's")
    try:
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternatives = x509.SubjectAlternativeName([])
    names = frozenset(str(name.value) for name in alternatives)
    signers = filter(partial(_is_signed_by, found), map(_certificate, authorities))
    signed_by = next(map(_fingerprint, signers), "")
    return Serving(signed_by, names, found.not_valid_after_utc.timestamp())


def validity(certificate: bytes) -> Validity:
    """UnusableCertificate for what is none."""
    found = _certificate(certificate)
    return Validity(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def fingerprint(certificate: bytes) -> str:
    """The SHA-256 of the first of a chain, a server's own. UnusableCertificate."""
    return _fingerprint(_certificate(certificate))


def fingerprints(bundle: bytes) -> frozenset[str]:
    """Those in a PEM bundle; none where it cannot be read."""
    try:
        return frozenset(map(_fingerprint, x509.load_pem_x509_certificates(bundle)))
    except ValueError:
        return frozenset()


def load_into(context: ssl.SSLContext, pair: Pair) -> None:
    """Shows this certificate to new connections. UnusableCertificate leaves the context as it was.

    OpenSSL reads files only, so the pair goes through one without a name, in memory.
    """
    try:
        # a failure half way would leave the pair mixed
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
        _load(context, pair)
    except OSError as error:  # ssl.SSLError is one
        why = f"the certificate and its key cannot be loaded: {error}"
        raise UnusableCertificate(why) from None


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pair.key.rstrip() + b"\n" + pair.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


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
    # cryptography raises InvalidSignature, ValueError or TypeError; each means no
    except Exception:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Certificates:
    serving: Pair
    authorities: bytes | None  # PEM for both configurations; None: somebody else writes it there
    #: When each certificate ends, by its part, in seconds since 1970.
    expiries: dict[str, float] = field(compare=False)


class FolderCertificates:
    """A mounted Secret of type kubernetes.io/tls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def look(self, _now: float, /) -> Certificates:
        try:
            certificate = (self._folder / "tls.crt").read_bytes()
            pair = Pair(certificate, (self._folder / "tls.key").read_bytes())
        except OSError as error:
            why = f"{error.filename} cannot be read: {error.strerror}"
            raise UnusableCertificate(why) from None
        return Certificates(pair, None, {"serving": read_serving(pair, ()).not_after})
