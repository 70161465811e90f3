"""The settings of `mpsd webhook`."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mpsd.admission.rules.configurations import FailurePolicy
from mpsd.model.names import NAMESPACE
from mpsd.model.problem import Problem
from mpsd.platform import settings
from mpsd.platform.rules.certificates import Lives
from mpsd.platform.settings import (
    ANYWHERE,
    KUBECONFIG,
    LIMITS_DIRECTORY,
    LOG_SETTINGS,
    Setting,
    address,
    name,
    path,
    port,
    seconds,
)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """service: the name of the Service and of both configurations. port, metrics_port: 0 lets the
    kernel choose. kubeconfig None: the service account of this pod. certificate_directory None:
    mpsd makes its certificates itself. client_authority None: whoever connects is answered. url:
    empty for the Service. drain_s: from SIGTERM until nobody can connect any more. uses_api:
    whether there is an API server."""

    address: str
    port: int
    metrics_port: int
    limits_directory: Path | None
    namespace: str
    service: str
    kubeconfig: Path | None
    certificate_directory: Path | None
    client_authority: Path | None
    url: str
    failure_policy: FailurePolicy
    lives: Lives
    drain_s: float
    log_format: str
    log_level: str
    uses_api: bool

    @property
    def secret(self) -> str:
        return f"{self.service}-certificates"

    @property
    def host_name(self) -> str:
        """By which API servers verify us."""
        return urlsplit(self.url).hostname or f"{self.service}.{self.namespace}.svc"

    @property
    def look_s(self) -> float:
        """Between two looks; even a certificate that lives for seconds is renewed in time."""
        return min(10.0, self.lives.serving_s / 50)

    @property
    def names(self) -> frozenset[str]:
        name = f"{self.service}.{self.namespace}"
        return frozenset({self.host_name, name, f"{name}.svc", f"{name}.svc.cluster.local"})


def _failure_policy(text: str) -> FailurePolicy:
    try:
        return FailurePolicy(text)
    except ValueError:
        raise ValueError("write Fail or Ignore") from None


# MPSD_HTTPS_PORT and not MPSD_PORT: a Service named `mpsd` puts MPSD_PORT=tcp://… into every pod of
# its namespace.
WEBHOOK_SETTINGS = {
    "port": Setting(
        "--port", "PORT", "Reviews, over TLS", port, "9443", other_variable="MPSD_HTTPS_PORT"
    ),
    "metrics_port": Setting(
        "--metrics-port", "PORT", "Probes and metrics, without TLS", port, "9444"
    ),
    "address": Setting("--address", "IP", "The address to listen on", address, ANYWHERE),
    "limits_directory": LIMITS_DIRECTORY,
    "namespace": Setting(
        "--namespace", "NAME", "The namespace of the Service and the Secret", name, NAMESPACE
    ),
    "service": Setting(
        "--service",
        "NAME",
        "The name of the Service and of both configurations",
        name,
        "mpsd-webhook",
    ),
    "kubeconfig": KUBECONFIG,
    "certificate_directory": Setting(
        "--cert-dir", "DIR", "tls.crt and tls.key, as cert-manager has them mounted", path
    ),
    "client_authority": Setting(
        "--client-ca",
        "FILE",
        "CA of API servers' certificates; nobody else is answered",
        path,
    ),
    "url": Setting("--url", "URL", "Register this address instead of the Service", settings.url),
    "failure_policy": Setting(
        "--failure-policy",
        "POLICY",
        "What API servers do while no replica answers: Fail or Ignore",
        _failure_policy,
        FailurePolicy.FAIL.value,
    ),
    "authority_life": Setting(
        "--authority-life", "TIME", "How long a CA is valid", seconds, "3650d"
    ),
    "serving_life": Setting(
        "--serving-life", "TIME", "How long a serving certificate is valid", seconds, "30d"
    ),
    "settle": Setting(
        "--settle", "TIME", "Delay between publishing a new CA and using it", seconds, "60s"
    ),
    "drain": Setting("--drain", "TIME", "How long to serve on after SIGTERM", seconds, "10s"),
    **LOG_SETTINGS,
}


def webhook_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> WebhookSettings:
    """flags: by the names of WEBHOOK_SETTINGS. InvalidInput."""
    read = settings.read_settings(WEBHOOK_SETTINGS, flags, environment)
    lives = Lives(read.pop("authority_life"), read.pop("serving_life"), read.pop("settle"))
    uses_api = bool(read["kubeconfig"] or environment.get("KUBERNETES_SERVICE_HOST"))
    chosen = WebhookSettings(drain_s=read.pop("drain"), lives=lives, uses_api=uses_api, **read)
    settings.refuse(_contradictions(chosen))
    return chosen


def _contradictions(chosen: WebhookSettings) -> Iterator[Problem]:
    if not chosen.lives.are_sound:
        message = f"is below three times the serving life of {chosen.lives.serving_s:g} s"
        remedy = "let an authority live three times as long as what it signs, or longer"
        yield WEBHOOK_SETTINGS["authority_life"].problem(
            f"{chosen.lives.authority_s:g} s", message, remedy
        )
    if not chosen.uses_api and chosen.certificate_directory is None:
        remedy = "run it in a pod, name a --kubeconfig, or bring certificates with --cert-dir"
        yield KUBECONFIG.problem("", "there is no API server to keep certificates in", remedy)
