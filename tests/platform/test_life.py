"""How a process that lasts ends: by the first error of a task, and never held by what does not
end."""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.captured import captured

_PRODUCT = Path(__file__).parents[2] / "mpsd"
# Tasks whose error is that of whoever awaits them.
AWAITED = {
    "admission/review_api.py: self._ask_labels(self._kube, name)": "a review",
    "admission/review_api.py: ask(name)": "a review",
    "cli/kubelet_node.py: one": "until_one_ends",
    "cli/kubelet_node.py: self._serving_changed.wait()": "until_one_ends",
    "admission/webhook.py: loop": "until_one_ends",
    "cli/scheduler.py: loop": "until_one_ends",
    "status/report.py: create_task": "until_one_ends",
    "containers/requested_ends.py: asyncio.gather(*stops)": "a request",
    "mps/canary.py: self._run(pipe, policy)": "its supervisor",
    "platform/kube_mirror.py: self._kube.date(_ANSWER_S)": "the watch",
    "status/page/claims.py: self._ask(due, policy)": "who asks for the page",
    "status/page/feed.py: self._run()": "nobody: it logs what the page costs",
}
_BEGIN = {"create_task", "ensure_future"}
_PARTS = {"simulator", "bench"}  # processes for tests and demonstrations


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in _PRODUCT.rglob("*.py"):
        name = str(path.relative_to(_PRODUCT))
        if name.partition("/")[0] not in _PARTS and name != "platform/life.py":
            yield name, ast.parse(path.read_text())


def begun(tree: ast.AST) -> Iterator[str]:
    """What becomes a task, but in a group of `life.Tasks`."""
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called.add(node.func)
            in_group = ast.unparse(node.func.value) == "tasks"
            if node.func.attr in _BEGIN and not in_group:
                yield ast.unparse(node.args[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _BEGIN and node not in called:
            yield node.attr


def test_every_task_ends_the_process_or_is_awaited_for_its_error() -> None:
    found = {f"{name}: {what}" for name, tree in sources() for what in begun(tree)}
    assert found == AWAITED.keys()


def test_every_group_of_tasks_notices_the_first_error() -> None:
    groups = [name for name, tree in sources() if "asyncio.TaskGroup" in ast.unparse(tree)]
    assert groups == ["cli/control.py"], "which names the type alone"


_PROGRAM = """
import asyncio, sys, threading
from mpsd.platform import event_loop, life, logs

async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def fails():
    raise LookupError("what failed\\nin two lines")

async def in_a_group():
    async with life.Tasks() as tasks:
        tasks.create_task(stubborn())
        await asyncio.sleep(0)
        tasks.create_task(fails())

async def in_the_background():
    kept = asyncio.create_task(stubborn()), life.background(fails())
    await asyncio.Event().wait()

async def one_of_many():
    tasks = [asyncio.create_task(one) for one in (stubborn(), fails())]
    try:
        await event_loop.until_one_ends(tasks)
    finally:
        await stubborn()

async def in_a_callback():
    throttle = event_loop.Throttle(lambda: 1 / 0, 0)
    throttle.ask()
    await stubborn()

async def in_a_thread():
    threading.Thread(target=lambda: 1 / 0, name="reader").start()
    await stubborn()

async def of_its_own():
    kept = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await fails()

async def held_at_the_end():
    kept = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    return 0

async def signalled():
    stop = event_loop.until_signalled(lambda: None)
    for _signal in range(3):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    await stubborn()

async def signalled_while_it_dies():
    life.DYING_S = 3600
    life.background(fails())
    await asyncio.sleep(0.01)
    signal.raise_signal(signal.SIGTERM)
    await stubborn()

import signal
logs.configure("json", "info")
if "dies" not in sys.argv[1]:
    life.DYING_S = 0.2
sys.exit(life.run("mpsd test", globals()[sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("way", "line"),
    [
        ("in_a_group", "fails: LookupError: "),
        ("in_the_background", "fails: LookupError: "),
        ("one_of_many", "fails: LookupError: "),
        ("in_a_callback", "Throttle._now: ZeroDivisionError: "),
        ("in_a_thread", "thread reader: ZeroDivisionError: "),
        ("of_its_own", "LookupError: "),
        ("held_at_the_end", "ended before it had stopped, waiting for stubborn"),
        ("signalled", "ended by a third SIGTERM"),
        ("signalled_while_it_dies", "fails: LookupError: "),
    ],
)
def test_a_process_ends_by_the_first_error_whatever_does_not_end(way: str, line: str) -> None:
    done = captured([sys.executable, "-c", _PROGRAM, way], check=False)
    assert done.returncode == 1
    *logged, last = done.stderr.splitlines()
    assert last.startswith(f"mpsd test: {line}")
    (said,) = [one for one in map(json.loads, logged) if one["event"] == "process ends"]
    assert said["reason"] in last


def test_what_it_is_expected_to_raise_is_its_callers() -> None:
    code = (
        "from mpsd.platform import life\nasync def main(): raise LookupError\n"
        "try: life.run('mpsd test', main, (LookupError,))\nexcept LookupError: print('raised')\n"
    )
    done = captured([sys.executable, "-c", code])
    assert (done.stdout, done.stderr) == ("raised\n", "")
