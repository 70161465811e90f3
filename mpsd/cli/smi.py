"""`mpsd smi`: which containers and programs use what of this machine's GPUs, as cgpu-smi does."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from rich.console import RenderableType

from mpsd.model.cgpu_policies import POLICIES
from mpsd.model.node_report import CardReport, GpuReport, GrantReport, NodeReport
from mpsd.platform import local_api
from mpsd.platform.command_line import OUTPUT, RUN_DIR, Between, option, takes
from mpsd.platform.console import ExitCode, Format, StatusFormat
from mpsd.platform.settings import settings
from mpsd.platform.terminal import Frame, console, print_frame
from mpsd.status.grant_options import give_up, holders, named, the_one
from mpsd.status.machine import watch_machine
from mpsd.status.tables import Column, known, table

_OK = 200
_NO_LIMIT = 100
_SHORT = 12  # characters of a container's id, as engines show it


@takes(
    option(
        "container",
        nargs="?",
        metavar="CONTAINER",
        help="An id, its beginning, or a name; a pod; or a grant's id.",
        complete=holders,
    ),
    OUTPUT,
    option(
        "-w",
        "--watch",
        type=Between(0.2),
        metavar="SECONDS",
        help="Repeat after so many seconds, until Ctrl-C.",
    ),
    RUN_DIR,
)
def smi(
    *,
    container: str | None = None,
    output: Format = Format.TEXT,
    watch: float | None = None,
    run_dir: str | None = None,
) -> None:
    """Show what containers and programs use of the GPUs now, one row a container and GPU, then what
    is free.

    GPU-UTIL is how busy a container's processes keep the SMs, by NVML's samples of the last two
    seconds; ? where NVML has no value, as for a container none of whose processes it lists. COMPUTE
    is the percentage to which MPS limits each process. nvidia-smi inside a container shows the
    whole card; this command shows what was granted.

    Exit codes: 0 success, 1 mpsd does not run here or no such container holds a grant, 2 the name
    is ambiguous.

        mpsd smi
        mpsd smi train -w 2
        mpsd smi -o json | jq '.grants[].cards'
    """
    chosen = settings(run_directory=run_dir)

    def look() -> Frame:
        """NotRunning; TimeoutError. Ends the program where the container is none, or ambiguous."""
        code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/use")
        if code != _OK:
            why = "mpsd that runs here is older than this program; restart it with this version"
            raise local_api.NotRunning(why)
        report = local_api.read(body, NodeReport)
        grants = named(report.grants or (), chosen)
        if container is not None:
            grants = (the_one("mpsd smi", grants, container),)
        report = replace(report, grants=grants)
        return Frame(msgspec.to_builtins(report), tuple(_parts(report)))

    shape = StatusFormat(output.value)
    if watch is not None:
        watch_machine(look, shape, watch)
    try:
        frame = look()
    except (local_api.NotRunning, TimeoutError) as error:
        give_up(f"mpsd smi: {error}", ExitCode.NO)
    print_frame(frame, shape, console())


class _Row(NamedTuple):
    grant: GrantReport
    card: CardReport
    label: str


def _parts(report: NodeReport) -> Iterator[RenderableType]:
    labels = report.labels
    rows = []
    for grant in report.grants or ():
        rows += [_Row(grant, card, labels.get(card.gpu, card.gpu)) for card in grant.cards]
    if rows:
        yield table(_GRANTS, rows)
    else:
        yield "No container or program holds a share of a GPU."
    yield table(_GPUS, report.gpus)
    yield from (f"unknown: {what}" for what in report.unknown)


def _name(grant: GrantReport) -> str:
    if grant.pod:
        return grant.pods_in_words
    return (grant.container_name or "-") if grant.container else grant.command


def _policy(gpu: GpuReport) -> str:
    number = gpu.compute_policy
    if number is None:
        return "?"
    return f"{number} {POLICIES[number].name}"


def _limit(grant: GrantReport) -> str:
    if grant.thread_percent == _NO_LIMIT:
        return "-"
    return f"{grant.thread_percent} %"


def _free_weight(gpu: GpuReport) -> str:
    if gpu.max_inst is None:
        return "-"
    return known(gpu.free_weight)


def _or_none(number: int | None) -> str:
    return "-" if number is None else str(number)


_GRANTS: tuple[Column[_Row], ...] = (
    Column("GPU", lambda row: row.label, left=True),
    Column("CONTAINER", lambda row: (row.grant.container or "-")[:_SHORT], left=True),
    Column("NAME", lambda row: _name(row.grant), left=True),
    Column("CLAIM", lambda row: row.grant.claim, left=True, rare=True, leaves=True),
    Column("GPU-UTIL", lambda row: known(row.card.sm_percent, " %")),
    Column("COMPUTE", lambda row: _limit(row.grant), leaves=True),
    Column("WEIGHT", lambda row: _or_none(row.card.weight), leaves=True),
    Column("MEM-USED", lambda row: known(row.card.used_mib, " MiB")),
    Column("MEM-GRANTED", lambda row: f"{row.card.memory_mib} MiB"),
)
_GPUS: tuple[Column[GpuReport], ...] = (
    Column("GPU", lambda gpu: gpu.label, left=True),
    Column("GPU-UTIL", lambda gpu: known(gpu.sm_percent, " %")),
    Column("POLICY", _policy, left=True, leaves=True),
    Column("MAX-INST", lambda gpu: _or_none(gpu.max_inst), leaves=True),
    Column("FREE-WEIGHT", _free_weight, leaves=True),
    Column("FREE-MEM", lambda gpu: known(gpu.free_mib, " MiB")),
    Column("FREE-PERCENT", lambda gpu: known(gpu.free_percent, " %")),
)
