"""`mpsd agent`: the part that grants and watches."""

from typing import TYPE_CHECKING, Annotated

from mpsd.cli.running import AgentPlace, MakeClusterPart, MakeReviewer, serve
from mpsd.kubelet.settings import ROWS, KubeletSettings, kubelet_settings
from mpsd.platform.imports import lasting
from mpsd.platform.options import (
    LimitsDirectory,
    ListenAt,
    ListenCertificate,
    LogFormat,
    RunDirectory,
    Simulate,
    setting,
)
from mpsd.platform.settings import listen_settings, settings

if TYPE_CHECKING:
    from mpsd.platform.readers import Reviewer

Text = str | None


def agent(
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    node: Annotated[Text, setting(ROWS["node"], "NAME", "This node of a cluster: serve its kubelet")] = None,
    kubelet_dir: Annotated[Text, setting(ROWS["kubelet_directory"], "DIR", "Kubelet's root")] = None,
    pod_resources: Annotated[
        Text, setting(ROWS["pod_resources"], "SOCKET", "Where kubelet says who holds what; else below its root")
    ] = None,
    kubeconfig: Annotated[Text, setting(ROWS["kubeconfig"], "FILE", "The API server; else that of this pod")] = None,
    device_list_strategy: Annotated[
        Text, setting(ROWS["device_list_strategy"], "HOW", "How containers get their GPU, in NVIDIA's words")
    ] = None,
    address: Annotated[Text, setting(ROWS["address"], "IP", "Where probes are")] = None,
    metrics_port: Annotated[Text, setting(ROWS["port"], "PORT", "Probes, without TLS")] = None,
    listen: ListenAt = None,
    listen_certificate: ListenCertificate = None,
    log_format: LogFormat = None,
) -> None:
    """Grant shares of this node's GPUs and keep the limits of `mpsd control`'s daemons, in the foreground.

    With --node it is the device plugin of that node: kubelet gives the shares to pods, and nobody else gets any. It may
    be killed or restarted at any time: no program notices, and grants are found again.

        mpsd agent
        mpsd agent --node "$(hostname)" --kubeconfig ~/.kube/config
    """
    given = {
        "node": node,
        "kubelet_directory": kubelet_dir,
        "pod_resources": pod_resources,
        "kubeconfig": kubeconfig,
        "device_list_strategy": device_list_strategy,
        "address": address,
        "port": metrics_port,
    }
    kubelet = kubelet_settings(given)
    readers = listen_settings(
        {"listen": listen, "listen_certificate": listen_certificate}, in_cluster=kubelet is not None
    )
    place = AgentPlace(readers, _kubelet_part(kubelet), _reviewer(kubelet)) if kubelet else AgentPlace(readers)
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate, log_format=log_format)
    serve(chosen, place, with_control=False)


def _kubelet_part(kubelet: KubeletSettings) -> MakeClusterPart:
    with lasting():  # half of what the agent needs in memory, and only beside a kubelet
        from mpsd.cli.kubelet_node import KubeletNode

    return lambda around: KubeletNode(kubelet, around)


def _reviewer(kubelet: KubeletSettings) -> MakeReviewer:
    """Called where others than this machine are served, and only there."""

    def make() -> "Reviewer":
        from mpsd.platform.readers import token_reviewer

        return token_reviewer(kubelet.kubeconfig)

    return make
