"""The simulated kubelet as a program: its arguments, and what it says on standard error.

One rule: SIGTERM stops it as a real one is stopped, with its containers left running.
"""

import argparse
import asyncio
import shlex
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from mpsd.sim.kubelet import Kubelet, KubeletSettings
from mpsd.sim.kubelet_api_source import ApiServer
from mpsd.sim.kubelet_version import OLDEST, VERSIONS


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    settings = KubeletSettings(given.dir, VERSIONS[given.version], tuple(shlex.split(given.run)), seed=given.seed)
    return asyncio.run(_serve(settings, given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mpsd.sim.kubelet", description="A simulated kubelet.")
    parser.add_argument(
        "--dir", type=Path, required=True, help="kubelet's root; pods, sockets and checkpoint lie there"
    )
    parser.add_argument("--node", required=True, help="the name of the node")
    parser.add_argument("--api", required=True, metavar="URL", help="the API server")
    parser.add_argument("--ca", type=Path, help="the certificate that the API server is known by")
    parser.add_argument("--token-file", type=Path, help="what is said to the API server to be let in")
    parser.add_argument("--version", choices=VERSIONS, default=OLDEST.name, help="the kubelet that is played")
    parser.add_argument("--run", default="", metavar="COMMAND", help="what every container runs in place of its own")
    parser.add_argument("--seed", type=int, help="of what a kubelet leaves to chance")
    return parser


async def _serve(settings: KubeletSettings, given: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    token = given.token_file.read_text().strip() if given.token_file else ""
    trusted = ssl.create_default_context(cafile=given.ca) if given.ca else None
    api = ApiServer(given.api, given.node, token, trusted)
    kubelet = Kubelet(settings, api)
    await kubelet.start()
    print(f"kubelet {settings.version.name} of {given.node} serves in {settings.folder}", file=sys.stderr, flush=True)
    try:
        await kubelet.run(stopping)
    finally:
        await kubelet.stop()
        await api.close()
    return 0
