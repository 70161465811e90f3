"""A class shares one world and one daemon; what a single test starts besides ends with that
test."""

import os
from collections.abc import Generator, Iterator

import pytest

from tests.contract.journal import Journal
from tests.contract.platforms import SIMULATED, NotReady, Platform, Real, Simulated
from tests.contract.world import Daemon, World, open_folder

_JOURNAL = pytest.StashKey[Journal]()
_PLATFORM = pytest.StashKey[Platform]()


def _journal(config: pytest.Config) -> Journal:
    return config.stash.setdefault(_JOURNAL, Journal())


def pytest_runtest_setup(item: pytest.Item) -> None:
    _journal(item.config).begin(item.nodeid.removeprefix("tests/contract/"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        _journal(item.config).end(report.outcome, item.user_properties)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.getoption("--record")
    if file and _PLATFORM in session.config.stash:
        _journal(session.config).write(file, session.config.stash[_PLATFORM].described())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[str, list[str]] = {}
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, value in report.user_properties:
            if name == "end":
                kernels, end, died, tries = value
                rows.setdefault(kernels, []).append(f"{end} {died}/{tries}")
    if rows:
        terminalreporter.section("neighbours that went with a client")
    for kernels, cells in rows.items():
        terminalreporter.line(f"{kernels:<12}{'  '.join(cells)}")


@pytest.fixture(scope="session")
def real() -> Real:
    return on_real()


def on_real(*, instances: bool = False) -> Real:
    try:
        return Real(instances=instances)
    except NotReady as reason:
        pytest.exit(f"--gpu: {reason}", returncode=1)


@pytest.fixture(scope="class")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Simulated: the CARDS of the file, under its DRIVER."""
    file, config = request.module, request.config
    platform: Platform | None = None
    if config.getoption("--gpu"):
        platform = request.getfixturevalue("real")
    folder = open_folder()
    if platform is None:
        platform = Simulated(folder / "node", getattr(file, "CARDS", SIMULATED))
        if driver := getattr(file, "DRIVER", ""):
            (folder / "node" / "driver").write_text(driver)
    config.stash[_PLATFORM] = platform
    opened = World(platform, folder, _journal(config))
    yield opened
    opened.close()


@pytest.fixture(scope="class")
def daemon(world: World) -> Daemon:
    """One that every test of the class may use and none may end."""
    return world.daemon()


@pytest.fixture(autouse=True)
def _clients_end_with_their_test(world: World) -> Iterator[None]:
    before = world.clients
    yield
    world.end_clients(since=before)


@pytest.fixture
def other_user() -> int:
    if os.getuid() != 0:
        pytest.skip("needs root, to be another user")
    return 65534
