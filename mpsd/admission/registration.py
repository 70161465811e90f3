"""Makes API servers ask the webhook, and keeps it so, without locking a cluster out of itself: the
namespaces that the webhook needs to start are exempt before `Fail` is set, and `Fail` is set only
once the API server itself has called the webhook; where it cannot for a while, `Ignore` is set
again. Its rights are in the chart (templates/webhook/rights.yaml): a right to create cannot name
objects, and podtemplates are created as a dry run, to see whether the API server calls."""

import base64
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mpsd.admission.rules import configurations as rules
from mpsd.admission.rules.configurations import Called, Calls, FailurePolicy, WebhookRegistration
from mpsd.admission.settings import WebhookSettings
from mpsd.platform.certificates import Certificates, fingerprints, validity
from mpsd.platform.kube import Conflict, Forbidden, Kube, KubeError, Object, PatchKind, Resource
from mpsd.platform.logs import logger
from mpsd.platform.rules.certificates import (
    ANNOTATION,
    Validity,
    annotation,
    must_write,
    read_annotation,
)

NAMESPACES = Resource("v1", "namespaces")
_POD_TEMPLATES = Resource("v1", "podtemplates")
# looks without a call of the API server after which `Fail` is taken back: a minute
_PATIENCE_LOOKS = 6
_QUIET_LOOKS = 3  # looks between two probes while calls come
_GROUP = "admissionregistration.k8s.io/v1"
CONFIGURATIONS: Mapping[str, Resource] = {
    "/validate": Resource(_GROUP, "validatingwebhookconfigurations"),
    "/mutate": Resource(_GROUP, "mutatingwebhookconfigurations"),
}


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """troubles: in words. changed: whether to look again at once."""

    troubles: tuple[str, ...] = ()
    changed: bool = False

    @property
    def is_settled(self) -> bool:
        return not self.troubles and not self.changed


_SETTLED = RegistrationOutcome()
_CHANGED = RegistrationOutcome(changed=True)


class Registrar:
    """check: asks the webhook itself for its certificate, given the authorities (PEM) to trust;
    empty when all is well, else the reason."""

    def __init__(
        self, kube: Kube, settings: WebhookSettings, check: Callable[[str], Awaitable[str]]
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._check = check
        self._calls = Calls()
        self._probed_at = float("-inf")
        self._fails = False  # whether the configuration that covers probes says so, as last seen
        # With certificates of a folder, as cert-manager has them, `Fail` is not ours to set.
        self._asks_for_calls = (
            not settings.certificate_directory and settings.failure_policy is FailurePolicy.FAIL
        )
        # why no API server is known to call the webhook
        self._uncalled = "it was not called yet" if self._asks_for_calls else ""
        self._named: dict[str, frozenset[str]] = {}
        self._stood: dict[str, tuple[Validity, float]] = {}
        self._may_patch = True  # as far as we know
        self._log = logger(role="webhook")

    def trusted(self) -> frozenset[str]:
        """The fingerprints of the authorities that every webhook of both configurations names."""
        if len(self._named) < len(CONFIGURATIONS):
            return frozenset()
        return frozenset.intersection(*self._named.values())

    async def look(self, served: Certificates) -> RegistrationOutcome:
        """Repairs what differs, one change of each object at a time, and tells when what is served
        ends."""
        names = dict.fromkeys(("kube-system", self._settings.namespace))
        exempted = [await self._tried(self._exempt(name)) for name in names]
        may_fail = all(outcome.is_settled for outcome in exempted) and not self._uncalled
        registered = [
            await self._tried(self._register(path, served, may_fail=may_fail))
            for path in CONFIGURATIONS
        ]
        outcomes = [*exempted, *registered]
        if self._asks_for_calls and len(self._named) == len(CONFIGURATIONS):
            outcomes.append(await self._ask_for_a_call())
        troubles = (trouble for outcome in outcomes for trouble in outcome.troubles)
        return RegistrationOutcome(tuple(troubles), any(outcome.changed for outcome in outcomes))

    async def _ask_for_a_call(self) -> RegistrationOutcome:
        """Seldom, while it does."""
        settings = self._settings
        now = time.monotonic()
        if not self._uncalled and now - self._probed_at < _QUIET_LOOKS * self._settings.look_s:
            return _SETTLED
        self._probed_at = now
        word = secrets.token_hex(16)
        probe = rules.probe(word)
        refusal = ""
        try:
            await self._kube.create(_POD_TEMPLATES, probe, rules.PROBE_NAMESPACE, dry_run=True)
        except KubeError as error:
            refusal = str(error)
        before = self._uncalled
        found = rules.called(refusal, word, fails=self._fails)
        self._calls = self._calls.after(found, now)
        place = settings.url or f"TCP port {settings.port} of its pods"
        self._uncalled = rules.why_uncalled(found, refusal, place)
        if self._uncalled:
            return RegistrationOutcome((self._uncalled,))
        return _CHANGED if before else _SETTLED

    async def _tried(self, attempt: Awaitable[RegistrationOutcome]) -> RegistrationOutcome:
        try:
            return await attempt
        except Conflict:
            return _CHANGED  # by somebody else; what they made of it is seen at the next look
        except KubeError as error:
            return RegistrationOutcome((str(error),))

    async def _exempt(self, name: str) -> RegistrationOutcome:
        patch = rules.exemption(await self._kube.get(NAMESPACES, name))
        if patch is None:
            return _SETTLED
        await self._kube.patch(NAMESPACES, name, patch, PatchKind.MERGE)
        self._log.info(
            "namespace exempted", namespace=name, reason="the webhook could not start without it"
        )
        return _CHANGED

    async def _register(
        self, path: str, served: Certificates, *, may_fail: bool
    ) -> RegistrationOutcome:
        resource = CONFIGURATIONS[path]
        settings = self._settings
        name = settings.service
        authorities = served.authorities and base64.b64encode(served.authorities).decode()
        self._named.pop(path, None)
        must_ignore = self._calls.must_ignore(time.monotonic(), _PATIENCE_LOOKS * settings.look_s)
        wanted = WebhookRegistration(
            service=name,
            namespace=settings.namespace,
            path=path,
            url=settings.url,
            authorities=authorities or None,
            failure_policy=settings.failure_policy,
        )
        seen = await self._kube.get(resource, name)
        if path == "/validate":
            self._fails = rules.fails(seen)
        trouble = ""
        if rules.is_registered(seen, wanted):
            trouble = await self._unreached(seen)
        may_fail = may_fail and not trouble
        change = rules.repair(seen, wanted, may_fail=may_fail, must_ignore=must_ignore)
        if change is None:
            self._named[path] = _named_by_all(seen)
            await self._report_calls(path, seen)
            await self._report_end(path, seen, validity(served.serving.certificate))
            if not trouble:
                return _SETTLED
            return RegistrationOutcome((f"{resource.plural} {name}: {trouble}",))
        changes = list(change.changes)
        if not await self._patch(path, seen, {}, webhooks=change.webhooks):
            what = f"{resource.plural} {name}: {', '.join(changes)} must change, which this webhook"
            remedy = "set webhook.failClosed (docs/install-webhook.md)"
            return RegistrationOutcome((f"{what} may not do; {remedy}",))
        which = {"configuration": resource.plural, "name": name}
        self._log.info("configuration changed", **which, changes=changes)
        return _CHANGED

    async def _report_calls(self, path: str, seen: Object) -> None:
        """Says to `kubectl mps doctor` that API servers cannot call the webhook."""
        value = "true" if self._calls.last is Called.NO else None
        there = (seen["metadata"].get("annotations") or {}).get(rules.NOT_CALLED)
        if self._calls.last is not Called.UNKNOWN and there != value:
            await self._patch(path, seen, {"annotations": {rules.NOT_CALLED: value}})

    async def _report_end(self, path: str, seen: Object, own: Validity) -> None:
        """Writes when the certificate that we serve ends."""
        now = time.monotonic()
        there = read_annotation(seen)
        if self._may_patch and must_write(there, own, self._stood.get(path), now):
            value = {ANNOTATION: annotation(own)}
            if await self._patch(path, seen, {"annotations": value}):
                plural = CONFIGURATIONS[path].plural
                which = {"configuration": plural, "name": self._settings.service}
                self._log.info("serving certificate reported", **which, **value)
        elif there is None or there.ends_at != own.ends_at:
            return
        self._stood[path] = (own, now)

    async def _patch(self, path: str, seen: Object, metadata: Object, **fields: object) -> bool:
        """Where it is as it was seen; Conflict. False: not ours to change, as the certificates are
        not."""
        version = seen["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, **metadata}, **fields}
        name = self._settings.service
        try:
            await self._kube.patch(CONFIGURATIONS[path], name, patch, PatchKind.MERGE)
        except Forbidden:
            if self._settings.certificate_directory is None:
                raise
            self._may_patch = False
        return self._may_patch

    async def _unreached(self, seen: Object) -> str:
        """Why we do not answer as this configuration would have it; empty when we do."""
        for bundle in dict.fromkeys(rules.authorities_named(seen)):
            try:
                trouble = await self._check(base64.b64decode(bundle).decode())
            except ValueError:
                trouble = "its caBundle cannot be read"
            if trouble:
                return trouble
        return ""


def _named_by_all(configuration: Object) -> frozenset[str]:
    named = []
    for bundle in rules.authorities_named(configuration):
        try:
            named.append(fingerprints(base64.b64decode(bundle)))
        except ValueError:
            return frozenset()
    return frozenset.intersection(*named) if named else frozenset()
