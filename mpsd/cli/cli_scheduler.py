"""`mpsd scheduler`: the extender that kube-scheduler asks which nodes have a GPU with room."""

import asyncio
import sys
from typing import Annotated

from mpsd.cli.roles_scheduler import SchedulerRole
from mpsd.platform import event_loop, logs
from mpsd.platform.kube import Away, open_kube
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.listen_settings import CannotListen
from mpsd.platform.listener import PortTaken
from mpsd.platform.options import LimitsDirectory, ListenAt, ListenCertificate, LogFormat, setting
from mpsd.platform.output import ExitCode, complaints
from mpsd.scheduler.settings import ROWS, SchedulerSettings, scheduler_settings

Text = str | None


def scheduler(
    address: Annotated[Text, setting(ROWS["address"], "IP", "Where kube-scheduler comes in")] = None,
    port: Annotated[Text, setting(ROWS["port"], "PORT", "The port there")] = None,
    cert_dir: Annotated[
        Text, setting(ROWS["certificate_directory"], "DIR", "tls.crt and tls.key, to be shown to kube-scheduler")
    ] = None,
    client_ca: Annotated[
        Text, setting(ROWS["client_authority"], "FILE", "Whose client certificates are let in, and nobody else")
    ] = None,
    metrics_address: Annotated[Text, setting(ROWS["metrics_address"], "IP", "Where probes and metrics are")] = None,
    metrics_port: Annotated[Text, setting(ROWS["metrics_port"], "PORT", "The port there, without TLS")] = None,
    limits: LimitsDirectory = None,
    kubeconfig: Annotated[Text, setting(ROWS["kubeconfig"], "FILE", "The API server; else that of this pod")] = None,
    listen: ListenAt = None,
    listen_certificate: ListenCertificate = None,
    drain: Annotated[Text, setting(ROWS["drain"], "TIME", "How long to serve on after SIGTERM")] = None,
    log_format: LogFormat = None,
) -> None:
    """Tell kube-scheduler which nodes have one GPU with room, and bind pods to it.

    Without it, kube-scheduler adds up what a node's GPUs have free, and sends a pod of 7 GiB to a node with 4 and 3.
    It keeps nothing of its own: kill it, and it reads its books from the API again.

    Beside kube-scheduler, in its pod or on its host's network, it needs no flags. kube-scheduler finds it by these
    lines of its configuration (apiVersion kubescheduler.config.k8s.io/v1; v1beta1 for Kubernetes 1.20):

        extenders:
          - urlPrefix: http://127.0.0.1:12345
            filterVerb: filter
            prioritizeVerb: prioritize
            preemptVerb: preempt
            bindVerb: bind
            weight: 10
            nodeCacheCapable: true
            httpTimeout: 10s
            managedResources:
              - name: aliyun.com/gpu-mem

    Whoever may ask can have pods bound, so on an address that others reach it lets in client certificates only. Take an
    authority that signs for kube-scheduler and for nobody else; renewed files count without a restart. Then the lines
    are urlPrefix: https://NAME:12345, enableHTTPS: true, and tlsConfig with certFile, keyFile and caFile:

        mpsd scheduler --address 0.0.0.0 --cert-dir /certs --client-ca /ca/ca.crt

    What it knows, in words and as gpushare's extender tells it:

        curl -s http://127.0.0.1:9446/readyz         whether it answers, or why not
        curl -s http://127.0.0.1:12345/inspect/NODE  a node's GPUs, and who has what
        mpsd scheduler --kubeconfig ~/.kube/config   outside a cluster, to try it
    """
    given = {
        "address": address,
        "port": port,
        "certificate_directory": cert_dir,
        "client_authority": client_ca,
        "metrics_address": metrics_address,
        "metrics_port": metrics_port,
        "limits_directory": limits,
        "kubeconfig": kubeconfig,
        "listen": listen,
        "listen_certificate": listen_certificate,
        "drain": drain,
        "log_format": log_format,
    }
    chosen = scheduler_settings(given)
    logs.configure(chosen.log_format)
    try:
        event_loop.run(_serve(chosen))
    except (PortTaken, CannotListen, Away) as error:
        complaints().print(f"mpsd scheduler: {error}")
        sys.exit(ExitCode.NO)


async def _serve(chosen: SchedulerSettings) -> int:
    kube = open_kube(chosen.kubeconfig)
    role = SchedulerRole(chosen, LimitsFiles(chosen.limits_directory), kube)
    stop = asyncio.Event()
    event_loop.on_stop_signals(stop.set, role.hurry)
    await role.run(stop)
    kube.close()
    return ExitCode.YES
