"""`mpsd status`: GPUs, domains, grants and clients of this machine."""

import sys
import time
from collections.abc import Iterator

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpsd.cli.options import RunDirectory
from mpsd.cli.output import ExitCode, Format, OutputFormat, complaints, print_json
from mpsd.core.domain_states import State
from mpsd.core.node_status import DomainStatus, NodeStatus
from mpsd.core.placement import gib
from mpsd.edge import local_api
from mpsd.edge.settings import settings

_COLOURS = {State.READY: "green", State.STARTING: "yellow", State.DRAINING: "yellow", State.DRAINED: "yellow"}


_WIDE = 180


def status(
    output: OutputFormat = Format.TEXT,
    run_dir: RunDirectory = None,
) -> None:
    """Show who has what of the GPUs here: granted and used memory, threads, domain states, and who waits.

    Exits with 0 when every GPU's domain is ready, 1 when one is not or mpsd does not run here.

        mpsd status
        mpsd status -o json | jq .grants
    """
    socket = settings(run_directory=run_dir).socket_to_ask
    try:
        _code, body = local_api.ask(socket, "GET", "/v1/node")
        node = local_api.read(body, NodeStatus)
    except (local_api.NotRunning, TimeoutError) as error:
        complaints().print(f"mpsd status: {str(error) or f'no answer from mpsd on {socket}'}")
        sys.exit(ExitCode.NO)
    if output is Format.JSON:
        print_json(msgspec.json.decode(body))
    else:
        show(node, console())
    ready = {domain.name for domain in node.domains if domain.state is State.READY}
    sys.exit(ExitCode.YES if node.gpus and all(gpu.domain in ready for gpu in node.gpus) else ExitCode.NO)


def console() -> Console:
    """A terminal as wide as it is; wide enough for everything where there is none to read the width of."""
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _WIDE)


def show(node: NodeStatus, to: Console) -> None:
    """The node for people."""
    to.print(_gpu_table(node))
    for domain in node.domains:
        if domain.state is not State.READY:
            to.print(
                f"{domain.name} is {domain.state} since {_ago(node.now, domain)}: {domain.reason or 'no reason said'}"
            )
    if node.grants:
        to.print(_grant_table(node))
    for line in (*_strangers(node), *_queue(node), *(f"unknown: {what}" for what in node.unknown)):
        to.print(line)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    return table


_LEFT = {"GPU", "MODEL", "DOMAIN", "STATE", "GRANT", "COMMAND"}


def _gpu_table(node: NodeStatus) -> Table:
    table = _table("GPU", "MODEL", "DOMAIN", "STATE", "GRANTED", "RESERVED", "USED", "CLIENTS", "RESTARTS")
    domains = {domain.name: domain for domain in node.domains}
    for gpu in node.gpus:
        domain = domains.get(gpu.domain or "")
        state = domain.state.value if domain else "no daemon"
        colour = _COLOURS.get(domain.state, "red") if domain else "red"
        table.add_row(
            gpu.label,
            gpu.name.removeprefix("NVIDIA "),
            gpu.domain or "",
            Text(state, colour),
            f"{gib(gpu.granted_mib)}/{gib(gpu.promised_mib)} GiB",
            f"{gpu.granted_percent} %",
            _known_gib(gpu.used_mib),
            _known(gpu.clients),
            str(domain.restarts) if domain else "",
        )
    return table


def _grant_table(node: NodeStatus) -> Table:
    table = _table("GRANT", "GPU", "GRANTED", "THREADS", "USED", "CLIENTS", "PID", "COMMAND")
    table.columns[-1].overflow = "ellipsis"
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    for grant in node.grants:
        table.add_row(
            grant.id,
            ",".join(labels.get(uuid, uuid) for uuid in grant.gpus),
            f"{gib(grant.memory_mib)} GiB",
            f"{grant.thread_percent} %",
            _known_gib(grant.used_mib),
            _known(grant.clients),
            _known(grant.holder_pid) if grant.pod is None else "",
            Text(grant.command if grant.holder_alive else f"(ended, programs of it are left) {grant.command}"),
        )
    return table


def _strangers(node: NodeStatus) -> Iterator[str]:
    """Processes on the GPUs that the books do not know."""
    for client in node.clients or ():
        if client.grant is None:
            how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
            yield f"pid {client.pid} uses {_known_gib(client.used_mib)} {how}: {client.command}"


def _queue(node: NodeStatus) -> Iterator[str]:
    for waiting in node.waiting:
        yield f"pid {waiting.holder_pid} waits for {gib(waiting.memory_mib)} GiB: {waiting.command}"


def _known_gib(memory_mib: int | None) -> str:
    return "?" if memory_mib is None else f"{gib(memory_mib)} GiB"


def _known(count: int | None) -> str:
    return "?" if count is None else str(count)


def _ago(now: float, domain: DomainStatus) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(domain.since))
    return f"{since} ({max(0, int(now - domain.since))} s)"
