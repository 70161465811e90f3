"""The ways through the house: how many files run for one request, one review and one violation.

Each is measured: mpsd's own programs run on the simulated machine of the tests, and a profiler in
them (`trace.py`) writes down every module of the product of which a function is
called between the entry of the way and its return, in the tasks that it starts too. A generated
method, such as the constructor of a dataclass, counts for the module of its class. Modules that
only run while they are imported do not count, nor does the simulator.

- request: a container asks for `aliyun.com/gpu-mem: 7`. From kubelet's call of Allocate until the
  agent has answered it
  with the container's environment.
- review: the API server asks about the same pod. From the HTTP request to /validate until its
  answer.
- violation: a container raises its own limit and takes more than was granted. From the scan of the
  GPU's processes,
  through the judgement, until its process is ended and the event of its pod is written down. All
  scans of the run count together, those that found nothing too.

The aims are for files outside `model/` and `platform/`, whose nouns and readers every subject uses;
the total is printed beside them.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mpsd.simulator.programs import wait_until
from tests.house.figures import Figure
from tests.house.tree import NOT_PRODUCT
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, pod
from tests.whole.webhook.api_server import api_server
from tests.whole.webhook.world import (
    DEADLINE_S,
    bundles,
    gpu_pod,
    is_registered,
    put_shipped_objects,
    review_of,
    webhook,
)

# Where each way begins, by the qualified name of the function: the one table to change when an
# entry is renamed.
ENTRIES = {
    "request": "PluginServer.Allocate",
    "review": "ReviewApi._respond",
    "violation": "Watchdog._cycle",
}
AIMS = {"request": 12, "review": 8, "violation": 10}
_BELOW = frozenset({"model", "platform"})


def ways() -> Mapping[str, list[str]]:
    """The modules of each way. LookupError where an entry was never called, as after it was
    renamed."""
    folder = Path(tempfile.mkdtemp(prefix="house-"))
    try:
        with _traced(folder):
            _request_and_violation()
            _review()
        found = _read(folder)
    finally:
        shutil.rmtree(folder)
    missing = [entry for way, entry in ENTRIES.items() if not found[way]]
    if missing:
        raise LookupError(
            f"never called: {', '.join(missing)}; name the entries of today in {__name__}.ENTRIES"
        )
    return found


def way_figures(found: Mapping[str, list[str]]) -> list[Figure]:
    """Two for each way: the one that has an aim, and the total."""
    listed = []
    for way, modules in found.items():
        own = [name for name in modules if name.split(".")[1] not in _BELOW]
        listed.append(
            Figure(f"files that run for a {way}, without model/ and platform/", len(own), AIMS[way])
        )
        listed.append(Figure("  with these", len(modules)))
    return listed


@contextmanager
def _traced(folder: Path) -> Iterator[None]:
    """Every program of mpsd that is forked meanwhile writes into the folder."""
    entries = ",".join(f"{way}={entry}" for way, entry in ENTRIES.items())
    before = dict(os.environ)
    os.environ |= {"HOUSE_ENTRIES": entries, "HOUSE_FOLDER": str(folder)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _request_and_violation() -> None:
    """A pod of 7 GiB; then one of 2 GiB that raises its limit, takes 4 GiB and is ended."""
    cluster = Cluster("A30")
    try:
        cluster.begin()
        cluster.running("asks", 7)
        liar = pod("liar", 2)
        lifted = (
            f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=0 exec {sys.executable} -m"
            " mpsd.simulator.cuda_client alloc=4000 hold"
        )
        liar["spec"]["containers"][0]["command"] = ["sh", "-c", lifted]
        cluster.apply(liar)
        eventually(
            lambda: cluster.phase("liar") == "Failed", "the pod that takes too much is ended"
        )
        eventually(lambda: cluster.agent.logged("ended"), "the agent has seen its memory come back")
        cluster.agent.send(signal.SIGTERM)
        cluster.agent.exit_code()
    finally:
        cluster.destroy()


def _review() -> None:
    with tempfile.TemporaryDirectory() as made, api_server() as api:
        put_shipped_objects(api)
        folder = Path(made)
        with webhook(folder, kubeconfig=str(api.kubeconfig(folder))) as running:
            wait_until(lambda: is_registered(api), DEADLINE_S, "the webhook is registered", 0.02)
            assert running.review("/validate", review_of(gpu_pod()), bundles(api)[0])["allowed"]


def _read(folder: Path) -> dict[str, list[str]]:
    """The modules by way, in the order in which they were first seen."""
    found: dict[str, list[str]] = {way: [] for way in ENTRIES}
    for path in folder.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            way, _space, module = line.strip().partition(" ")
            if (
                line.endswith("\n")
                and module not in found[way]
                and module.split(".")[1] not in NOT_PRODUCT
            ):
                found[way].append(module)
    return found
