"""Authorities and certificates as a cluster's operator makes them for kube-scheduler and its
extender."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpsd.platform.certificates import Pair, issue, new_authority

LIFE_S = 3600.0


def authority(name: str) -> Pair:
    return new_authority(name, time.time(), LIFE_S)


def serving(signer: Pair) -> Pair:
    return issue(signer, ["127.0.0.1"], time.time(), LIFE_S)


def of_client(signer: Pair, name: str = "system:kube-scheduler") -> Pair:
    """A certificate that only clients show."""
    key, issuer = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.load_pem_x509_certificate(signer.certificate),
    )
    now = datetime.now(UTC)
    signer_key = serialization.load_pem_private_key(signer.key, None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(seconds=LIFE_S))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), written)


def context(trusted: Pair, shown: Pair | None, folder: Path) -> ssl.SSLContext:
    """As kube-scheduler connects. shown: None for a client without a certificate."""
    made = ssl.create_default_context(cadata=trusted.certificate.decode())
    if shown:
        file = folder / "client.pem"
        file.write_bytes(shown.key + shown.certificate)
        made.load_cert_chain(file)
    return made
