"""The settings of `mpsd agent` beside a kubelet.

An agent that is given the name of a node serves that node's kubelet, and nothing else gets its
GPUs.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.kubelet.rules.allocation import DeviceListStrategy
from mpsd.platform import settings
from mpsd.platform.settings import KUBECONFIG, Setting, address, path, port, read_settings, refuse

_DRIVER = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LONGEST_DRIVER = 63  # of a driver's name in Kubernetes


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """kubelet_directory: kubelet's root. port 0: the kernel chooses. kubeconfig None: the service
    account of this pod. dra_driver: serves resource claims in place of the device plugins, unless
    the policy goes by a label that the Node lacks; empty for none. startup_taint: removed from this
    Node once its GPUs are served; empty for none."""

    node: str
    kubelet_directory: Path
    pod_resources: Path
    kubeconfig: Path | None
    address: str
    port: int
    device_list_strategy: DeviceListStrategy
    dra_driver: str
    cdi_directory: Path
    startup_taint: str

    @property
    def plugins_registry(self) -> Path:
        return self.kubelet_directory / "plugins_registry"

    @property
    def device_plugins(self) -> Path:
        return self.kubelet_directory / "device-plugins"


def _strategy(text: str) -> DeviceListStrategy:
    try:
        return DeviceListStrategy(text)
    except ValueError:
        raise ValueError(f"write {', '.join(DeviceListStrategy)}") from None


def _taint(text: str) -> str:
    domain, slash, name = text.rpartition("/")
    if text and not (_NAME.fullmatch(name) and (not slash or _DRIVER.fullmatch(domain))):
        raise ValueError(
            "write the key of a taint without value and effect, such as mpsd.io/not-ready"
        )
    return text


def _driver(text: str) -> str:
    if text and not (len(text) <= _LONGEST_DRIVER and _DRIVER.fullmatch(text)):
        raise ValueError("write a DNS name of at most 63 characters, such as gpu.mpsd.io")
    return text


KUBELET_SETTINGS = {
    "node": Setting(
        "--node",
        "NAME",
        "This node of a cluster: serve its kubelet",
        other_variable="MPSD_NODE_NAME",
    ),
    "kubelet_directory": Setting(
        "--kubelet-dir", "DIR", "Kubelet's root", path, "/var/lib/kubelet"
    ),
    "pod_resources": Setting(
        "--pod-resources", "SOCKET", "Of kubelet's PodResources; else below its root", path
    ),
    "kubeconfig": KUBECONFIG,
    "device_list_strategy": Setting(
        "--device-list-strategy",
        "HOW",
        "How containers get their GPU, in NVIDIA's words",
        _strategy,
        "envvar",
    ),
    "dra_driver": Setting(
        "--dra",
        "DRIVER",
        "Serve resource claims by this name, such as gpu.mpsd.io, and no device plugins",
        _driver,
    ),
    "cdi_directory": Setting(
        "--cdi-dir", "DIR", "Where containers' CDI devices are described", path, "/var/run/cdi"
    ),
    "startup_taint": Setting(
        "--startup-taint",
        "KEY",
        "Remove this taint of the Node once GPUs are served, such as mpsd.io/not-ready",
        _taint,
    ),
    "address": Setting("--address", "IP", "Address of the probe port", address, settings.ANYWHERE),
    "port": Setting("--metrics-port", "PORT", "Probes, without TLS", port, "9445"),
}


def kubelet_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> KubeletSettings | None:
    """None where no node is named. flags: by the names of KUBELET_SETTINGS. InvalidInput with every
    problem."""
    read = read_settings(KUBELET_SETTINGS, flags, environment)
    if not read["node"]:
        given = [setting.flag for name, setting in KUBELET_SETTINGS.items() if flags.get(name)]
        refuse(
            KUBELET_SETTINGS["node"].problem("", f"is missing beside {flag}", "name this node")
            for flag in given[:1]
        )
        return None
    pod_resources = (
        read.pop("pod_resources") or read["kubelet_directory"] / "pod-resources" / "kubelet.sock"
    )
    return KubeletSettings(pod_resources=pod_resources, **read)


def kubelet_directory(asked: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Kubelet's root, whether or not a node is named. asked: its flag, None where it was not given.
    InvalidInput."""
    declared = {"kubelet_directory": KUBELET_SETTINGS["kubelet_directory"]}
    found: Path = read_settings(declared, {"kubelet_directory": asked}, environment)[
        "kubelet_directory"
    ]
    return found
