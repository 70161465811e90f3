"""The authorities in a caBundle, read by OpenSSL through Python's own ssl.

One rule: what OpenSSL does not take for the certificate of an authority is none.
"""

import binascii
import ssl
from base64 import b64decode
from collections.abc import Mapping

from mpsd.operations.doctor.rules.cluster_facts import Authority


def authorities_of(bundle: str) -> tuple[Authority, ...]:
    """bundle: base64 of PEM, as a webhook configuration has it; empty for what is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=b64decode(bundle, validate=True).decode())
    except (ssl.SSLError, ValueError, binascii.Error):
        return ()
    return tuple(
        Authority(_subject(one), ssl.cert_time_to_seconds(str(one["notAfter"]))) for one in context.get_ca_certs()
    )


def _subject(certificate: Mapping[str, object]) -> str:
    """Its common name; the whole name where it has none."""
    parts = certificate.get("subject")
    pairs = [pair for row in parts for pair in row] if isinstance(parts, tuple) else []
    return next((str(value) for key, value in pairs if key == "commonName"), str(pairs))
