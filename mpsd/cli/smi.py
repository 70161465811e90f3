"""`mpsd smi`: which containers and programs use what of the GPUs of this machine now, as cgpu-smi shows it."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import RenderableType

from mpsd.platform import local_api
from mpsd.platform.console import ExitCode, Format, StatusFormat
from mpsd.platform.options import OutputFormat, RunDirectory
from mpsd.platform.settings import settings
from mpsd.status.grant_options import completed, give_up, named, the_one
from mpsd.status.rules.use import CardUse, GpuUse, GrantUse, UseStatus
from mpsd.status.tables import Column, table
from mpsd.status.terminal import WIDEST, Frame, Screen, console, print_frame

_OK = 200
_NO_LIMIT = 100
_SHORT = 12  # characters of a container's id, as engines show it


def smi(
    container: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONTAINER]",
            help="An id, its beginning, or a name; a pod; or a grant's id.",
            show_default=False,
            autocompletion=completed,
        ),
    ] = None,
    output: OutputFormat = Format.TEXT,
    watch: Annotated[
        float | None,
        typer.Option(
            "-w",
            "--watch",
            metavar="SECONDS",
            help="Repeat after so many seconds, until Ctrl-C.",
            min=0.2,
            show_default=False,
        ),
    ] = None,
    run_dir: RunDirectory = None,
) -> None:
    """Show what containers and programs use of the GPUs now, one row a container and GPU, then what is free.

    GPU-UTIL is how busy a container's processes keep the SMs, by NVML's samples of the last two seconds; ? where NVML
    has no value, as for a container none of whose processes it lists. COMPUTE is the percentage to which MPS limits
    each process. nvidia-smi inside a container shows the whole card; this command shows what was granted.

    Exit codes: 0 success, 1 mpsd does not run here or no such container holds a grant, 2 the name is ambiguous.

        mpsd smi
        mpsd smi train -w 2
        mpsd smi -o json | jq '.grants[].cards'
    """
    asked = _SmiOptions(run_dir, container, StatusFormat(output.value))
    if watch is not None:
        asked.watch(watch)
    try:
        frame = asked.look()
    except (local_api.NotRunning, TimeoutError) as error:
        give_up(f"mpsd smi: {error}", ExitCode.NO)
    print_frame(frame, asked.output, console(0 if sys.stdout.isatty() else WIDEST))


class _SmiOptions:
    """container: None for all."""

    def __init__(self, run_dir: str | None, container: str | None, output: StatusFormat) -> None:
        self._settings = settings(run_directory=run_dir)
        self._socket = self._settings.socket_to_ask
        self._container = container
        self.output = output

    def look(self) -> Frame:
        """NotRunning; TimeoutError. It ends the program where the container is none, or one of several."""
        code, body = local_api.ask(self._socket, "GET", "/v1/use")
        if code != _OK:
            raise local_api.NotRunning("mpsd that runs here is older than this program; restart it with this version")
        use = local_api.read(body, UseStatus)
        grants = named(use.grants, self._settings)
        if self._container is not None:
            grants = (the_one("mpsd smi", grants, self._container),)
        use = replace(use, grants=grants)
        record: dict[str, Any] = msgspec.json.decode(body)
        record["grants"] = msgspec.to_builtins(grants)
        return Frame(record, tuple(_parts(use)))

    def watch(self, pause_s: float) -> NoReturn:
        """An agent that is being restarted is waited for."""
        screen = Screen(self.output)
        with screen.until_interrupted():
            while True:
                try:
                    frame = self.look()
                except (local_api.NotRunning, TimeoutError) as error:
                    frame = Frame({"away": str(error)}, [str(error)])
                screen.show(frame)
                time.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class _Row:
    """One grant on one GPU."""

    grant: GrantUse
    card: CardUse


def _parts(use: UseStatus) -> Iterator[RenderableType]:
    rows = [_Row(grant, card) for grant in use.grants for card in grant.cards]
    if rows:
        yield table(_GRANTS, rows)
    else:
        yield "No container or program holds a share of a GPU."
    yield table(_GPUS, use.gpus)
    for what in use.unknown:
        yield f"unknown: {what}"


def _name(grant: GrantUse) -> str:
    if grant.pod:
        return f"{grant.namespace}/{grant.pod}"
    return (grant.container_name or "-") if grant.container else grant.command


def _number(number: int | None, unknown: str, unit: str = "") -> str:
    return unknown if number is None else f"{number}{unit}"


_GRANTS: tuple[Column[_Row], ...] = (
    Column("GPU", lambda row: row.card.label, left=True),
    Column("CONTAINER", lambda row: (row.grant.container or "-")[:_SHORT], left=True),
    Column("NAME", lambda row: _name(row.grant), left=True),
    Column("GPU-UTIL", lambda row: _number(row.card.sm_percent, "?", " %")),
    Column("COMPUTE", lambda row: "-" if row.grant.thread_percent == _NO_LIMIT else f"{row.grant.thread_percent} %"),
    Column("WEIGHT", lambda row: _number(row.card.weight, "-")),
    Column("MEM-USED", lambda row: _number(row.card.used_mib, "?", " MiB")),
    Column("MEM-GRANTED", lambda row: f"{row.card.memory_mib} MiB"),
)
_GPUS: tuple[Column[GpuUse], ...] = (
    Column("GPU", lambda gpu: gpu.label, left=True),
    Column("GPU-UTIL", lambda gpu: _number(gpu.sm_percent, "?", " %")),
    Column("POLICY", lambda gpu: f"{gpu.policy} {gpu.policy_name}", left=True),
    Column("MAX-INST", lambda gpu: _number(gpu.max_inst, "-")),
    Column("FREE-WEIGHT", lambda gpu: _number(gpu.free_weight, "-" if gpu.max_inst is None else "?")),
    Column("FREE-MEM", lambda gpu: _number(gpu.free_mib, "?", " MiB")),
    Column("FREE-PERCENT", lambda gpu: _number(gpu.free_percent, "?", " %")),
)
