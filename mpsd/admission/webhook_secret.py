"""What the webhook's Secret holds, and what it holds after a step of `platform.rules.certificate_plan`.

One rule: a part that cannot be used counts as absent, so that an edited Secret is repaired and never served.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mpsd.platform.certificates import Pair, UnusableCertificate, issue, new_authority, read_authority, read_serving
from mpsd.platform.rules.certificate_plan import Lives, Seen, Serving, Step

_FORMER, _FORMER_UNTIL = "former.crt", "former-until"


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of certificates. common_name: how an authority calls itself, for people."""

    common_name: str
    names: frozenset[str]
    lives: Lives


@dataclass(frozen=True, slots=True)
class Material:
    """The parts of the Secret; None each for what is absent or cannot be used."""

    authority: Pair | None = None
    following: Pair | None = None
    former: bytes | None = field(default=None, repr=False)
    former_until: float = 0.0
    serving: Pair | None = None

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """The PEM certificates that verify, the one that signs first."""
        signing = (pair.certificate for pair in (self.authority, self.following) if pair)
        return (*signing, *([self.former] if self.former else []))

    def seen(self, following_trusted_since: float | None, *, held: bool) -> Seen:
        """The facts of which the plan is made."""
        return Seen(
            read_authority(self.authority.certificate, self.authority.key) if self.authority else None,
            read_authority(self.following.certificate, self.following.key) if self.following else None,
            read_authority(self.former, None) if self.former else None,
            self.former_until,
            read_serving(self.serving, self.authorities) if self.serving else None,
            following_trusted_since,
            held,
        )


def read_material(data: Mapping[str, object]) -> Material:
    """data: the Secret's, base64; whatever else is in it stays out."""
    authorities = {part: _usable_authority(_pair(data, part)) for part in ("authority", "following")}
    former = _bytes(data, _FORMER)
    if former is not None and not _is_usable(former, None):
        former = None
    material = Material(authorities["authority"], authorities["following"], former, _until(data), _pair(data, "tls"))
    return material if _can_serve(material) else replace(material, serving=None)


def written(material: Material) -> dict[str, str]:
    """The Secret's data."""
    parts: dict[str, bytes] = {}
    for name, pair in (
        ("authority", material.authority),
        ("following", material.following),
        ("tls", material.serving),
    ):
        if pair:
            parts |= {f"{name}.crt": pair.certificate, f"{name}.key": pair.key}
    if material.former:
        parts |= {_FORMER: material.former, _FORMER_UNTIL: str(material.former_until).encode()}
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def after(step: Step, material: Material, order: Order, now: float) -> Material:
    """The material once a step is taken. For BRING_BACK: what this process still holds."""
    match step:
        case Step.START:
            return Material(authority=_new(order, now))
        case Step.PREPARE:
            return replace(material, following=_new(order, now))
        case Step.BRING_BACK:
            return replace(material, following=material.following or _new(order, now))
        case Step.SWITCH:
            return _switched(material)
        case Step.FORGET:
            return replace(material, former=None, former_until=0.0)
        case Step.ISSUE:
            assert material.authority, "the plan issues only with an authority"
            return replace(material, serving=issue(material.authority, order.names, now, order.lives.serving_s))


def _switched(material: Material) -> Material:
    """The former authority stays until the last certificate that it signed has ended."""
    assert material.authority, "the plan switches only from an authority"
    serving = _serving(material)
    until = serving.not_after if serving else 0.0
    return Material(material.following, None, material.authority.certificate, until, material.serving)


def _new(order: Order, now: float) -> Pair:
    return new_authority(order.common_name, now, order.lives.authority_s)


def _serving(material: Material) -> Serving | None:
    try:
        return read_serving(material.serving, material.authorities) if material.serving else None
    except UnusableCertificate:
        return None


def _can_serve(material: Material) -> bool:
    return _serving(material) is not None


def _usable_authority(pair: Pair | None) -> Pair | None:
    return pair if pair and _is_usable(pair.certificate, pair.key) else None


def _is_usable(certificate: bytes, key: bytes | None) -> bool:
    try:
        read_authority(certificate, key)
    except UnusableCertificate:
        return False
    return True


def _pair(data: Mapping[str, object], part: str) -> Pair | None:
    certificate, key = _bytes(data, f"{part}.crt"), _bytes(data, f"{part}.key")
    return Pair(certificate, key) if certificate and key else None


def _bytes(data: Mapping[str, object], name: str) -> bytes | None:
    try:
        return base64.b64decode(str(data[name]), validate=True)
    except (KeyError, binascii.Error, ValueError):
        return None


def _until(data: Mapping[str, object]) -> float:
    """0 where it cannot be read: a former authority that nobody knows the end of is forgotten."""
    try:
        return float(_bytes(data, _FORMER_UNTIL) or 0)
    except ValueError:
        return 0.0
