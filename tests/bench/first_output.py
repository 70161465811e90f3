"""How long somebody waits for the first word of a look at 500 nodes, beside `kubectl get mps`.

A simulated API server with 500 MPSNodes of 8 GPUs and 4000 pods, as a process of its own. The
programs take turns, so that what else the machine does meets them alike; what is judged is the
median of the differences from `kubectl get mps` of the same round. First word: the first byte on
standard output. One machine: an agent with two simulated GPUs.
"""

import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpsd.bench.rules.claims import ClaimVerdict
from mpsd.simulator.own_mpsd import OwnMpsd
from tests.bench.rows import Row, median_row

MOST_S = 0.3  # after `kubectl get mps`
NODES, PODS, ROUNDS = 500, 4000, 13
_LONGEST_S = 60.0
_BIN = Path(sys.executable).parent
_YARDSTICK = ("kubectl", "get", "mps")
_ASKED: Mapping[str, Sequence[str]] = {
    "kubectl_mps": ("kubectl", "mps"),
    "status_cluster": ("mpsd", "status", "--cluster"),
    "kubectl_mps_top": ("kubectl", "mps", "top", "--once"),
    "status_machine": ("mpsd", "status"),
}


@dataclass(frozen=True, slots=True)
class _Took:
    """Seconds to the first byte, and to the end."""

    first_s: float
    whole_s: float


def first_output(machine: OwnMpsd, rounds: int = ROUNDS) -> Iterator[tuple[str, Row]]:
    """A row a program."""
    with _api() as kubeconfig:
        environment = {
            **os.environ,
            "MPSD_RUN_DIR": str(machine.run_directory),
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{_BIN}:{os.environ['PATH']}",
        }
        took: dict[Sequence[str], list[_Took]] = {
            words: [] for words in (_YARDSTICK, *_ASKED.values())
        }
        for words in took:
            _run(words, environment)  # once for the caches of files
        for _round in range(rounds):
            for words, found in took.items():
                found.append(_run(words, environment))
    base_s = statistics.median(one.first_s for one in took[_YARDSTICK])
    for name, words in _ASKED.items():
        later_s = [
            one.first_s - base.first_s
            for one, base in zip(took[words], took[_YARDSTICK], strict=True)
        ]
        first_s = statistics.median(one.first_s for one in took[words])
        whole_s = statistics.median(one.whole_s for one in took[words])
        what = (
            f"{' '.join(words)}: first output after {first_s:.3f} s, {first_s / base_s:.2f} times"
            " kubectl get mps"
        )
        about = f"{what} (the baseline); all {whole_s:.3f} s"
        yield f"first_{name}", median_row(later_s, "s later", MOST_S, base_s, about)


@contextmanager
def _api() -> Iterator[Path]:
    """A kubeconfig of a server that has the nodes, whose MPSNodes have told a moment ago."""
    folder = Path(tempfile.mkdtemp(prefix="mpsd-first-"))
    argv = [sys.executable, "-m", "tests.bench.many_nodes", str(folder), str(NODES), str(PODS)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert select.select([server.stdout], (), (), _LONGEST_S)[0], (
            "the API server does not begin"
        )
        assert server.stdout.readline() == b"ready\n"
        yield folder / "kubeconfig"
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=_LONGEST_S)
        shutil.rmtree(folder)


def _run(words: Sequence[str], environment: Mapping[str, str]) -> _Took:
    began = time.perf_counter()
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert select.select([process.stdout], (), (), _LONGEST_S)[0], f"nothing from {words}"
    first_s = time.perf_counter() - began
    output, errors = process.communicate(timeout=_LONGEST_S)
    assert output, errors
    return _Took(first_s, time.perf_counter() - began)


def main() -> int:
    """Alone: `python -m tests.bench.first_output`."""
    from tests.bench.rows import show

    with tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
        machine = OwnMpsd(Path(folder), ["--simulate", "H200×2"])
        try:
            machine.wait_until_ready()
            rows = dict(first_output(machine))
        finally:
            machine.stop()
    show(rows)
    return int(any(row.verdict is ClaimVerdict.BROKEN for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
