"""How `mpsd webhook` runs: the part of `edge.settings` that only it has.

One rule: one row a setting, which says its flag, its variable, its default and what it may be.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mpsd.core.certificate_plan import DAY_S, Lives
from mpsd.core.problem import InvalidInput, Problem, shown
from mpsd.core.registration_plan import FailurePolicy
from mpsd.edge.settings import LIMITS_DIRECTORY, LOG_FORMAT

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}


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


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise ValueError("write a port number, such as 9443")
    return int(text)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("write an IP address, such as 0.0.0.0") from None


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise ValueError("write a name that Kubernetes takes: small letters, digits and -")
    return text


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _url(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("write it as https://host:port")
    return text


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    if not match:
        raise ValueError("write a time, such as 10s, 12h or 30d")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def _failure_policy(text: str) -> FailurePolicy:
    try:
        return FailurePolicy(text)
    except ValueError:
        raise ValueError("write Fail or Ignore") from None


def _log_format(text: str) -> str:
    if text not in {"auto", "json", "console"}:
        raise ValueError("write auto, json or console")
    return text


@dataclass(frozen=True, slots=True)
class _Row:
    """read: turns text into the value; a ValueError says what to write instead."""

    flag: str
    variable: str
    default: str
    read: Callable[[str], Any]


# MPSD_HTTPS_PORT and not MPSD_PORT: a Service named `mpsd` puts MPSD_PORT=tcp://… into every pod of its namespace.
ROWS: Mapping[str, _Row] = {
    "address": _Row("--address", "MPSD_ADDRESS", "0.0.0.0", _address),  # noqa: S104
    "port": _Row("--port", "MPSD_HTTPS_PORT", "9443", _port),
    "metrics_port": _Row("--metrics-port", "MPSD_METRICS_PORT", "9444", _port),
    "limits_directory": _Row("--limits", LIMITS_DIRECTORY, "", _path),
    "namespace": _Row("--namespace", "MPSD_NAMESPACE", "mpsd-system", _name),
    "service": _Row("--service", "MPSD_SERVICE", "mpsd-webhook", _name),
    "kubeconfig": _Row("--kubeconfig", "MPSD_KUBECONFIG", "", _path),
    "certificate_directory": _Row("--cert-dir", "MPSD_CERT_DIR", "", _path),
    "url": _Row("--url", "MPSD_URL", "", _url),
    "failure_policy": _Row("--failure-policy", "MPSD_FAILURE_POLICY", FailurePolicy.FAIL.value, _failure_policy),
    "authority_life": _Row("--authority-life", "MPSD_AUTHORITY_LIFE", "3650d", _seconds),
    "serving_life": _Row("--serving-life", "MPSD_SERVING_LIFE", "30d", _seconds),
    "settle": _Row("--settle", "MPSD_SETTLE", "60s", _seconds),
    "drain": _Row("--drain", "MPSD_DRAIN", "10s", _seconds),
    "log_format": _Row("--log-format", LOG_FORMAT, "auto", _log_format),
}


def webhook_settings(flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> WebhookSettings:
    """flags: by the names of ROWS, None where not given. InvalidInput with every problem."""
    read: dict[str, Any] = {}
    problems = []
    for name, row in ROWS.items():
        text = flags.get(name) or environment.get(row.variable) or row.default
        try:
            read[name] = row.read(text)
        except ValueError as error:
            problems.append(_problem(row, text, "cannot be used", str(error)))
    if problems:
        raise InvalidInput("settings", problems)
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
        problems.append(_problem(ROWS["authority_life"], f"{chosen.lives.authority_s:g} s", message, remedy))
    if not chosen.uses_api and chosen.certificate_directory is None:
        remedy = "run it in a pod, name a --kubeconfig, or bring certificates with --cert-dir"
        problems.append(_problem(ROWS["kubeconfig"], "", "there is no API server to keep certificates in", remedy))
    return problems


def _problem(row: _Row, value: str, message: str, remedy: str) -> Problem:
    return Problem("setting", f"{row.flag} ({row.variable})", shown(value) if value else "", message, remedy)
