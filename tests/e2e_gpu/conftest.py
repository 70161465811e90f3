"""A real NVIDIA GPU below a real kubelet: `make e2e-gpu`, or `pytest tests/e2e_gpu --kubeconfig
FILE`. See README.md.

Asked for where there is no GPU, or where the rig lacks a program, it ends at once with an error; in
a run of all tests it is skipped.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import IN_AGENT, Images
from tests.e2e.machine import Machine, this_machine
from tests.e2e.shares import CLIENT, Pods
from tests.e2e.waiting import eventually
from tests.e2e_gpu import image
from tests.e2e_gpu.cards import Cards, cards_here, nvidia_smi
from tests.e2e_gpu.installation import REAL, SIMULATE, GpuInstallation, on_gpus
from tests.e2e_gpu.record import GpuRunRecord
from tests.e2e_gpu.rig import Rig, missing_programs, started

_HERE = Path(__file__).parent
PROGRAMS = Path(os.environ.get("KUBE_PROGRAMS") or Path.home() / ".cache" / "kube-1.36.2")
_WIDEST = 320
_SEEN = pytest.StashKey[set[int]]()
# What says most comes first, what takes the node down last.
_ORDER = (
    "at_rest",
    "limits",
    "violations",
    "managed_memory",
    "restarts",
    "frameworks",
    "tools",
    "crowd",
    "admission",
    *("pod_ends", "claims", "driver_upgrades", "recovery", "end"),
)


def _is_asked_for(config: pytest.Config) -> bool:
    """By its name on the command line, not among all tests."""
    return any(
        Path(argument.partition("::")[0]).resolve().is_relative_to(_HERE)
        for argument in config.args
    )


def _why_not(config: pytest.Config) -> str:
    """Empty where nothing keeps these tests from running."""
    if config.getoption("--kubeconfig"):
        return (
            ""
            if os.environ.get("MPSD_E2E_IMAGE")
            else "MPSD_E2E_IMAGE must name mpsd's image, as the node finds it"
        )
    if not SIMULATE and not cards_here():
        return (
            "no NVIDIA GPU here (nvidia-smi lists none); run it on a machine with one, or with"
            " --kubeconfig FILE"
        )
    if os.geteuid() != 0:
        return "the rig needs root; or name a cluster with --kubeconfig FILE"
    if missing := missing_programs(PROGRAMS, simulated=bool(SIMULATE)):
        return (
            f"the rig lacks {', '.join(missing)}: tests/e2e_gpu/README.md says where each is from"
        )
    return ""


def pytest_configure(config: pytest.Config) -> None:
    if not _is_asked_for(config) or config.option.collectonly:
        return
    if why := _why_not(config):
        pytest.exit(f"tests/e2e_gpu cannot run, and nothing was tested: {why}", returncode=2)
    if file := config.getoption("--record"):
        config.pluginmanager.register(GpuRunRecord(file), GpuRunRecord.NAME)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for = _is_asked_for(config)
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))
            if not asked_for:
                item.add_marker(
                    pytest.mark.skip(reason="needs a GPU below a kubelet: make e2e-gpu")
                )
    if asked_for:
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Behind the tests of other folders."""
    return _ORDER.index(item.path.stem.removeprefix("test_")) if _HERE in item.path.parents else -1


@pytest.fixture(scope="session")
def rig(pytestconfig: pytest.Config) -> Iterator[Rig | None]:
    """None on somebody's cluster."""
    if pytestconfig.getoption("--kubeconfig"):
        yield None
        return
    try:
        with started(PROGRAMS, simulated=bool(SIMULATE)) as running:
            yield running
    except AssertionError as failed:
        notes = "\n".join(getattr(failed, "__notes__", ()))
        pytest.exit(f"the rig did not come up: {failed}\n{notes}", returncode=2)


@pytest.fixture(scope="session")
def cluster(rig: Rig | None, pytestconfig: pytest.Config) -> Cluster:
    return Cluster(rig.kubeconfig if rig else pytestconfig.getoption("--kubeconfig").absolute())


@pytest.fixture(scope="session")
def cards(rig: Rig | None) -> Cards:
    """Those of this machine; it has their settings from before anything of mpsd ran."""
    return Cards(cards_here() if rig and not SIMULATE else "")


@pytest.fixture(scope="session")
def mpsd(
    cluster: Cluster,
    rig: Rig | None,
    cards: Cards,
    pytestconfig: pytest.Config,
) -> Iterator[GpuInstallation]:
    """Installed once, for all tests: it takes half a minute."""
    images = Images(
        image.MPSD if rig else os.environ["MPSD_E2E_IMAGE"],
        rig.scheduler_image if rig else os.environ.get("MPSD_E2E_KUBE_SCHEDULER", ""),
    )
    with on_gpus(cluster, images, on_rig=rig is not None, simulate=SIMULATE) as running:
        if record := pytestconfig.pluginmanager.get_plugin(GpuRunRecord.NAME):
            record.look_at(cluster, cards)
        yield running


@pytest.fixture(scope="module")
def pods(request: pytest.FixtureRequest, cluster: Cluster, mpsd: GpuInstallation) -> Iterator[Pods]:
    """At its end everything that they held has been given back."""
    with cluster.namespace() as name:
        yield Pods(cluster, name, mpsd.image, CLIENT if SIMULATE else REAL)
    if request.session.exitstatus != pytest.ExitCode.INTERRUPTED:
        eventually(mpsd.is_ledger_at_zero, "no grant is left", within_s=60.0)


@pytest.fixture
def machine(rig: Rig | None) -> Machine:
    return this_machine()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What fails shows at once how the node stood then; once, where a fixture fails for all of its
    tests."""
    report = yield
    if report.failed and call.excinfo and _HERE in item.path.parents:
        seen = item.config.stash.setdefault(_SEEN, set[int]())
        fixtures = getattr(item, "funcargs", {})
        installation = fixtures.get("mpsd")
        if id(call.excinfo.value) not in seen and isinstance(installation, GpuInstallation):
            report.sections.append(("the node", as_it_stands(installation, fixtures.get("pods"))))
        seen.add(id(call.excinfo.value))
    return report


def as_it_stands(installation: GpuInstallation, pods: Pods | None) -> str:
    cluster = installation.cluster
    looks = [("get", "mps", "-o", "wide"), (*IN_AGENT, "mpsd", "status")]
    if pods:
        looks.append(("get", "pods,events", "-n", pods.namespace, "-o", "wide"))
    said = [f"{one.out}{one.err}" for one in (cluster.kubectl(*look) for look in looks)]
    dump = "\n\n".join([installation.as_it_stands(), *said, nvidia_smi()])
    return "\n".join(line[:_WIDEST] for line in dump.splitlines())
