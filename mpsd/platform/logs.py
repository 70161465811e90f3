"""Logging: one line an event, with fields; JSON for machines, colour for a terminal.

The entry point of a process configures them once; everything else takes a logger and formats nothing.
"""

import sys

import structlog
from structlog.typing import FilteringBoundLogger, Processor

Logger = FilteringBoundLogger


def configure(log_format: str) -> None:
    """log_format: `json`, `console`, or `auto` (console on a terminal). Lines go to standard error."""
    as_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if as_console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def be_silent() -> None:
    """For a program whose whole output is its answer, and which says itself what goes wrong."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))


def logger(**fields: object) -> Logger:
    bound: Logger = structlog.get_logger(**fields)
    return bound
