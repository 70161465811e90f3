"""What mpsd-runtime in front of runc costs a container's start, against runc alone, in pairs."""

import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.bench.rows import Row, median_row
from tests.host.bundle import RUNC, why_not
from tests.host.container import Container
from tests.host.host import Host, host_of

_ROUNDS = 31
_LIMIT_MS = 80.0
_ASKS = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}


def runtime() -> Iterator[tuple[str, Row]]:
    """Rows about one T4; none where runc cannot run."""
    if why_not():
        return
    for host in host_of("T4"):
        # keeps the domain from changing its limits each time
        host.container(_ASKS, "sleep", "1000").create()
        about = (
            "create and start of a container that asks for a share: how much longer than by runc"
            " alone, the median"
        )
        about += " of pairs; baseline: runc alone"
        yield "runtime_asking", _row(host, _ASKS, about)
        yield "runtime_plain", _row(host, {}, "the same of a container that asks for nothing")


def _row(host: Host, environment: Mapping[str, str], about: str) -> Row:
    pairs = []
    for number in range(_ROUNDS):
        took: dict[bool, float] = {}
        for by_mpsd in (True, False) if number % 2 else (False, True):
            took[by_mpsd] = _start_ms(host, environment if by_mpsd else {}, by_mpsd)
        pairs.append(took)
    more_ms = (pair[True] - pair[False] for pair in pairs)
    return median_row(
        more_ms, "ms", _LIMIT_MS, statistics.median(pair[False] for pair in pairs), about
    )


def _start_ms(host: Host, environment: Mapping[str, str], by_mpsd: bool) -> float:
    """A new bundle each time, as an engine makes it; what is no part of the start is not
    counted."""
    made = host.container(environment, "sleep", "1000")
    if not by_mpsd:
        made = Container(Path(RUNC), host.root, made.name, made.bundle, host.environment)
    began = time.monotonic()
    created, started = made.create(), made.start()
    took_s = time.monotonic() - began
    for done in (created, started, made.delete(force=True)):
        if done.code != 0:
            raise RuntimeError(f"{done}")
    return took_s * 1000
