"""The settings of `mpsd webhook`."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mpsd.admission.rules.registration import FailurePolicy
from mpsd.model.names import NAMESPACE
from mpsd.model.problem import Problem
from mpsd.platform.rules.certificates import Lives
from mpsd.platform.settings import (
    KUBECONFIG,
    LIMITS_DIRECTORY,
    LOG_FORMAT,
    Setting,
    address,
    name,
    path,
    port,
    read_settings,
    refuse,
    seconds,
    url,
)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """service: the name of the Service and of both configurations; the Secret's is this and `-certificates`.

    port, metrics_port: 0 lets the kernel choose. kubeconfig None: the service account of this pod.
    certificate_directory None: mpsd makes its certificates itself. url: empty where the API server comes through the
    Service.
    drain_s: from SIGTERM until nobody can connect any more. uses_api: whether there is an API server to talk to.
    """

    address: str
    port: int
    metrics_port: int
    limits_directory: Path | None
    namespace: str
    service: str
    kubeconfig: Path | None
    certificate_directory: Path | None
    url: str
    failure_policy: FailurePolicy
    lives: Lives
    drain_s: float
    log_format: str
    uses_api: bool

    @property
    def secret(self) -> str:
        return f"{self.service}-certificates"

    @property
    def host_name(self) -> str:
        """The name by which API servers verify us."""
        return urlsplit(self.url).hostname or f"{self.service}.{self.namespace}.svc"

    @property
    def names(self) -> frozenset[str]:
        """All the names that the serving certificate is good for."""
        service = f"{self.service}.{self.namespace}"
        return frozenset({self.host_name, service, f"{service}.svc", f"{service}.svc.cluster.local"})


def _failure_policy(text: str) -> FailurePolicy:
    try:
        return FailurePolicy(text)
    except ValueError:
        raise ValueError("write Fail or Ignore") from None


# MPSD_HTTPS_PORT and not MPSD_PORT: a Service named `mpsd` puts MPSD_PORT=tcp://… into every pod of its namespace.
WEBHOOK_SETTINGS = {
    "port": Setting("--port", "MPSD_HTTPS_PORT", "9443", port, "PORT", "Reviews, over TLS"),
    "metrics_port": Setting(
        "--metrics-port", "MPSD_METRICS_PORT", "9444", port, "PORT", "Probes and metrics, without TLS"
    ),
    "address": Setting("--address", "MPSD_ADDRESS", "0.0.0.0", address, "IP", "Where to listen"),  # noqa: S104
    "limits_directory": LIMITS_DIRECTORY,
    "namespace": Setting(
        "--namespace", "MPSD_NAMESPACE", NAMESPACE, name, "NAME", "Where the Service and the Secret are"
    ),
    "service": Setting(
        "--service", "MPSD_SERVICE", "mpsd-webhook", name, "NAME", "The name of the Service and of both configurations"
    ),
    "kubeconfig": KUBECONFIG,
    "certificate_directory": Setting(
        "--cert-dir", "MPSD_CERT_DIR", "", path, "DIR", "tls.crt and tls.key, as cert-manager has them mounted"
    ),
    "url": Setting("--url", "MPSD_URL", "", url, "URL", "Be registered by this address instead of the Service"),
    "failure_policy": Setting(
        "--failure-policy",
        "MPSD_FAILURE_POLICY",
        FailurePolicy.FAIL.value,
        _failure_policy,
        "POLICY",
        "What API servers do while no replica answers: Fail or Ignore",
    ),
    "authority_life": Setting(
        "--authority-life", "MPSD_AUTHORITY_LIFE", "3650d", seconds, "TIME", "How long a CA lasts"
    ),
    "serving_life": Setting(
        "--serving-life", "MPSD_SERVING_LIFE", "30d", seconds, "TIME", "How long a serving certificate lasts"
    ),
    "settle": Setting(
        "--settle", "MPSD_SETTLE", "60s", seconds, "TIME", "Delay between publishing a new CA and using it"
    ),
    "drain": Setting("--drain", "MPSD_DRAIN", "10s", seconds, "TIME", "How long to serve on after SIGTERM"),
    "log_format": LOG_FORMAT,
}


def webhook_settings(flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> WebhookSettings:
    """flags: by the names of WEBHOOK_SETTINGS, None where not given. InvalidInput with every problem."""
    read = read_settings(WEBHOOK_SETTINGS, flags, environment)
    lives = Lives(read.pop("authority_life"), read.pop("serving_life"), read.pop("settle"))
    uses_api = bool(read["kubeconfig"] or environment.get("KUBERNETES_SERVICE_HOST"))
    chosen = WebhookSettings(drain_s=read.pop("drain"), lives=lives, uses_api=uses_api, **read)
    refuse(_contradictions(chosen))
    return chosen


def _contradictions(chosen: WebhookSettings) -> Iterator[Problem]:
    if not chosen.lives.are_sound:
        message = f"is below three times the serving life of {chosen.lives.serving_s:g} s"
        remedy = "let an authority live three times as long as what it signs, or longer"
        yield WEBHOOK_SETTINGS["authority_life"].problem(f"{chosen.lives.authority_s:g} s", message, remedy)
    if not chosen.uses_api and chosen.certificate_directory is None:
        remedy = "run it in a pod, name a --kubeconfig, or bring certificates with --cert-dir"
        yield KUBECONFIG.problem("", "there is no API server to keep certificates in", remedy)
