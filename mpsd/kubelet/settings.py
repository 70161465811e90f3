"""How `mpsd agent` runs beside a kubelet: the part of `platform.settings` that only it has.

One rule: an agent that was given the name of a node serves that node's kubelet, and nobody else gets its GPUs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.kubelet.rules.allocation import DeviceListStrategy
from mpsd.model.problem import InvalidInput
from mpsd.platform.settings import Row, address, path, port, problem_with, read_rows


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """kubelet_directory: kubelet's root, with device-plugins/ in it. port 0: the kernel chooses.

    kubeconfig None: the service account of this pod.
    """

    node: str
    kubelet_directory: Path
    pod_resources: Path
    kubeconfig: Path | None
    address: str
    port: int
    device_list_strategy: DeviceListStrategy

    @property
    def device_plugins(self) -> Path:
        return self.kubelet_directory / "device-plugins"


def _strategy(text: str) -> DeviceListStrategy:
    try:
        return DeviceListStrategy(text)
    except ValueError:
        raise ValueError(f"write {', '.join(DeviceListStrategy)}") from None


ROWS: Mapping[str, Row] = {
    "node": Row("--node", "MPSD_NODE_NAME", "", str),
    "kubelet_directory": Row("--kubelet-dir", "MPSD_KUBELET_DIR", "/var/lib/kubelet", path),
    "pod_resources": Row("--pod-resources", "MPSD_POD_RESOURCES", "", path),
    "kubeconfig": Row("--kubeconfig", "MPSD_KUBECONFIG", "", path),
    "address": Row("--address", "MPSD_ADDRESS", "0.0.0.0", address),  # noqa: S104
    "port": Row("--metrics-port", "MPSD_METRICS_PORT", "9445", port),
    "device_list_strategy": Row("--device-list-strategy", "MPSD_DEVICE_LIST_STRATEGY", "envvar", _strategy),
}


def kubelet_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> KubeletSettings | None:
    """None where no node is named. flags: by the names of ROWS. InvalidInput with every problem."""
    read = read_rows(ROWS, flags, environment)
    if not read["node"]:
        given = [name for name, value in flags.items() if value]
        if given:
            row = ROWS["node"]
            raise InvalidInput(
                "settings", [problem_with(row, "", f"is missing beside {ROWS[given[0]].flag}", "name this node")]
            )
        return None
    pod_resources = read.pop("pod_resources") or read["kubelet_directory"] / "pod-resources" / "kubelet.sock"
    return KubeletSettings(pod_resources=pod_resources, **read)


def kubelet_directory(asked: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Kubelet's root, whether or not a node is named. asked: its flag, None where it was not given. InvalidInput."""
    row = {"kubelet_directory": ROWS["kubelet_directory"]}
    found: Path = read_rows(row, {"kubelet_directory": asked}, environment)["kubelet_directory"]
    return found
