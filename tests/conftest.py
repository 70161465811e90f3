"""Options of the whole test run: what it runs on, and where it writes down what it heard."""

import asyncio
import os
import signal
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parents[1]))  # `tests.contract` is imported by its own files

# Half of the time of the whole is the start of hundreds of programs, and a part of each start is to
# read the authorities of the internet, which nothing here asks.
os.environ |= {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}

# A shell starts what it leaves in the background deaf to Ctrl-C, and so would be every program
# started from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whoever runs these shares the machine: how long an example takes says nothing. The examples of a
# claim are the same in each run, so that a red run is the change's own doing; new ones are looked
# for by `make examples`.
examples = int(os.environ.get("MPSD_EXAMPLES") or 0)
settings.register_profile(
    "shared-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not examples,
    max_examples=examples or 50,
    print_blob=bool(examples),
)
settings.load_profile("shared-machine")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption(
        "--gpu",
        action="store_true",
        help="run tests/contract on this machine's GPUs instead of the simulator",
    )
    parser.addoption(
        "--record",
        type=Path,
        metavar="FILE",
        help=(
            "write as JSON what tests/contract, tests/e2e_gpu or tests/whole/machine/test_ends.py"
            " saw, or to this folder how tests/e2e ended"
        ),
    )
    parser.addoption(
        "--tries",
        type=int,
        metavar="N",
        help=(
            "of each cell of tests/contract/test_ends.py: 5 with --gpu, else 1; of"
            " tests/whole/machine/test_ends.py: 20 or 3; of tests/e2e_gpu/test_pod_ends.py: 3"
        ),
    )
    parser.addoption(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help=(
            "run tests/e2e, and tests/kube_contract in place of the simulator, on this cluster, as"
            " its admin"
        ),
    )
    # pytest-timeout; a machine with a GPU may have pytest alone
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "not in force: pytest-timeout is not installed")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout: not in force: pytest-timeout is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--gpu"):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a real GPU: --gpu"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine runs in a loop of its own. A fixture that is an async context manager is entered
    there, and the test gets what that gives."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def main() -> None:
        async with AsyncExitStack() as entered:
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await entered.enter_async_context(value)
            await pyfuncitem.obj(**given)

    asyncio.run(main())
    return True
