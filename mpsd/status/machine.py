"""What `mpsd status` and `mpsd top` show of this machine. It loads nothing that a cluster takes:
somebody waits for it."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec.structs import replace
from rich.console import Console, RenderableType

from mpsd.model.cluster_status import placed, served_gpus
from mpsd.model.domain import State
from mpsd.model.node_report import NodeReport
from mpsd.platform import local_api
from mpsd.platform.console import ExitCode, StatusFormat, complaints, one_line
from mpsd.platform.settings import Settings, settings
from mpsd.platform.terminal import Frame, Screen, console, print_frame
from mpsd.status import tables

if TYPE_CHECKING:  # only `top` needs it
    from mpsd.status.rules.top import Top

_PAUSE_S = 1.0  # between two looks at this machine
_LAST, _ALL = 5, 100  # violations that are shown
# of the violations, what is not another at every look
_LASTING = ("since", "counts", "last", "unjudged")


def show_machine(run_dir: str | None, output: StatusFormat, *, watch: bool) -> NoReturn:
    socket = settings(run_directory=run_dir).socket_to_ask
    wide = output is StatusFormat.WIDE

    def look() -> tuple[Frame, bool]:
        _code, body = local_api.ask(socket, "GET", "/v1/node")
        node = local_api.read(body, NodeReport)
        frame = Frame(msgspec.json.decode(body), tuple(_parts(node, wide=wide)))
        return frame, {gpu.state for gpu in served_gpus(node)} == {State.READY}

    if watch:
        watch_machine(lambda: look()[0], output, _PAUSE_S, _without_time)
    try:
        frame, ready = look()
    except (local_api.NotRunning, TimeoutError) as error:
        complaints().print(f"mpsd status: {error}")
        sys.exit(ExitCode.NO)
    print_frame(frame, output, console())
    sys.exit(ExitCode.YES if ready else ExitCode.NO)


def watch_machine(
    look: Callable[[], Frame],
    output: StatusFormat,
    pause_s: float,
    lasting_part: Callable[[object], object] = lambda _record: object(),
) -> NoReturn:
    """An agent that is being restarted is waited for. lasting_part: of a record, without a change
    of which a look is not shown again."""
    screen = Screen(output)
    shown: object = None
    with screen.until_interrupted():
        while True:
            try:
                frame = look()
            except (local_api.NotRunning, TimeoutError) as error:
                frame = Frame({"away": str(error)}, [str(error)])
            before = shown
            shown = lasting_part(frame.record)
            if screen.redraws or shown != before:
                screen.show(frame)
            time.sleep(pause_s)


def _without_time(record: Any) -> object:
    seen = record.get("violations") or {}
    lasting = {name: seen.get(name) for name in _LASTING}
    return {**record, "reportedAt": None, "violations": lasting}


def machine_top(chosen: Settings) -> "Top":
    """One look for `mpsd top`. NoLook where the agent does not answer in time."""
    from mpsd.status.grant_options import named
    from mpsd.status.rules.top import NoLook, node_top

    try:
        _code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/use")
        node = local_api.read(body, NodeReport)
    except (local_api.NotRunning, TimeoutError) as error:
        raise NoLook(str(error)) from None
    return node_top(replace(node, grants=named(node.grants or (), chosen)))


def show(node: NodeReport, to: Console) -> None:
    for part in _parts(node, wide=False):
        to.print(part)


def _parts(node: NodeReport, *, wide: bool) -> Iterator[RenderableType]:
    yield tables.table(tables.GPU_COLUMNS, served_gpus(node), wide=wide)
    for domain in node.domains:
        if domain.state == State.READY and domain.doubt:
            yield f"{domain.name} serves, although its canary found: {domain.doubt}"
        yield from map(one_line, tables.domain_lines(domain, node.now))
        yield from tables.fault_lines(domain.name, domain.faults, node.now)
    if node.grants:
        # pods by their names where a kubelet gives them, else programs
        are_pods = any(grant.pod for grant in node.grants)
        columns = tables.POD_COLUMNS if are_pods else tables.GRANT_COLUMNS
        yield tables.table(columns, placed(node.grants, node), wide=wide)
    for client in node.clients or ():
        if client.grant is None:
            how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
            used = tables.known_gib(client.used_mib)
            yield f"pid {client.pid} uses {used} {how}: {client.command}"
    for waiting in node.waiting:
        wanted = tables.known_gib(waiting.memory_mib)
        yield f"pid {waiting.holder_pid} waits for {wanted}: {waiting.command}"
    for what in node.unknown:
        yield f"unknown: {what}"
    yield from tables.event_lines(node.daemon_ends[-_LAST:], node.now)
    if node.violations:
        yield from tables.violation_lines(node.violations, most=_ALL if wide else _LAST)
