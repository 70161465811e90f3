"""`mpsd webhook`: one replica of the admission webhook."""

import asyncio
import sys
from typing import Annotated

from mpsd.admission.settings import ROWS, WebhookSettings, webhook_settings
from mpsd.admission.webhook import WebhookRole
from mpsd.platform import event_loop, logs
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.kube import Unavailable, open_kube
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.listener import PortTaken
from mpsd.platform.options import LimitsDirectory, LogFormat, setting

Text = str | None


def webhook(
    port: Annotated[Text, setting(ROWS["port"], "PORT", "Reviews, over TLS")] = None,
    metrics_port: Annotated[Text, setting(ROWS["metrics_port"], "PORT", "Probes and metrics, without TLS")] = None,
    address: Annotated[Text, setting(ROWS["address"], "IP", "Where to listen")] = None,
    limits: LimitsDirectory = None,
    namespace: Annotated[Text, setting(ROWS["namespace"], "NAME", "Where the Service and the Secret are")] = None,
    service: Annotated[
        Text, setting(ROWS["service"], "NAME", "The name of the Service and of both configurations")
    ] = None,
    kubeconfig: Annotated[Text, setting(ROWS["kubeconfig"], "FILE", "The API server; else that of this pod")] = None,
    cert_dir: Annotated[
        Text, setting(ROWS["certificate_directory"], "DIR", "tls.crt and tls.key, as cert-manager has them mounted")
    ] = None,
    url: Annotated[Text, setting(ROWS["url"], "URL", "Be registered by this address instead of the Service")] = None,
    failure_policy: Annotated[
        Text, setting(ROWS["failure_policy"], "POLICY", "What API servers do while no replica answers: Fail or Ignore")
    ] = None,
    authority_life: Annotated[Text, setting(ROWS["authority_life"], "TIME", "How long a CA lasts")] = None,
    serving_life: Annotated[Text, setting(ROWS["serving_life"], "TIME", "How long a serving certificate lasts")] = None,
    settle: Annotated[Text, setting(ROWS["settle"], "TIME", "From naming a new CA until it signs")] = None,
    drain: Annotated[Text, setting(ROWS["drain"], "TIME", "How long to serve on after SIGTERM")] = None,
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
    except (PortTaken, Unavailable) as error:
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
