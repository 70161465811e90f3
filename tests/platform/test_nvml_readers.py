"""NVML by reader processes: one GPU whose calls do not return is not read, and the others are. A
reader that is stopped is one whose call does not return."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from mpsd.platform.limits_files import load_limits
from mpsd.platform.nvml import Nvml, NvmlFailed, NvmlLate
from mpsd.platform.nvml_readers import GpuReaders
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml

FACTS = load_limits(None).facts


def program(node: SimulatedNode) -> tuple[str, ...]:
    return (sys.executable, "-m", "mpsd.simulator.nvml", str(node.folder))


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return create_node(tmp_path / "node", cards_asked("A30x3", FACTS), FACTS.capabilities)


@pytest.fixture
def read(node: SimulatedNode) -> Iterator[Nvml]:
    opened = Nvml(None, readers=GpuReaders(program(node)))
    opened.open()
    for ordinal in range(3):
        opened.at(ordinal)
    yield opened
    opened.close()


@pytest.fixture
def late(read: Nvml, node: SimulatedNode) -> psutil.Process:
    """The reader of GPU 1, resumed after a question that it did not answer in time."""
    stopped = reader(1)
    stopped.suspend()
    with pytest.raises(NvmlLate):
        read.used_mib(node.gpus[1].uuid)
    stopped.resume()
    return stopped


def processes() -> list[psutil.Process]:
    """The host, and its readers in the order in which they were forked."""
    hosts = [one for one in psutil.Process().children() if "mpsd.simulator.nvml" in line_of(one)]
    return [hosts[-1], *hosts[-1].children()]


def line_of(process: psutil.Process) -> list[str]:
    """Empty of one that has ended."""
    return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()


def reader(ordinal: int) -> psutil.Process:
    return processes()[1 + ordinal]


def answers(nvml: Nvml, node: SimulatedNode, ordinal: int) -> bool:
    try:
        return nvml.used_mib(node.gpus[ordinal].uuid) >= 0
    except NvmlFailed:
        return False


def counts(readers: GpuReaders) -> bool:
    try:
        return readers.ask("count", within_s=30) == 3
    except NvmlFailed:
        return False


def is_unread(nvml: Nvml, uuid: str) -> bool:
    try:
        nvml.used_mib(uuid)
    except NvmlLate:
        return False
    except NvmlFailed:
        return True
    return False


def test_readers_say_what_the_library_says(read: Nvml, node: SimulatedNode) -> None:
    here = Nvml(SimulatedNvml(node.folder), node.folder / "sys")
    here.open()
    assert [read.at(ordinal) for ordinal in range(3)] == [here.at(one) for one in range(3)]
    assert (read.count(), read.driver(), read.cuda()) == (3, here.driver(), here.cuda())
    for gpu in node.gpus:
        assert read.uses(gpu.uuid) == here.uses(gpu.uuid)
        assert read.compute_mode(gpu.uuid) == here.compute_mode(gpu.uuid)
    here.close()


def test_an_error_of_nvml_is_told_in_its_words(read: Nvml, node: SimulatedNode) -> None:
    node.card(1).lost = True
    with pytest.raises(NvmlFailed, match="GPU is lost") as error:
        read.used_mib(node.gpus[1].uuid)
    assert not isinstance(error.value, NvmlLate)
    node.card(1).lost = False
    assert answers(read, node, 1)


def test_one_whose_calls_do_not_return_is_late_then_unread(read: Nvml, node: SimulatedNode) -> None:
    uuid = node.gpus[1].uuid
    reader(1).suspend()
    with pytest.raises(NvmlLate):
        read.used_mib(uuid)
    until(lambda: is_unread(read, uuid))
    assert answers(read, node, 0)
    assert answers(read, node, 2)


def test_it_is_read_again_once_its_call_returns(
    read: Nvml, node: SimulatedNode, late: psutil.Process
) -> None:
    until(lambda: answers(read, node, 1))
    assert late.is_running()


def test_while_one_does_not_answer_another_speaks_for_the_machine(read: Nvml) -> None:
    reader(0).suspend()
    assert read.driver()


@pytest.mark.usefixtures("late")
def test_a_late_answer_is_for_its_own_question(read: Nvml, node: SimulatedNode) -> None:
    uuid = node.gpus[1].uuid
    until(lambda: _listed(read, uuid) == ())


@pytest.mark.usefixtures("late")
def test_after_a_late_answer_questions_in_turn_get_theirs(read: Nvml, node: SimulatedNode) -> None:
    uuid = node.gpus[1].uuid
    in_turn = itertools.cycle([read.uses, read.drawing, read.mps_pids])

    def is_answered() -> bool:
        try:
            next(in_turn)(uuid)
        except NvmlLate:
            return False
        return True

    until(is_answered)


def _listed(nvml: Nvml, uuid: str) -> object:
    try:
        return nvml.uses(uuid)
    except NvmlLate:
        return None


def test_a_reader_that_is_left_behind_is_replaced(read: Nvml, node: SimulatedNode) -> None:
    stopped = reader(1)
    stopped.suspend()
    until(lambda: answers(read, node, 1))
    assert stopped not in processes()


def test_a_reader_that_dies_is_replaced(read: Nvml, node: SimulatedNode) -> None:
    reader(1).kill()
    until(lambda: answers(read, node, 1))


def test_a_host_that_dies_is_replaced(read: Nvml, node: SimulatedNode) -> None:
    host, first, *_others = processes()
    host.kill()
    assert answers(read, node, 0)
    first.kill()
    until(lambda: answers(read, node, 0))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_for_mpsd_end_no_reader(
    read: Nvml, node: SimulatedNode, signum: signal.Signals
) -> None:
    before = processes()
    for one in before:
        one.send_signal(signum)
    assert all(answers(read, node, ordinal) for ordinal in range(3))
    assert processes() == before


def test_none_is_left_after_the_end(read: Nvml) -> None:
    before = processes()
    before[3].suspend()
    read.close()
    until(lambda: not any(one.is_running() for one in before))


def test_none_is_left_once_whoever_asks_is_killed(node: SimulatedNode) -> None:
    asks = (
        "import sys; from mpsd.platform.nvml_readers import GpuReaders;"
        " readers = GpuReaders(sys.argv[1:]); readers.ask('count', within_s=30);"
        " print('asked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", asks, *program(node)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asker:
        assert asker.stdout
        assert asker.stdout.readline() == b"asked\n"
        of_it = psutil.Process(asker.pid).children(recursive=True)
        assert len(of_it) == 2
        os.kill(asker.pid, signal.SIGKILL)
        until(lambda: not any(one.is_running() for one in of_it))


def test_a_host_that_could_not_be_started_is_started_later(
    node: SimulatedNode, tmp_path: Path
) -> None:
    absent = tmp_path / "python"
    _python, *arguments = program(node)
    with closing(GpuReaders((str(absent), *arguments))) as readers:
        assert not counts(readers)
        absent.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        absent.chmod(0o755)
        until(lambda: counts(readers))


def test_what_no_driver_answers_is_told_at_once(tmp_path: Path) -> None:
    readers = GpuReaders((sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(NvmlFailed, match="has ended"):
        Nvml(None, readers=readers).open()
    readers.close()
