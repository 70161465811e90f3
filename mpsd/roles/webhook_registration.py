"""Makes API servers ask the webhook, and keeps it so.

One rule: nothing here can lock a cluster out of itself. The namespaces that the webhook needs to start are exempt
before `Fail` is set, and `Fail` is set only once the webhook has been reached with the very authorities that the
configuration names.

Rights, with the default name mpsd-webhook in the namespace mpsd-system:

    get, patch   validatingwebhookconfigurations, mutatingwebhookconfigurations   mpsd-webhook
    get, patch   namespaces            kube-system, mpsd-system
    get          namespaces            any (labels that choose a rule's mode)
    get          configmaps            any (keys behind envFrom)
    get, update  secrets (mpsd-system) mpsd-webhook-certificates
    create       secrets (mpsd-system) (a right to create cannot name objects)
"""

import base64
from collections.abc import Awaitable, Callable, Mapping

from mpsd.core.registration_plan import (
    FailurePolicy,
    Registration,
    authorities_named,
    exemption,
    is_registered,
    repair,
)
from mpsd.edge.certificates import fingerprints
from mpsd.edge.kube import Conflict, Kube, KubeError, Object, PatchKind, Resource
from mpsd.edge.logs import logger
from mpsd.edge.webhook_settings import WebhookSettings

NAMESPACES = Resource("v1", "namespaces")
_GROUP = "admissionregistration.k8s.io/v1"
CONFIGURATIONS: Mapping[str, Resource] = {
    "/validate": Resource(_GROUP, "validatingwebhookconfigurations"),
    "/mutate": Resource(_GROUP, "mutatingwebhookconfigurations"),
}


class Registrar:
    """check: asks the webhook itself for its certificate, given the authorities (PEM) to trust; empty when all is well,
    else the reason."""

    def __init__(self, kube: Kube, settings: WebhookSettings, check: Callable[[str], Awaitable[str]]) -> None:
        self._kube = kube
        self._settings = settings
        self._check = check
        self._named: dict[str, frozenset[str]] = {}
        self._log = logger(role="webhook")

    def trusted(self) -> frozenset[str]:
        """The fingerprints of the authorities that every webhook of both configurations names."""
        if len(self._named) < len(CONFIGURATIONS):
            return frozenset()
        return frozenset.intersection(*self._named.values())

    async def look(self, authorities: bytes | None) -> tuple[str, ...]:
        """Repairs what differs. Gives what still stands in the way, in words; nothing once all is as it must be."""
        troubles = [await self._exempt(name) for name in dict.fromkeys(("kube-system", self._settings.namespace))]
        exempt = not any(troubles)
        for path in CONFIGURATIONS:
            try:
                troubles.append(await self._register(path, authorities, exempt=exempt))
            except KubeError as error:
                self._named.pop(path, None)
                troubles.append(str(error))
        return tuple(trouble for trouble in troubles if trouble)

    async def _exempt(self, name: str) -> str:
        try:
            patch = exemption(await self._kube.get(NAMESPACES, name))
            if patch:
                await self._kube.patch(NAMESPACES, name, patch, PatchKind.MERGE)
                self._log.info("namespace exempted", namespace=name, reason="the webhook could not start without it")
        except KubeError as error:
            return str(error)
        return ""

    async def _register(self, path: str, authorities: bytes | None, *, exempt: bool) -> str:
        """One change of one configuration; what still stands in the way."""
        resource, name = CONFIGURATIONS[path], self._settings.service
        wanted = self._wanted(path, authorities)
        seen = await self._kube.get(resource, name)
        reached = ""
        if is_registered(seen, wanted):
            reached = await self._reached(seen)
        change = repair(seen, wanted, may_fail=exempt and not reached)
        if change is None:
            self._named[path] = _named_by_all(seen)
            return reached and f"{resource.plural} {name}: {reached}"
        metadata = {"resourceVersion": seen["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "webhooks": change.webhooks}
        try:
            await self._kube.patch(resource, name, patch, PatchKind.MERGE)
        except Conflict:
            return f"{resource.plural} {name} has just been changed by somebody else"
        self._log.info("configuration changed", configuration=resource.plural, name=name, changes=list(change.changes))
        return f"{resource.plural} {name} has just been changed"  # the next look says whether that was all

    async def _reached(self, seen: Object) -> str:
        """Why we do not answer as this configuration would have it; empty when we do."""
        for bundle in dict.fromkeys(authorities_named(seen)):
            try:
                trouble = await self._check(base64.b64decode(bundle).decode())
            except ValueError:
                trouble = "its caBundle cannot be read"
            if trouble:
                return trouble
        return ""

    def _wanted(self, path: str, authorities: bytes | None) -> Registration:
        return Registration(
            self._settings.service,
            self._settings.namespace,
            path,
            self._settings.url,
            None if authorities is None else base64.b64encode(authorities).decode(),
            FailurePolicy(self._settings.failure_policy),
        )


def _named_by_all(configuration: Object) -> frozenset[str]:
    named = []
    for bundle in authorities_named(configuration):
        try:
            named.append(fingerprints(base64.b64decode(bundle)))
        except ValueError:
            named.append(frozenset())
    return frozenset.intersection(*named) if named else frozenset()
