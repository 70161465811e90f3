"""`mpsd webhook`: one replica of the admission webhook."""

import asyncio
import sys
from typing import Annotated, Any

import typer

from mpsd.cli.options import LimitsDirectory, LogFormat
from mpsd.cli.output import ExitCode, complaints
from mpsd.edge import event_loop, logs
from mpsd.edge.https_server import PortTaken
from mpsd.edge.kube import Away, open_kube
from mpsd.edge.limits_files import LimitsFiles
from mpsd.edge.webhook_settings import ROWS, WebhookSettings, webhook_settings
from mpsd.roles.webhook import WebhookRole


def _option(name: str, metavar: str, text: str) -> Any:
    """The flag of a setting; its help says the variable and the default too."""
    row = ROWS[name]
    default = f"; {row.default}" if row.default else ""
    return typer.Option(row.flag, metavar=metavar, help=f"{text} ({row.variable}{default}).", show_default=False)


Text = str | None


def webhook(
    port: Annotated[Text, _option("port", "PORT", "Reviews, over TLS")] = None,
    metrics_port: Annotated[Text, _option("metrics_port", "PORT", "Probes and metrics, without TLS")] = None,
    address: Annotated[Text, _option("address", "IP", "Where to listen")] = None,
    limits: LimitsDirectory = None,
    namespace: Annotated[Text, _option("namespace", "NAME", "Where the Service and the Secret are")] = None,
    service: Annotated[Text, _option("service", "NAME", "The name of the Service and of both configurations")] = None,
    kubeconfig: Annotated[Text, _option("kubeconfig", "FILE", "The API server; else that of this pod")] = None,
    cert_dir: Annotated[
        Text, _option("certificate_directory", "DIR", "tls.crt and tls.key, as cert-manager has them mounted")
    ] = None,
    url: Annotated[Text, _option("url", "URL", "Be registered by this address instead of the Service")] = None,
    failure_policy: Annotated[
        Text, _option("failure_policy", "POLICY", "What API servers do while no replica answers: Fail or Ignore")
    ] = None,
    authority_life: Annotated[Text, _option("authority_life", "TIME", "How long a CA lasts")] = None,
    serving_life: Annotated[Text, _option("serving_life", "TIME", "How long a serving certificate lasts")] = None,
    settle: Annotated[Text, _option("settle", "TIME", "From naming a new CA until it signs")] = None,
    drain: Annotated[Text, _option("drain", "TIME", "How long to serve on after SIGTERM")] = None,
    log_format: LogFormat = None,
) -> None:
    """Answer admission reviews: refuse what breaks sharing, in words that help.

    In a cluster it needs no flags: it makes its certificates, registers itself and keeps both in order. What it needs
    for that is in manifests/.

        mpsd webhook --kubeconfig ~/.kube/config --url https://10.0.0.7:9443
        mpsd webhook --cert-dir /certs --port 9443
    """
    given = {
        "port": port,
        "metrics_port": metrics_port,
        "address": address,
        "limits_directory": limits,
        "namespace": namespace,
        "service": service,
        "kubeconfig": kubeconfig,
        "certificate_directory": cert_dir,
        "url": url,
        "failure_policy": failure_policy,
        "authority_life": authority_life,
        "serving_life": serving_life,
        "settle": settle,
        "drain": drain,
        "log_format": log_format,
    }
    chosen = webhook_settings(given)
    logs.configure(chosen.log_format)
    try:
        event_loop.run(_serve(chosen))
    except (PortTaken, Away) as error:
        complaints().print(f"mpsd webhook: {error}")
        sys.exit(ExitCode.NO)


async def _serve(chosen: WebhookSettings) -> int:
    kube = open_kube(chosen.kubeconfig) if chosen.uses_api else None
    role = WebhookRole(chosen, LimitsFiles(chosen.limits_directory), kube)
    stop = asyncio.Event()
    event_loop.on_stop_signals(stop.set, role.hurry)
    await role.run(stop)
    if kube:
        kube.close()
    return ExitCode.YES
