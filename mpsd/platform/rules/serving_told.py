"""How the webhook tells when its own certificate ends, for whom may not read the Secret that it is in.

One rule: of replicas that serve different certificates the earliest end stands there. Whoever serves one that ends
earlier puts it there; whoever serves a later one does so once, and then hourly, for the one that said the earlier may
be gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpsd.model.cluster_status import Seconds
from mpsd.model.events import Stamp

ANNOTATION = "mpsd.io/serving-certificate"  # from when until when, with a slash between, as ISO 8601 writes an interval
AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Validity:
    """Of a certificate, in seconds since 1970."""

    begins_at: float
    ends_at: float


@dataclass(frozen=True, slots=True)
class Stood:
    """When a replica last saw its own there, whoever wrote it."""

    own: Validity
    at: float


def must_say(there: Validity | None, own: Validity, last: Stood | None, now: float) -> bool:
    """Whether to put our own there. there: None where nothing is that can be read. last: None for never."""
    if there is None or own.ends_at < there.ends_at:
        return True
    if own.ends_at == there.ends_at:
        return False
    return last is None or last.own != own or now >= last.at + AGAIN_S


def annotation(validity: Validity, stamp: Stamp) -> str:
    return f"{stamp(validity.begins_at)}/{stamp(validity.ends_at)}"


def read_annotation(configuration: Mapping[str, Any], seconds: Seconds) -> Validity | None:
    """Of a webhook configuration; None where it says nothing that can be read."""
    metadata = configuration.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    said = annotations.get(ANNOTATION) if isinstance(annotations, dict) else None
    if not isinstance(said, str):
        return None
    begins_at, ends_at = map(seconds, said.partition("/")[::2])
    if begins_at is None or ends_at is None or ends_at <= begins_at:
        return None
    return Validity(begins_at, ends_at)
