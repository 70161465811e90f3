"""How `mpsd webhook` runs: the part of `platform.settings` that only it has.

One rule: one row a setting, which says its flag, its variable, its default and what it may be.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mpsd.admission.rules.registration import FailurePolicy
from mpsd.model.names import NAMESPACE
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.rules.certificates import Lives
from mpsd.platform.settings import (
    LIMITS_DIRECTORY,
    LOG_FORMAT,
    Row,
    address,
    log_format,
    name,
    path,
    port,
    problem_with,
    read_rows,
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
ROWS: Mapping[str, Row] = {
    "address": Row("--address", "MPSD_ADDRESS", "0.0.0.0", address),  # noqa: S104
    "port": Row("--port", "MPSD_HTTPS_PORT", "9443", port),
    "metrics_port": Row("--metrics-port", "MPSD_METRICS_PORT", "9444", port),
    "limits_directory": Row("--limits", LIMITS_DIRECTORY, "", path),
    "namespace": Row("--namespace", "MPSD_NAMESPACE", NAMESPACE, name),
    "service": Row("--service", "MPSD_SERVICE", "mpsd-webhook", name),
    "kubeconfig": Row("--kubeconfig", "MPSD_KUBECONFIG", "", path),
    "certificate_directory": Row("--cert-dir", "MPSD_CERT_DIR", "", path),
    "url": Row("--url", "MPSD_URL", "", url),
    "failure_policy": Row("--failure-policy", "MPSD_FAILURE_POLICY", FailurePolicy.FAIL.value, _failure_policy),
    "authority_life": Row("--authority-life", "MPSD_AUTHORITY_LIFE", "3650d", seconds),
    "serving_life": Row("--serving-life", "MPSD_SERVING_LIFE", "30d", seconds),
    "settle": Row("--settle", "MPSD_SETTLE", "60s", seconds),
    "drain": Row("--drain", "MPSD_DRAIN", "10s", seconds),
    "log_format": Row("--log-format", LOG_FORMAT, "auto", log_format),
}


def webhook_settings(flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> WebhookSettings:
    """flags: by the names of ROWS, None where not given. InvalidInput with every problem."""
    read = read_rows(ROWS, flags, environment)
    lives = Lives(read.pop("authority_life"), read.pop("serving_life"), read.pop("settle"))
    uses_api = bool(read["kubeconfig"] or environment.get("KUBERNETES_SERVICE_HOST"))
    chosen = WebhookSettings(drain_s=read.pop("drain"), lives=lives, uses_api=uses_api, **read)
    problems = _contradictions(chosen)
    if problems:
        raise InvalidInput("settings", problems)
    return chosen


def _contradictions(chosen: WebhookSettings) -> list[Problem]:
    problems = []
    if not chosen.lives.are_sound:
        message = f"is below three times the serving life of {chosen.lives.serving_s:g} s"
        remedy = "let an authority live three times as long as what it signs, or longer"
        problems.append(problem_with(ROWS["authority_life"], f"{chosen.lives.authority_s:g} s", message, remedy))
    if not chosen.uses_api and chosen.certificate_directory is None:
        remedy = "run it in a pod, name a --kubeconfig, or bring certificates with --cert-dir"
        problems.append(problem_with(ROWS["kubeconfig"], "", "there is no API server to keep certificates in", remedy))
    return problems
