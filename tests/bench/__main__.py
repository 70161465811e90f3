"""Runs the benchmarks, prints the table, writes build/bench.json; exits with 1 where a limit does
not hold.

`--against last` compares with the last record in docs/benchmarks.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from mpsd.bench.rules.claims import ClaimVerdict
from mpsd.platform.limits_files import shipped_folder
from mpsd.simulator.own_mpsd import OwnMpsd
from tests.bench.agent import agent
from tests.bench.first_output import first_output
from tests.bench.fragmentation import fragmentation
from tests.bench.idle import idle
from tests.bench.reactions import reactions
from tests.bench.rows import Row, read, show, write
from tests.bench.runtime import runtime
from tests.bench.scheduler import scheduler
from tests.bench.watchdog import watchdog
from tests.bench.webhook import webhook

RESULT = Path("build/bench.json")
_RECORDS, _LAST = Path("docs/benchmarks"), "last"


def _limits(folder: Path) -> Path:
    """The limits shipped, but for the back-off: killing a daemon again and again is what is
    measured."""
    shutil.copytree(shipped_folder(), folder)
    policy = folder / "policy.yaml"
    policy.write_text(re.sub(r"stable_after_s: \d+", "stable_after_s: 0.1", policy.read_text()))
    return folder


ALONE = (scheduler, fragmentation, webhook, agent, watchdog, runtime)
ON_A_MACHINE = {reactions: "H200×2", first_output: "H200×2", idle: "H200×8"}


def _on_a_machine(
    gpus: str, measure: Callable[[OwnMpsd], Iterable[tuple[str, Row]]]
) -> Iterator[tuple[str, Row]]:
    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
        limits = _limits(Path(folder) / "limits")
        machine = OwnMpsd(Path(folder), ["--simulate", gpus, "--limits", str(limits)])
        try:
            machine.wait_until_ready()
            for name, row in measure(machine):
                print(f"{name}: {row.value:.4g} {row.unit}", file=sys.stderr, flush=True)
                yield name, row
        finally:
            machine.stop()


def _before(against: str) -> dict[str, Row]:
    return read(max(_RECORDS.glob("*-make-bench.json")) if against == _LAST else Path(against))


def main() -> int:
    on_a_machine = {
        one.__name__: partial(_on_a_machine, gpus, one) for one, gpus in ON_A_MACHINE.items()
    }
    groups = {one.__name__: one for one in ALONE} | on_a_machine
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"all unless named: {', '.join(groups)}"
    )
    parser.add_argument("--against", metavar="FILE", help=f"what an earlier run wrote, or {_LAST}")
    asked = parser.parse_args()
    chosen, before = asked.groups, _before(asked.against) if asked.against else None
    if unknown := [name for name in chosen if name not in groups]:
        parser.error(f"{', '.join(unknown)}: no such group; there are {', '.join(groups)}")
    rows: dict[str, Row] = {}
    for name, measure in groups.items():
        if not chosen or name in chosen:
            began = time.monotonic()
            rows |= measure()
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    show(rows, before)
    write(rows, RESULT)
    broken = [name for name, row in rows.items() if row.verdict is ClaimVerdict.BROKEN]
    if broken:
        print(f"over its limit: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
