"""Options that several verbs share, each with the variable that stands for it (`platform.settings` reads those)."""

from typing import Annotated, Any

import typer

from mpsd.platform.console import Format
from mpsd.platform.settings import ROWS as LISTEN_ROWS
from mpsd.platform.settings import Row

RunDirectory = Annotated[
    str | None,
    typer.Option(
        "--run-dir", metavar="DIR", help="Sockets and records (MPSD_RUN_DIR; /run/mpsd for root).", show_default=False
    ),
]
LimitsDirectory = Annotated[
    str | None,
    typer.Option(
        "--limits",
        metavar="DIR",
        help="policy.yaml and gpus.yaml (MPSD_LIMITS; else those shipped).",
        show_default=False,
    ),
]
Simulate = Annotated[
    str | None,
    typer.Option(
        "--simulate",
        metavar="MODEL×N",
        help="Simulated GPUs, such as H200×2 or A30x2,T4 (MPSD_SIMULATE).",
        show_default=False,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="FORMAT", help="json, console or auto (MPSD_LOG_FORMAT).", show_default=False),
]


def setting(row: Row, metavar: str, text: str) -> Any:
    """The flag of a setting that has a row; its help says the variable and the default too."""
    default = f"; {row.default}" if row.default else ""
    return typer.Option(row.flag, metavar=metavar, help=f"{text} ({row.variable}{default}).", show_default=False)


ListenAt = Annotated[
    str | None,
    setting(LISTEN_ROWS["listen"], "ADDRESS:PORT,…", "Serve the page and metrics there; others bring a token"),
]
ListenCertificate = Annotated[
    str | None,
    setting(LISTEN_ROWS["listen_certificate"], "DIR", "tls.crt and tls.key to be shown there; else one is made"),
]

OutputFormat = Annotated[
    Format, typer.Option("-o", "--output", metavar="FORMAT", help="text for people, json for machines.")
]
