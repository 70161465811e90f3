"""The simulated kubelet as a program: its arguments, and what it says on standard error.

One rule: SIGTERM stops it as a real one is stopped, with its containers left running.
"""

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from mpsd.simulator.kubelet.api_source import Access, ApiServer, read_kubeconfig
from mpsd.simulator.kubelet.kubelet import Kubelet, KubeletSettings
from mpsd.simulator.kubelet.kubelet_version import OLDEST, VERSIONS


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    command, version = tuple(shlex.split(given.run)), VERSIONS[given.version]
    settings = KubeletSettings(given.dir, version, command, seed=given.seed, cgroup_root=given.cgroup_root)
    return asyncio.run(_serve(settings, given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mpsd.simulator.kubelet.kubelet", description="A simulated kubelet."
    )
    parser.add_argument(
        "--dir", type=Path, required=True, help="kubelet's root, for sockets, checkpoint and containers"
    )
    parser.add_argument("--node", required=True, help="the name of the node")
    api = parser.add_mutually_exclusive_group(required=True)
    api.add_argument("--api", metavar="URL", help="the API server")
    api.add_argument("--kubeconfig", type=Path, help="a file that names the API server and a token")
    parser.add_argument("--node-labels", default="", metavar="KEY=VALUE,…", help="of a node that is made")
    parser.add_argument("--version", choices=VERSIONS, default=OLDEST.name, help="the kubelet that is played")
    parser.add_argument("--run", default="", metavar="COMMAND", help="what every container runs in place of its own")
    parser.add_argument("--cgroup-root", default="", metavar="NAME", help="below which all cgroups of pods are made")
    parser.add_argument("--seed", type=int, help="of what a kubelet leaves to chance")
    return parser


async def _serve(settings: KubeletSettings, given: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    access = read_kubeconfig(given.kubeconfig) if given.kubeconfig else Access(given.api)
    labels = dict(label.split("=", 1) for label in given.node_labels.split(",") if label)
    api = ApiServer(access, given.node, labels)
    kubelet = Kubelet(settings, api)
    await kubelet.start()
    print(f"kubelet {settings.version.name} of {given.node} serves in {settings.folder}", file=sys.stderr, flush=True)
    try:
        await kubelet.run(stopping)
    finally:
        await kubelet.stop()
        await api.close()
    return 0
