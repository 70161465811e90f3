"""`mpsd agent`: the part that grants and watches."""

from typing import TYPE_CHECKING

from mpsd.cli.running import AgentPlace, MakeClusterPart, MakeReviewer, serve
from mpsd.kubelet.settings import KUBELET_SETTINGS, KubeletSettings, kubelet_settings
from mpsd.platform.imports import lasting
from mpsd.platform.options import taking
from mpsd.platform.settings import LISTEN_SETTINGS, LOG_FORMAT, NODE_SETTINGS, listen_settings, settings

if TYPE_CHECKING:
    from mpsd.platform.readers import Reviewer

_OF_NODE = {name: NODE_SETTINGS[name] for name in ("simulate", "limits_directory", "run_directory")}


@taking({**_OF_NODE, **KUBELET_SETTINGS, **LISTEN_SETTINGS, "log_format": LOG_FORMAT})
def agent(**flags: str | None) -> None:
    """Grant shares of this node's GPUs and set the limits of `mpsd control`'s daemons, in the foreground.

    With --node it is the device plugin of that node: kubelet gives the shares to pods, and only to pods. It may be
    killed or restarted at any time: no program is affected, and grants are restored.

        mpsd agent
        mpsd agent --node "$(hostname)" --kubeconfig ~/.kube/config
    """
    kubelet = kubelet_settings(flags)
    readers = listen_settings(flags, in_cluster=kubelet is not None)
    place = AgentPlace(readers, _kubelet_part(kubelet), _reviewer(kubelet)) if kubelet else AgentPlace(readers)
    chosen = settings(
        run_directory=flags["run_directory"],
        limits_directory=flags["limits_directory"],
        simulate=flags["simulate"],
        log_format=flags["log_format"],
    )
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
