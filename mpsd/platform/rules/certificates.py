"""When a certificate is made, renewed, switched to and forgotten.

API servers can always verify what is served: a new authority signs once both webhook configurations
have named it for a while, and the one before stays trusted for as long as what it signed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.fields import as_mapping
from mpsd.model.times import DAY_S, clocks_apart, seconds, stamp

_LAST_PART = 3  # renewed when a third of the life is left


@dataclass(frozen=True, slots=True)
class Lives:
    authority_s: float = 3650 * DAY_S
    serving_s: float = 30 * DAY_S
    settle_s: float = 60.0  # until every API server has the new authority

    @property
    def are_sound(self) -> bool:
        """Whether an authority outlives what it signs by enough to be replaced in time."""
        return self.serving_s > 0 and self.authority_s >= _LAST_PART * self.serving_s


@dataclass(frozen=True, slots=True)
class Authority:
    id: str  # its fingerprint
    not_after: float


@dataclass(frozen=True, slots=True)
class Serving:
    signed_by: str
    names: frozenset[str]
    not_after: float


@dataclass(frozen=True, slots=True)
class SecretView:
    """None each for what is absent or cannot be used."""

    authority: Authority | None = None
    following: Authority | None = None  # signs next
    former: Authority | None = None  # signed before
    former_until: float = 0.0  # until then it is trusted
    serving: Serving | None = None
    #: When both configurations were first seen to name `following`; None while one does not.
    following_trusted_since: float | None = None
    held: bool = False  # this process has a usable set that the Secret has lost


class CertificateStep(StrEnum):
    """A change of the Secret; what is next is asked after it."""

    START = "make an authority"
    BRING_BACK = "put back what the Secret has lost, with a new authority to follow"
    PREPARE = "make the authority that follows"
    SWITCH = "let the authority that follows sign"
    ISSUE = "issue a serving certificate"
    FORGET = "forget the former authority"


def next_step(
    seen: SecretView, names: frozenset[str], lives: Lives, now: float
) -> CertificateStep | None:
    """What to do; None for nothing. names: what the serving certificate must be good for."""
    if seen.authority is None:
        return CertificateStep.BRING_BACK if seen.held else CertificateStep.START
    expired = now >= seen.authority.not_after
    since = seen.following_trusted_since
    settled = since is not None and now >= since + lives.settle_s and seen.former is None
    if seen.following and (expired or settled):
        return CertificateStep.SWITCH
    if expired:
        return CertificateStep.START
    if (
        seen.serving is None
        or seen.serving.signed_by != seen.authority.id
        or not names <= seen.serving.names
    ):
        return CertificateStep.ISSUE
    # What ends with its authority cannot be bettered by asking that authority again.
    due_at = seen.serving.not_after - lives.serving_s / _LAST_PART
    if seen.serving.not_after < seen.authority.not_after and now >= due_at:
        return CertificateStep.ISSUE
    if seen.former:
        return CertificateStep.FORGET if now >= seen.former_until else None
    if seen.following is None and now >= seen.authority.not_after - lives.authority_s / _LAST_PART:
        return CertificateStep.PREPARE
    return None


# How the end of the webhook's own certificate is reported to whom may not read its Secret: of
# different ones the earliest. A replica whose own ends later writes it hourly, because the other
# may be gone.

# an interval of ISO 8601
ANNOTATION = "mpsd.io/serving-certificate"
AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Validity:
    """Of a certificate, in seconds since 1970."""

    begins_at: float
    ends_at: float


def why_invalid(validity: Validity, now: float, own_now: float) -> str:
    """Why whoever has the clock `now` refuses this certificate; empty where it does not. own_now:
    by the clock of this machine. All in seconds since 1970."""
    if now < validity.begins_at:
        why = f"is not valid before {stamp(validity.begins_at)}"
    elif now >= validity.ends_at:
        why = f"has expired at {stamp(validity.ends_at)}"
    else:
        return ""
    why = f"the serving certificate {why}, and the API server's clock says {stamp(now)}"
    return f"{why}{clocks_apart(now, own_now)}"


def must_write(
    there: Validity | None, own: Validity, last: tuple[Validity, float] | None, now: float
) -> bool:
    """Whether to write our own. there: None where nothing can be read. last: our own as it last
    stood there, and when."""
    if there is None or own.ends_at < there.ends_at:
        return True
    return own.ends_at != there.ends_at and (
        last is None or last[0] != own or now >= last[1] + AGAIN_S
    )


def annotation(validity: Validity) -> str:
    return f"{stamp(validity.begins_at)}/{stamp(validity.ends_at)}"


def read_annotation(configuration: Mapping[str, Any]) -> Validity | None:
    """Of a webhook configuration; None where nothing can be read."""
    annotations = as_mapping(as_mapping(configuration.get("metadata")).get("annotations"))
    match [*map(seconds, str(annotations.get(ANNOTATION)).split("/", 1))]:
        case [float(begins_at), float(ends_at)] if begins_at < ends_at:
            return Validity(begins_at, ends_at)
        case _:
            return None
