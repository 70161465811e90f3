"""Where the webhook's certificate comes from: a Secret that all replicas keep together, or a folder.

One rule: the Secret is changed one step at a time and only as it was read (resourceVersion), so that replicas which
come at once agree on whoever was first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mpsd.admission.settings import WebhookSettings
from mpsd.admission.webhook_secret import Material, Order, after, read_material, written
from mpsd.model.installed import LABEL, PRODUCT
from mpsd.platform.certificates import Pair, UnusableCertificate, fingerprints, read_serving
from mpsd.platform.kube import Conflict, Kube, NotFound, Object, Resource
from mpsd.platform.logs import logger
from mpsd.platform.rules.certificate_plan import Seen, Step, next_step

SECRETS = Resource("v1", "secrets")
_MOST_STEPS = 12  # a look that needs more is fought over; the next look goes on


@dataclass(frozen=True, slots=True)
class Certificates:
    """What to serve with, and what verifies it.

    authorities: the PEM bundle for both configurations; None where somebody else writes it there.
    expiries: when each certificate ends, by its part, in seconds since 1970.
    """

    serving: Pair
    authorities: bytes | None
    expiries: dict[str, float] = field(compare=False)


class CertificateSource(Protocol):
    async def look(self, now: float, /) -> Certificates:
        """KubeError or UnusableCertificate where there is none to be had now."""


class FolderCertificates:
    """tls.crt and tls.key of a folder, as a mounted Secret of type kubernetes.io/tls has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def look(self, _now: float, /) -> Certificates:
        try:
            pair = Pair((self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes())
        except OSError as error:
            raise UnusableCertificate(f"{error.filename} cannot be read: {error.strerror}") from None
        return Certificates(pair, None, {"serving": read_serving(pair, ()).not_after})


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

    async def _take(self, step: Step, secret: Object | None, material: Material, now: float) -> None:
        before = self._held if step is Step.BRING_BACK and self._held else material
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


def _expiries(seen: Seen) -> dict[str, float]:
    parts = {
        "serving": seen.serving,
        "authority": seen.authority,
        "following": seen.following,
        "former": seen.former,
    }
    return {name: part.not_after for name, part in parts.items() if part}
