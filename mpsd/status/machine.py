"""What `mpsd status` and `mpsd top` show of this machine.

It loads nothing that a cluster or the library of the command line takes: somebody waits for it.
"""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import msgspec
from rich.console import Console, RenderableType

from mpsd.model.cluster_status import domain_rows, gpu_rows, grant_rows
from mpsd.model.domain import State
from mpsd.model.node_status import NodeStatus
from mpsd.model.quantity import gib
from mpsd.platform import local_api
from mpsd.platform.console import ExitCode, StatusFormat, complaints
from mpsd.platform.settings import Settings, settings
from mpsd.status.tables import (
    GPU_COLUMNS,
    domain_line,
    fault_lines,
    grant_table,
    known_gib,
    suspects_line,
    table,
    violation_lines,
)
from mpsd.status.terminal import Frame, Screen, console, print_frame

if TYPE_CHECKING:  # only `top` needs it
    from mpsd.status.rules.top import Top

_OK = 200
_PAUSE_S = 1.0  # between two looks at this machine
_LAST, _ALL = 5, 100  # violations that are shown
_LASTING = ("since", "counts", "last", "unjudged")  # of the violations, what is not another at every look


def show_machine(run_dir: str | None, output: StatusFormat, *, watch: bool) -> NoReturn:
    """Shows it, and ends the program with what that answers."""
    here = LocalMachine(run_dir, output)
    if watch:
        here.watch()
    try:
        frame, ready = here.look()
    except (local_api.NotRunning, TimeoutError) as error:
        complaints().print(f"mpsd status: {error}")
        sys.exit(ExitCode.NO)
    print_frame(frame, output, console())
    sys.exit(ExitCode.YES if ready else ExitCode.NO)


class LocalMachine:
    """This machine."""

    def __init__(self, run_dir: str | None, output: StatusFormat) -> None:
        self._socket = settings(run_directory=run_dir).socket_to_ask
        self._output = output

    def look(self) -> tuple[Frame, bool]:
        """What there is to show, and whether every GPU is ready. NotRunning; TimeoutError."""
        _code, body = local_api.ask(self._socket, "GET", "/v1/node")
        node = local_api.read(body, NodeStatus)
        ready = {domain.name for domain in node.domains if domain.state is State.READY}
        frame = Frame(msgspec.json.decode(body), tuple(_parts(node, wide=self._output is StatusFormat.WIDE)))
        return frame, bool(node.gpus) and all(gpu.domain in ready for gpu in node.gpus)

    def watch(self) -> NoReturn:
        """Shows it again at every change; an agent that is being restarted is waited for."""
        screen = Screen(self._output)
        told: object = None
        with screen.until_interrupted():
            while True:
                try:
                    frame, _ready = self.look()
                except (local_api.NotRunning, TimeoutError) as error:
                    frame = Frame({"away": str(error)}, [str(error)])
                told, before = _without_time(frame.record), told
                if screen.redraws or told != before:
                    screen.show(frame)
                time.sleep(_PAUSE_S)


def _without_time(record: object) -> object:
    """The node without what is another at every look."""
    if not isinstance(record, dict):
        return record
    seen = record.get("violations")
    kept = {name: seen[name] for name in _LASTING if name in seen} if isinstance(seen, dict) else None
    return {**record, "now": None, "violations": kept}


def machine_top(chosen: Settings) -> "Top":
    """One look for `mpsd top`. NoLook where the agent does not answer in time, or not in a form that is known."""
    from mpsd.status.grant_options import named
    from mpsd.status.rules.top import NoLook, node_top
    from mpsd.status.rules.use import UseStatus

    try:
        _code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/node")
        node = local_api.read(body, NodeStatus)
        code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/use")
        use = local_api.read(body, UseStatus) if code == _OK else None  # an older agent does not know it
    except (local_api.NotRunning, TimeoutError) as error:
        raise NoLook(str(error)) from None
    return node_top(node, UseStatus(use.now, named(use.grants, chosen), use.gpus, use.unknown) if use else None)


def show(node: NodeStatus, to: Console) -> None:
    """The node for people."""
    for part in _parts(node, wide=False):
        to.print(part)


def _parts(node: NodeStatus, *, wide: bool) -> Iterator[RenderableType]:
    yield table(GPU_COLUMNS, gpu_rows(node), wide=wide)
    for domain, told in zip(domain_rows(node), node.domains, strict=True):
        if domain.state != State.READY:
            yield domain_line(domain, node.now)
        elif domain.doubt:
            yield f"{domain.name} serves, although its canary found: {domain.doubt}"
        yield from fault_lines(domain.name, told.faults, node.now)
        if domain.suspects:
            yield suspects_line(domain)
    if node.grants:
        yield grant_table(grant_rows(node), wide=wide)
    yield from _strangers(node)
    for waiting in node.waiting:
        yield f"pid {waiting.holder_pid} waits for {gib(waiting.memory_mib)} GiB: {waiting.command}"
    for what in node.unknown:
        yield f"unknown: {what}"
    if node.violations:
        yield from violation_lines(node.violations, most=_ALL if wide else _LAST)


def _strangers(node: NodeStatus) -> Iterator[str]:
    """Processes on the GPUs that the ledger do not know."""
    for client in node.clients or ():
        if client.grant is None:
            how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
            yield f"pid {client.pid} uses {known_gib(client.used_mib)} {how}: {client.command}"
