"""The settings of `mpsd scheduler`.

Whoever may send it requests can have pods bound, so an address that others reach is accepted only
with TLS and an authority for client certificates.
"""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.problem import Problem
from mpsd.platform import settings
from mpsd.platform.settings import KUBECONFIG, Listen, Setting, address, path, port, seconds


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """port, metrics_port: 0 lets the kernel choose. kubeconfig None: the service account of this
    pod. certificate_directory, client_authority: both or neither. listen: where readers are served.
    drain_s: from SIGTERM until nobody can connect any more. in_pod: there is a service account."""

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
    log_level: str
    in_pod: bool


# MPSD_LISTEN_PORT and not MPSD_PORT: a Service named `mpsd` puts MPSD_PORT=tcp://… into every pod
# of its namespace.
SCHEDULER_SETTINGS = {
    "address": Setting("--address", "IP", "The address for kube-scheduler", address, "127.0.0.1"),
    "port": Setting(
        "--port",
        "PORT",
        "The port for kube-scheduler",
        port,
        "12345",
        other_variable="MPSD_LISTEN_PORT",
    ),
    "certificate_directory": Setting("--cert-dir", "DIR", "Folder of tls.crt and tls.key", path),
    "client_authority": Setting("--client-ca", "FILE", "CA of the accepted clients", path),
    "metrics_address": Setting(
        "--metrics-address", "IP", "The address for probes and metrics", address, settings.ANYWHERE
    ),
    "metrics_port": Setting("--metrics-port", "PORT", "Their port, without TLS", port, "9446"),
    "limits_directory": settings.LIMITS_DIRECTORY,
    "kubeconfig": KUBECONFIG,
    **settings.LISTEN_SETTINGS,
    "drain": Setting("--drain", "TIME", "How long to serve on after SIGTERM", seconds, "2s"),
    **settings.LOG_SETTINGS,
}


def scheduler_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> SchedulerSettings:
    """flags: by the names of SCHEDULER_SETTINGS, None where not given. InvalidInput with every
    problem."""
    read = settings.read_settings(SCHEDULER_SETTINGS, flags, environment)
    in_pod = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    listen = Listen(read.pop("listen"), read.pop("listen_certificate"))
    chosen = SchedulerSettings(listen=listen, drain_s=read.pop("drain"), in_pod=in_pod, **read)
    settings.refuse(_contradictions(chosen))
    return chosen


def _contradictions(chosen: SchedulerSettings) -> Iterator[Problem]:
    tls = {
        "certificate_directory": chosen.certificate_directory,
        "client_authority": chosen.client_authority,
    }
    missing = [name for name, where in tls.items() if where is None]
    if len(missing) == 1:
        (other,) = tls.keys() - set(missing)
        remedy = "give both for TLS with client certificates, or neither on a loopback address"
        yield SCHEDULER_SETTINGS[missing[0]].problem(
            "", f"is missing beside {SCHEDULER_SETTINGS[other].flag}", remedy
        )
    elif missing and not ipaddress.ip_address(chosen.address).is_loopback:
        message = "is reachable from other machines, and any client can have pods bound"
        remedy = (
            "listen on 127.0.0.1, or require client certificates with --cert-dir and --client-ca"
        )
        yield SCHEDULER_SETTINGS["address"].problem(chosen.address, message, remedy)
    if not (chosen.in_pod or chosen.kubeconfig):
        yield KUBECONFIG.problem(
            "", "there is no API server", "run it in a pod, or name a --kubeconfig"
        )
