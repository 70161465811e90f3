"""`mpsd demo`: everything that mpsd does, on simulated GPUs, narrated as it happens.

However it ends, nothing that it started is left.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired

from mpsd.platform.command_line import flag, takes
from mpsd.platform.console import ExitCode, complaints, extra_needed
from mpsd.platform.imports import STOP_SIGNALS, Stopped, first_signal_stops
from mpsd.platform.local_api import NotRunning
from mpsd.simulator import own_mpsd
from mpsd.simulator.demo.story import DemoFailed, DemoStory

_UNEXPECTED = (
    DemoFailed,
    NotRunning,
    TimeoutError,
    TimeoutExpired,
    EOFError,
    HTTPException,
    ConnectionRefusedError,
)
GPUS = "A30×2"  # two cards of 24 GiB
_NEEDS = (
    *("aiohttp", "google.protobuf", "grpc", "psutil", "tenacity"),
    *("cryptography", "kubernetes", "prometheus_client", "urllib3"),
)


@takes(
    flag("--json", dest="as_json", help="One JSON object a step, for machines."),
    flag("--keep", help="Keep a cluster with two Jobs up until Ctrl-C."),
)
def demo(*, as_json: bool = False, keep: bool = False) -> None:
    """Show what mpsd does, on a computer without a GPU and without Kubernetes, in under half a
    minute.

    A cluster of one node with two simulated GPUs and mpsd's real programs: the sample Job is
    refused, admitted, scheduled and runs under its limits; a second shares its GPU; a program
    exceeds its grant; the agent is killed without an effect on the Jobs. Every line is what
    happened; the exit code is 1 where something was not as expected. --keep prints how to use the
    cluster with kubectl, and what to break.

        mpsd demo
        mpsd demo --keep
        mpsd demo --json | jq -r .text
    """
    _check_modules()
    story = DemoStory(as_json=as_json)
    try:
        with _workplace() as folder:
            if keep:
                _keep_cluster(story, folder)
            else:
                _play_cluster(story, folder)
        story.tell(
            "clean", "Nothing is left: no process, mount, cgroup or file.", folder=str(folder)
        )
        code: int = ExitCode.YES
    except _UNEXPECTED as error:
        complaints().print(f"mpsd demo: unexpected: {error}")
        code = ExitCode.NO
    except Stopped as stopped:
        complaints().print("mpsd demo: stopped; everything that it had started is removed")
        code = 128 + stopped.signum
    sys.exit(code)


def _check_modules() -> None:
    """Before anything starts: the programs of the cluster would each complain in a log of its
    own."""
    with extra_needed("mpsd demo", "agent,webhook"):
        for name in _NEEDS:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


def _play_cluster(story: DemoStory, folder: Path) -> None:
    from mpsd.simulator.demo import acts
    from mpsd.simulator.demo.cluster import DemoCluster

    acts.play(story, DemoCluster(folder, GPUS))


def _keep_cluster(story: DemoStory, folder: Path) -> None:
    """Two Jobs on a cluster that stays up until a signal."""
    from mpsd.simulator.demo import acts
    from mpsd.simulator.demo.cluster import DemoCluster

    cluster = DemoCluster(folder, GPUS)
    acts.begin(story, cluster)
    acts.share(story, cluster, acts.admit(story, cluster))
    try:
        acts.explain_use(story, cluster)
        cluster.wait()
    except Stopped:
        story.chapter("Clean-up")
        own_mpsd.end_all()  # without a drain: its Jobs run until somebody ends them


# -- nothing is left


@contextmanager
def _workplace() -> Iterator[Path]:
    """A folder; at its end everything that was started is gone. DemoFailed where something was left
    before."""
    own_mpsd.adopt_orphans()
    folder: Path | None = None
    try:
        with first_signal_stops():
            # until it is known which folder is to go
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            folder = Path(tempfile.mkdtemp(prefix="mpsd-"))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            yield folder
            left = own_mpsd.processes()
            DemoStory.check(not left, f"these processes are left: {left}")
    finally:
        if folder is not None:
            own_mpsd.remove(folder, folder.name)
    found = [
        *own_mpsd.cgroups(folder.name),
        *own_mpsd.mounts(folder),
        *filter(Path.exists, [folder]),
    ]
    DemoStory.check(not found, f"this is left: {found}")
