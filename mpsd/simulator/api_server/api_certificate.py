"""The certificate that the simulated API server shows, new at every start.

One rule: it is good for 127.0.0.1 and for nothing else, and its key is in no file that has a name.
"""

import ipaddress
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = timedelta(days=1)
_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Shown:
    """authority: PEM of the certificate, which is its own authority."""

    context: ssl.SSLContext
    authority: bytes


def new_certificate() -> Shown:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simulated Kubernetes")])
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)  # OpenSSL reads files only
    with os.fdopen(descriptor, "wb") as file:
        file.write(written + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return Shown(context, certificate)


def _usage() -> x509.KeyUsage:
    """It serves, and as its own authority it signs."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
