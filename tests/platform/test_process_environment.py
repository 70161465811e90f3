"""What a hostile process calls its environment, and a read of it that never ends: nobody waits for
it, and what no exec can have made is forged."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform import processes
from mpsd.platform.process_environment import (
    ForgedEnvironment,
    NoEnvironment,
    _environment_in_memory,
    claims_environment,
    environment_of,
    read_environment,
    variables_in,
)
from mpsd.platform.threaded_read import ThreadedRead
from tests.world.captured import captured

HOSTILE = str(Path(__file__).parents[1] / "world/hostile_process.py")
GIB, TIB = 1024**3, 1024**4
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="it becomes another user's")


@contextmanager
def hostile(how: str, size: int) -> Iterator[int]:
    with subprocess.Popen([sys.executable, HOSTILE, how, str(size)], stdout=-1) as process:
        assert process.stdout
        assert process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@needs_root
@pytest.mark.parametrize(("how", "size"), [("range", 100 * TIB), ("region", GIB)])
def test_an_environment_that_no_exec_makes_is_forged(how: str, size: int) -> None:
    with hostile(how, size) as pid:
        with pytest.raises(ForgedEnvironment):
            read_environment(pid, ("A",))
        assert environment_of(pid, ("A",)) is None


@needs_root
def test_a_range_that_is_not_mapped_is_claimed_and_empty() -> None:
    with hostile("range", 4096) as pid:
        with pytest.raises(NoEnvironment):
            read_environment(pid, ("A",))
        with pytest.raises(NoEnvironment):
            variables_in(_environment_in_memory(pid), ("A",))
        assert claims_environment(pid)


@needs_root
def test_as_large_as_one_can_be_it_is_read() -> None:
    with hostile("region", 6_000_000) as pid:
        assert read_environment(pid, ("A", "B")) == {"A": "1"}


TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=9)


@given(
    st.lists(st.tuples(st.sampled_from(["A", "AB", "B", ""]), TEXT), max_size=6),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_wherever_it_is_cut_the_first_of_each_name_is_found(
    entries: list[tuple[str, str]], cuts: list[int]
) -> None:
    block = "".join(f"{name}={value}\0" for name, value in entries).encode()
    ends = sorted({0, *cuts, len(block) + 1})
    pieces = [block[begin:end] for begin, end in pairwise(ends)]
    expected = {name: value for name, value in reversed(entries) if name in {"A", "B"}}
    if not block:
        with pytest.raises(NoEnvironment):
            variables_in(pieces, ("A", "B"))
    else:
        assert variables_in(pieces, ("A", "B")) == expected


@pytest.mark.parametrize(
    "pieces", [[b"A=" + b"a" * 4097 + b"\0"], [b"C" * 70_000] * 2, [b"C=1\0" * 16_000] * 100]
)
def test_what_is_longer_than_any_is_forged(pieces: list[bytes]) -> None:
    with pytest.raises(ForgedEnvironment):
        variables_in(pieces, ("A",))


@needs_root
def test_a_read_that_never_ends_is_left_behind_and_ends_with_the_process() -> None:
    with hostile("stuck", 0) as pid:
        read = ThreadedRead(partial(list, _environment_in_memory(pid)))
        with pytest.raises(TimeoutError):
            read.value(0.1)
    read.value(10)
    assert read.has_ended


@needs_root
def test_with_the_rights_of_the_agents_container_nobody_waits_for_it() -> None:
    """It has CAP_SYS_PTRACE and neither CAP_DAC_OVERRIDE nor CAP_DAC_READ_SEARCH."""
    script = (
        "import sys\nfrom mpsd.platform import process_environment, processes\npid ="
        " int(sys.argv[1])\nprint(process_environment.environment_of(pid, ('A',)),"
        " processes.command_of(pid).split()[-2:])"
    )
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    with hostile("stuck", 0) as pid:
        said = captured([*drop, sys.executable, "-c", script, str(pid)]).stdout
    assert said == "None ['stuck', '0']\n"


@needs_root
def test_a_name_with_line_breaks_changes_nothing_of_what_is_read() -> None:
    with hostile("named", 0) as pid:
        assert processes.identity_of(pid)
        assert processes.user_of(pid) == 65534
