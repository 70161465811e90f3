"""How `mpsd scheduler` runs: the part of `platform.settings` that only it has.

One rule: whoever may ask can have pods bound, so an address that others reach is taken only with TLS and an authority
for client certificates.
"""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.settings import (
    LIMITS_DIRECTORY,
    LOG_FORMAT,
    Listen,
    Row,
    address,
    log_format,
    path,
    port,
    problem_with,
    read_rows,
    seconds,
)
from mpsd.platform.settings import ROWS as LISTEN_ROWS


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """port, metrics_port: 0 lets the kernel choose. kubeconfig None: the service account of this pod.

    certificate_directory, client_authority: both are named, for TLS with client certificates, or neither is.
    listen: where readers are served. drain_s: from SIGTERM until nobody can connect any more.
    in_pod: whether there is a service account.
    """

    address: str
    port: int
    metrics_address: str
    metrics_port: int
    certificate_directory: Path | None
    client_authority: Path | None
    limits_directory: Path | None
    kubeconfig: Path | None
    listen: Listen
    drain_s: float
    log_format: str
    in_pod: bool


# MPSD_LISTEN_PORT and not MPSD_PORT: a Service named `mpsd` puts MPSD_PORT=tcp://… into every pod of its namespace.
ROWS: Mapping[str, Row] = {
    "address": Row("--address", "MPSD_ADDRESS", "127.0.0.1", address),
    "port": Row("--port", "MPSD_LISTEN_PORT", "12345", port),
    "metrics_address": Row("--metrics-address", "MPSD_METRICS_ADDRESS", "0.0.0.0", address),  # noqa: S104
    "metrics_port": Row("--metrics-port", "MPSD_METRICS_PORT", "9446", port),
    "certificate_directory": Row("--cert-dir", "MPSD_CERT_DIR", "", path),
    "client_authority": Row("--client-ca", "MPSD_CLIENT_CA", "", path),
    "limits_directory": Row("--limits", LIMITS_DIRECTORY, "", path),
    "kubeconfig": Row("--kubeconfig", "MPSD_KUBECONFIG", "", path),
    **LISTEN_ROWS,
    "drain": Row("--drain", "MPSD_DRAIN", "2s", seconds),
    "log_format": Row("--log-format", LOG_FORMAT, "auto", log_format),
}


def scheduler_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> SchedulerSettings:
    """flags: by the names of ROWS, None where not given. InvalidInput with every problem."""
    read = read_rows(ROWS, flags, environment)
    in_pod = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    listen = Listen(read.pop("listen"), read.pop("listen_certificate"))
    chosen = SchedulerSettings(listen=listen, drain_s=read.pop("drain"), in_pod=in_pod, **read)
    problems = [*_contradictions(chosen)]
    if problems:
        raise InvalidInput("settings", problems)
    return chosen


def _contradictions(chosen: SchedulerSettings) -> Iterator[Problem]:
    tls = {"certificate_directory": chosen.certificate_directory, "client_authority": chosen.client_authority}
    missing = [name for name, where in tls.items() if where is None]
    if len(missing) == 1:
        (other,) = tls.keys() - set(missing)
        remedy = "give both for TLS with client certificates, or neither on a loopback address"
        yield problem_with(ROWS[missing[0]], "", f"is missing beside {ROWS[other].flag}", remedy)
    elif missing and not ipaddress.ip_address(chosen.address).is_loopback:
        message = "can be reached by others, and whoever may ask can have pods bound"
        remedy = "listen on 127.0.0.1, or let only client certificates in with --cert-dir and --client-ca"
        yield problem_with(ROWS["address"], chosen.address, message, remedy)
    if not (chosen.in_pod or chosen.kubeconfig):
        yield problem_with(ROWS["kubeconfig"], "", "there is no API server", "run it in a pod, or name a --kubeconfig")
