"""Where the webhook's certificate comes from: a Secret that all replicas keep together, or a
folder.

The Secret is changed one step at a time and only as it was read (resourceVersion), so that replicas
which come at once agree on whoever was first.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mpsd.admission.settings import WebhookSettings
from mpsd.model.names import LABEL, PRODUCT
from mpsd.platform import certificates
from mpsd.platform.certificates import (
    Certificates,
    Pair,
    UnusableCertificate,
    read_authority,
    read_serving,
)
from mpsd.platform.kube import Conflict, Kube, NotFound, Object, Resource
from mpsd.platform.logs import logger
from mpsd.platform.rules.certificates import CertificateStep, SecretView, next_step

# A part of the Secret that cannot be used counts as absent, so that an edited Secret is repaired
# and never served.

Found = TypeVar("Found")

_FORMER = "former.crt"
_FORMER_UNTIL = "former-until"


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
        authority, following = (
            read_authority(pair.certificate, pair.key) if pair else None
            for pair in (self.authority, self.following)
        )
        former = read_authority(self.former, None) if self.former else None
        serving = read_serving(self.serving, self.authorities) if self.serving else None
        return SecretView(
            authority, following, former, self.former_until, serving, following_trusted_since, held
        )


def read_material(data: Mapping[str, object]) -> Material:
    """data: the Secret's, base64; whatever else is in it stays out."""
    found = (
        (_bytes(data, f"{part}.crt"), _bytes(data, f"{part}.key"))
        for part in ("authority", "following", "tls")
    )
    authority, following, serving = (Pair(one, key) if one and key else None for one, key in found)
    former = _bytes(data, _FORMER)
    try:
        until = float(_bytes(data, _FORMER_UNTIL) or 0)
    except ValueError:  # a former authority that nobody knows the end of is forgotten
        until = 0.0
    material = Material(
        (
            authority
            if authority and _usable(read_authority, authority.certificate, authority.key)
            else None
        ),
        (
            following
            if following and _usable(read_authority, following.certificate, following.key)
            else None
        ),
        former if former and _usable(read_authority, former, None) else None,
        until,
    )
    is_usable = serving and _usable(read_serving, serving, material.authorities)
    return replace(material, serving=serving) if is_usable else material


def written(material: Material) -> dict[str, str]:
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


def after(
    step: CertificateStep, material: Material, settings: WebhookSettings, now: float
) -> Material:
    """The material once a step is taken. For BRING_BACK: what this process still holds."""

    def new() -> Pair:
        return certificates.new_authority(
            f"{settings.service}.{settings.namespace}", now, settings.lives.authority_s
        )

    match step:
        case CertificateStep.START:
            return Material(authority=new())
        case CertificateStep.PREPARE:
            return replace(material, following=new())
        case CertificateStep.BRING_BACK:
            return replace(material, following=material.following or new())
        case CertificateStep.SWITCH:
            assert material.authority, "the plan switches only from an authority"
            # The former authority stays until the last certificate that it signed has ended.
            serving = material.serving and _usable(
                read_serving, material.serving, material.authorities
            )
            until = serving.not_after if serving else 0.0
            return Material(
                material.following, None, material.authority.certificate, until, material.serving
            )
        case CertificateStep.FORGET:
            return replace(material, former=None, former_until=0.0)
        case CertificateStep.ISSUE:
            assert material.authority, "the plan issues only with an authority"
            return replace(
                material,
                serving=certificates.issue(
                    material.authority, settings.names, now, settings.lives.serving_s
                ),
            )


def _usable(read: Callable[..., Found], *parts: object) -> Found | None:
    """What is read of these parts of the Secret; None where they cannot be used."""
    try:
        return read(*parts)
    except UnusableCertificate:
        return None


def _bytes(data: Mapping[str, object], name: str) -> bytes | None:
    try:
        return base64.b64decode(str(data[name]), validate=True)
    except (KeyError, ValueError):
        return None


SECRETS = Resource("v1", "secrets")
_MOST_STEPS = 12  # a look that needs more is fought over; the next look goes on


class SecretCertificates:
    """An authority and a serving certificate that mpsd makes and renews by itself. trusted: the
    fingerprints of the authorities that both webhook configurations name, as last seen."""

    def __init__(
        self, kube: Kube, settings: WebhookSettings, trusted: Callable[[], frozenset[str]]
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._trusted = trusted
        # the last usable set, for when the Secret is lost; None before the first
        self._held: Material | None = None
        # the following authority's id and since when it is trusted
        self._since: tuple[str, float] | None = None
        self._log = logger(role="webhook")

    async def look(self, now: float, /) -> Certificates:
        """Takes every step that is due, and gives what to serve with."""
        settings = self._settings
        for _attempt in range(_MOST_STEPS):
            try:
                secret = await self._kube.get(SECRETS, settings.secret, settings.namespace)
            except NotFound:
                secret = None
            material = read_material((secret or {}).get("data") or {})
            seen = material.seen(self._trusted_since(material, now), held=self._held is not None)
            step = next_step(seen, settings.names, settings.lives, now)
            if step is None and material.serving:
                self._held = material
                parts = {
                    name: getattr(seen, name)
                    for name in ("serving", "authority", "following", "former")
                }
                expiries = {name: part.not_after for name, part in parts.items() if part}
                return Certificates(material.serving, b"".join(material.authorities), expiries)
            if step:
                await self._take(step, secret, material, now)
        raise UnusableCertificate(
            f"Secret {settings.namespace}/{settings.secret} is changed by others all the time"
        )

    async def _take(
        self, step: CertificateStep, secret: Object | None, material: Material, now: float
    ) -> None:
        before = self._held if step is CertificateStep.BRING_BACK and self._held else material
        data = written(after(step, before, self._settings, now))
        namespace = self._settings.namespace
        try:
            if secret is None:
                labels = {"app.kubernetes.io/managed-by": PRODUCT, LABEL: PRODUCT}
                metadata = {"name": self._settings.secret, "namespace": namespace, "labels": labels}
                fresh = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "type": "Opaque",
                    "metadata": metadata,
                    "data": data,
                }
                await self._kube.create(SECRETS, fresh, namespace)
            else:
                await self._kube.replace(SECRETS, {**secret, "data": data}, namespace)
        except Conflict:
            return  # another replica was first; its work counts
        self._log.info(
            "certificates changed", step=step.value, secret=f"{namespace}/{self._settings.secret}"
        )

    def _trusted_since(self, material: Material, now: float) -> float | None:
        """Since when both configurations name the authority that follows; None while they do
        not."""
        following = (
            certificates.fingerprints(material.following.certificate)
            if material.following
            else frozenset()
        )
        if not following or not following <= self._trusted():
            self._since = None
            return None
        (identity,) = following
        if self._since is None or self._since[0] != identity:
            self._since = (identity, now)
        return self._since[1]
