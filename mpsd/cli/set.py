"""`mpsd set`: another size of memory, percentage or weight for a container or program that runs."""

import sys

import msgspec

from mpsd.grants.rules.messages import GrantChanged, GrantChangeRequest, GrantLimits
from mpsd.model.node_report import GrantReport, NodeReport
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.model.quantity import written_mib
from mpsd.platform import local_api
from mpsd.platform.command_line import OUTPUT, RUN_DIR, flag, option, takes
from mpsd.platform.console import ExitCode, Format, answers, one_line, print_json
from mpsd.platform.settings import settings
from mpsd.status.grant_options import (
    give_up,
    give_up_refused,
    holders,
    known_as,
    named,
    the_one,
)

_OK = 200
_PATIENCE_S = 40.0
_NO_LIMIT = 100


@takes(
    option(
        "container",
        metavar="CONTAINER",
        help="An id, its beginning, or a name; or a grant's id.",
        complete=holders,
    ),
    option("--mem", metavar="MIB", help="Of each GPU: 3276, or 3276MiB, or 6GiB."),
    option("--percent", type=int, metavar="N", help="Percent of the threads; 0 for no cap."),
    option("--weight", type=int, metavar="N", help="cGPU's weight, at most max_inst."),
    option("--gpu", type=int, metavar="N", help="Only on this GPU, by nvidia-smi's index."),
    flag("--force", help="Accept less memory than is used now; processes above it are ended."),
    flag("--dry-run", help="Show what would change, and change nothing."),
    OUTPUT,
    RUN_DIR,
)
def set(  # noqa: A001 - the verb's name
    *,
    container: str,
    mem: str | None = None,
    percent: int | None = None,
    weight: int | None = None,
    gpu: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    output: Format = Format.TEXT,
    run_dir: str | None = None,
) -> None:
    """Change the memory, percentage or weight of a running container or program.

    The change is saved before the command returns. A running process keeps the values that it was
    started with; the next one that `docker exec` starts gets the new values; `docker restart`
    starts with the container's own variables.

    Exit codes: 0 changed, 1 no room (with what is free) or no such container holds a grant, 2 usage
    error.

        mpsd set train --mem 4GiB
        mpsd set 3f2a --percent 50 --gpu 1 --dry-run
    """
    chosen = settings(run_directory=run_dir)
    socket = chosen.socket_to_ask
    memory_mib = None
    if mem is not None:
        memory_mib = written_mib(mem, "--mem")
    if isinstance(memory_mib, Problem):
        raise InvalidInput("mpsd set", [memory_mib])
    try:
        _code, body = local_api.ask(socket, "GET", "/v1/node")
        node = local_api.read(body, NodeReport)
        grant = the_one("mpsd set", named(node.grants or (), chosen), container)
        only = _uuid(gpu, grant, node)
        asks = GrantChangeRequest(memory_mib, percent, weight, only, force, dry_run)
        code, body = local_api.ask(socket, "POST", f"/v1/grants/{grant.id}", asks, _PATIENCE_S)
    except (local_api.NotRunning, TimeoutError) as error:
        give_up(f"mpsd set: {error}", ExitCode.NO)
    if code != _OK:
        give_up_refused(f"mpsd set: {known_as(grant)}", body)
    _show(grant, local_api.read(body, GrantChanged), body, output)
    sys.exit(ExitCode.YES)


def _uuid(ordinal: int | None, grant: GrantReport, node: NodeReport) -> str | None:
    """The UUID of the GPU that is meant; None for all of the grant's."""
    if ordinal is None:
        return None
    labels = {gpu.label: gpu.uuid for gpu in node.gpus if gpu.uuid in grant.gpus}
    if (label := f"gpu{ordinal}") in labels:
        return labels[label]
    remedy = f"write one that it has: {', '.join(name.removeprefix('gpu') for name in labels)}"
    what = f"is not a GPU of {known_as(grant)}"
    raise InvalidInput.of("mpsd set", "gpu-not-granted", "--gpu", shown(ordinal), what, remedy)


def _show(grant: GrantReport, changed: GrantChanged, body: bytes, output: Format) -> None:
    if output is Format.JSON:
        who = {"container": grant.container, "container_name": grant.container_name}
        print_json(msgspec.json.decode(body) | who | {"command": grant.command})
        return
    to = answers()
    heading = known_as(grant)
    if changed.dry_run:
        heading += " would become"
    to.print(one_line(f"{heading}:"))
    for old, new in zip(changed.before.cards, changed.after.cards, strict=True):
        amounts = [
            _became("memory", f"{old.memory_mib} MiB", f"{new.memory_mib} MiB"),
            _became("compute limit", _limit(changed.before), _limit(changed.after)),
            _became("reserved", f"{old.reserved_percent} %", f"{new.reserved_percent} %"),
        ]
        if new.weight is not None:
            amounts.append(_became("weight", str(old.weight), str(new.weight)))
        to.print(f"  {new.label}: {', '.join(amounts)}")
    for message in changed.messages:
        to.print(one_line(message))


def _limit(limits: GrantLimits) -> str:
    if limits.thread_percent == _NO_LIMIT:
        return "none"
    return f"{limits.thread_percent} %"


def _became(what: str, old: str, new: str) -> str:
    if old == new:
        return f"{what} {new} as before"
    return f"{what} {old} -> {new}"
