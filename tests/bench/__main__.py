"""Runs every benchmark, prints the table, writes build/bench.json; exits with 1 where a limit does not hold."""

import re
import shutil
import sys
import tempfile
from pathlib import Path

from mpsd.platform.limits_files import shipped_folder
from mpsd.simulator.demo.machine import DemoMachine
from tests.bench.agent import agent
from tests.bench.decisions import decisions
from tests.bench.extender import extender
from tests.bench.first_output import first_output
from tests.bench.fragmentation import fragmentation
from tests.bench.idle import idle
from tests.bench.metrics import metrics
from tests.bench.page import page
from tests.bench.reactions import reactions
from tests.bench.rows import Row, show, write
from tests.bench.runtime import runtime
from tests.bench.scheduler import scheduler
from tests.bench.watchdog import watchdog
from tests.bench.webhook import webhook

RESULT = Path("build/bench.json")


def _limits(folder: Path) -> Path:
    """The limits shipped, but for the back-off: killing a daemon again and again is what is measured."""
    shutil.copytree(shipped_folder(), folder)
    policy = folder / "policy.yaml"
    policy.write_text(re.sub(r"stable_after_s: \d+", "stable_after_s: 0.1", policy.read_text()))
    return folder


def main() -> int:
    rows: dict[str, Row] = dict(decisions())
    rows |= scheduler()
    rows |= fragmentation()
    rows |= extender()
    rows |= webhook()
    rows |= agent()
    rows |= watchdog()
    rows |= metrics()
    rows |= runtime()
    rows |= page()
    for gpus, measure in (("H200×2", reactions), ("H200×2", first_output), ("H200×8", idle)):
        with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
            machine = DemoMachine(Path(folder), gpus, _limits(Path(folder) / "limits"))
            try:
                machine.wait_until_ready()
                for name, row in measure(machine):
                    print(f"{name}: {row.value:.4g} {row.unit}", file=sys.stderr, flush=True)
                    rows[name] = row
            finally:
                machine.stop()
    show(rows)
    write(rows, RESULT)
    broken = [name for name, row in rows.items() if not row.holds]
    if broken:
        print(f"over its limit: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
