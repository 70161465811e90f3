"""The webhook's certificate in a Secret that all replicas keep together: it is changed one step at
a time and only as it was read (resourceVersion), so that whoever was first counts."""

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

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
from mpsd.platform.rules.certificates import Authority, CertificateStep, SecretView, next_step

# The parts of the Secret, each a .crt and a .key; of the former authority the certificate alone.
_AUTHORITY, _FOLLOWING, _FORMER, _SERVING = "authority", "following", "former", "tls"
_AUTHORITIES = (_AUTHORITY, _FOLLOWING, _FORMER)
_FORMER_UNTIL = "former-until"


@dataclass(frozen=True, slots=True)
class Material:
    """The parts of the Secret by name; one that cannot be used is left out: it is repaired, and
    never served."""

    parts: Mapping[str, Pair]
    former_until: float = 0.0

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """The one that signs first."""
        return tuple(self.parts[name].certificate for name in _AUTHORITIES if name in self.parts)

    @property
    def serving(self) -> Pair | None:
        return self.parts.get(_SERVING)

    def seen(self, following_trusted_since: float | None, *, held: bool) -> SecretView:
        read = {
            name: _read_authority(self.parts[name]) for name in _AUTHORITIES if name in self.parts
        }
        return SecretView(
            authority=read.get(_AUTHORITY),
            following=read.get(_FOLLOWING),
            former=read.get(_FORMER),
            former_until=self.former_until,
            serving=read_serving(self.serving, self.authorities) if self.serving else None,
            following_trusted_since=following_trusted_since,
            held=held,
        )


def read_material(data: Mapping[str, object]) -> Material:
    """data: the Secret's."""
    parts: dict[str, Pair] = {}
    for name in (*_AUTHORITIES, _SERVING):
        certificate = _bytes(data, f"{name}.crt")
        key = b"" if name == _FORMER else _bytes(data, f"{name}.key")
        if certificate is None or key is None:
            continue
        pair = Pair(certificate, key)
        with suppress(UnusableCertificate):
            if name == _SERVING:
                read_serving(pair, ())
            else:
                _read_authority(pair)
            parts[name] = pair
    try:
        until = float(_bytes(data, _FORMER_UNTIL) or 0)
    except ValueError:  # a former authority that nobody knows the end of is forgotten
        until = 0.0
    return Material(parts, until)


def written(material: Material) -> dict[str, str]:
    data: dict[str, bytes] = {}
    for name, pair in material.parts.items():
        data[f"{name}.crt"] = pair.certificate
        if pair.key:
            data[f"{name}.key"] = pair.key
    if _FORMER in material.parts:
        data[_FORMER_UNTIL] = str(material.former_until).encode()
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def after(
    step: CertificateStep, material: Material, settings: WebhookSettings, now: float
) -> Material:
    """For BRING_BACK: what this process still holds."""
    parts = dict(material.parts)
    lives = settings.lives

    def new_authority() -> Pair:
        host = f"{settings.service}.{settings.namespace}"
        return certificates.new_authority(host, now, lives.authority_s)

    match step:
        case CertificateStep.START:
            parts = {_AUTHORITY: new_authority()}
        case CertificateStep.PREPARE:
            parts[_FOLLOWING] = new_authority()
        case CertificateStep.BRING_BACK:
            if _FOLLOWING not in parts:
                parts[_FOLLOWING] = new_authority()
        case CertificateStep.SWITCH:
            # The former authority stays until the last certificate that it signed has ended.
            parts[_FORMER] = Pair(parts[_AUTHORITY].certificate, b"")
            parts[_AUTHORITY] = parts.pop(_FOLLOWING)
            until = read_serving(material.serving, ()).not_after if material.serving else 0.0
            return Material(parts, until)
        case CertificateStep.FORGET:
            del parts[_FORMER]
        case CertificateStep.ISSUE:
            signer = parts[_AUTHORITY]
            parts[_SERVING] = certificates.issue(signer, settings.names, now, lives.serving_s)
    return replace(material, parts=parts)


def _read_authority(pair: Pair) -> Authority:
    return read_authority(pair.certificate, pair.key or None)


def _bytes(data: Mapping[str, object], name: str) -> bytes | None:
    """None where it is absent, empty or no base64."""
    try:
        return base64.b64decode(str(data[name]), validate=True) or None
    except (KeyError, ValueError):
        return None


SECRETS = Resource("v1", "secrets")
_MOST_STEPS = 12  # a look that needs more is fought over; the next look goes on


class SecretCertificates:
    """mpsd makes and renews them by itself. trusted: the fingerprints of the authorities that both
    webhook configurations name, as last seen."""

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
        """Takes every step that is due."""
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
                ends = {"serving": seen.serving, _AUTHORITY: seen.authority}
                ends |= {_FOLLOWING: seen.following, _FORMER: seen.former}
                expiries = {name: part.not_after for name, part in ends.items() if part}
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
        """None while both configurations do not name the authority that follows."""
        following = material.parts.get(_FOLLOWING)
        identity = certificates.fingerprint(following.certificate) if following else ""
        if identity not in self._trusted():
            self._since = None
            return None
        if self._since is None or self._since[0] != identity:
            self._since = (identity, now)
        return self._since[1]
