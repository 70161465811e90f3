"""Where the webhook's certificate comes from: a Secret that all replicas keep together, or a folder.

The Secret is changed one step at a time and only as it was read (resourceVersion), so that replicas which
come at once agree on whoever was first.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mpsd.admission.settings import WebhookSettings
from mpsd.model.names import LABEL, PRODUCT
from mpsd.platform.certificates import (
    Certificates,
    Pair,
    UnusableCertificate,
    fingerprints,
    issue,
    new_authority,
    read_authority,
    read_serving,
)
from mpsd.platform.kube import Conflict, Kube, NotFound, Object, Resource
from mpsd.platform.logs import logger
from mpsd.platform.rules.certificates import CertificateStep, Lives, SecretView, Serving, next_step

# What the webhook's Secret holds, and what it holds after a step of `platform.rules.certificate_plan`.
#
# A part that cannot be used counts as absent, so that an edited Secret is repaired and never served.

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

    def seen(self, following_trusted_since: float | None, *, held: bool) -> SecretView:
        """The facts of which the plan is made."""
        return SecretView(
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


def after(step: CertificateStep, material: Material, order: Order, now: float) -> Material:
    """The material once a step is taken. For BRING_BACK: what this process still holds."""
    match step:
        case CertificateStep.START:
            return Material(authority=_new(order, now))
        case CertificateStep.PREPARE:
            return replace(material, following=_new(order, now))
        case CertificateStep.BRING_BACK:
            return replace(material, following=material.following or _new(order, now))
        case CertificateStep.SWITCH:
            return _switched(material)
        case CertificateStep.FORGET:
            return replace(material, former=None, former_until=0.0)
        case CertificateStep.ISSUE:
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


SECRETS = Resource("v1", "secrets")
_MOST_STEPS = 12  # a look that needs more is fought over; the next look goes on


class SecretCertificates:
    """An authority and a serving certificate that mpsd makes and renews by itself.

    trusted: the fingerprints of the authorities that both webhook configurations name, as last seen.
    """

    def __init__(self, kube: Kube, settings: WebhookSettings, trusted: Callable[[], frozenset[str]]) -> None:
        self._kube = kube
        self._namespace = settings.namespace
        self._name = settings.secret
        self._order = Order(f"{settings.service}.{settings.namespace}", settings.names, settings.lives)
        self._trusted = trusted
        self._held: Material | None = None  # the last usable set, for when the Secret is lost; None before the first
        self._since: tuple[str, float] | None = None  # the following authority's id and since when it is trusted
        self._log = logger(role="webhook")

    async def look(self, now: float, /) -> Certificates:
        """Takes every step that is due, and gives what to serve with."""
        for _attempt in range(_MOST_STEPS):
            secret = await self._read()
            material = read_material((secret or {}).get("data") or {})
            seen = material.seen(self._trusted_since(material, now), held=self._held is not None)
            step = next_step(seen, self._order.names, self._order.lives, now)
            if step is None and material.serving:
                self._held = material
                return Certificates(material.serving, b"".join(material.authorities), _expiries(seen))
            if step:
                await self._take(step, secret, material, now)
        raise UnusableCertificate(f"Secret {self._namespace}/{self._name} is changed by somebody else all the time")

    async def _take(self, step: CertificateStep, secret: Object | None, material: Material, now: float) -> None:
        before = self._held if step is CertificateStep.BRING_BACK and self._held else material
        data = written(after(step, before, self._order, now))
        try:
            if secret is None:
                await self._kube.create(SECRETS, self._fresh() | {"data": data}, self._namespace)
            else:
                await self._kube.replace(SECRETS, {**secret, "data": data}, self._namespace)
        except Conflict:
            return  # another replica was first; its work counts
        self._log.info("certificates changed", step=step.value, secret=f"{self._namespace}/{self._name}")

    async def _read(self) -> Object | None:
        """None where there is no such Secret."""
        try:
            return await self._kube.get(SECRETS, self._name, self._namespace)
        except NotFound:
            return None

    def _fresh(self) -> Object:
        labels = {"app.kubernetes.io/managed-by": PRODUCT, LABEL: PRODUCT}
        metadata = {"name": self._name, "namespace": self._namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata}

    def _trusted_since(self, material: Material, now: float) -> float | None:
        """Since when both configurations name the authority that follows; None while they do not."""
        following = fingerprints(material.following.certificate) if material.following else frozenset()
        if not following or not following <= self._trusted():
            self._since = None
            return None
        (identity,) = following
        if self._since is None or self._since[0] != identity:
            self._since = (identity, now)
        return self._since[1]


def _expiries(seen: SecretView) -> dict[str, float]:
    parts = {
        "serving": seen.serving,
        "authority": seen.authority,
        "following": seen.following,
        "former": seen.former,
    }
    return {name: part.not_after for name, part in parts.items() if part}
