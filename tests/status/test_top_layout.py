"""A frame of `top` fits the terminal, whatever its size and whatever is in it."""

import os
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mpsd.model.cluster_status import ServedGpu
from mpsd.model.node_report import GrantReport
from mpsd.status.rules.top import Sort, Top, TopUser
from mpsd.status.top_show import View, lines

amounts = st.none() | st.integers(0, 200_000)
names = st.text(max_size=60) | st.just("default/train-7xk2p") | st.just("日本語" * 20)
gpus = st.builds(
    ServedGpu,
    label=names,
    model=names,
    state=st.none() | names,
    promised_mib=amounts,
    granted_mib=amounts,
    used_mib=amounts,
    clients=st.none() | st.integers(0, 200),
    sm_percent=st.none() | st.integers(0, 100),
)
grants = st.builds(
    GrantReport, pod=names, claim=names, thread_percent=st.none() | st.integers(0, 100)
)
users = st.builds(
    TopUser,
    node=st.sampled_from(["", "gpu-a1"]),
    name=names,
    label=names,
    memory_mib=amounts,
    used_mib=amounts,
    sm_percent=st.none() | st.integers(0, 100),
    clients=st.none() | st.integers(0, 48),
    over=st.booleans(),
    grant=st.none() | grants,
)
tops = st.builds(
    Top,
    st.just(1.0),
    st.lists(gpus, max_size=12).map(tuple),
    st.lists(users, max_size=40).map(tuple),
    st.lists(names, max_size=5).map(tuple),
    st.sampled_from(["", "mpsd does not run here"]),
)
CODES = re.compile(r"\x1b\[[0-9;]*m")


@given(tops, st.integers(20, 200), st.integers(4, 60), st.integers(0, 50))
def test_no_line_is_wider_and_there_are_no_more_lines_than_the_terminal_has(
    top: Top, columns: int, rows: int, first: int
) -> None:
    view = View("mpsd top", Sort.MEMORY, 0).moved(first, top)
    shown = [CODES.sub("", line) for line in lines(top, view, os.terminal_size((columns, rows)))]
    assert len(shown) <= rows
    assert all(cell_len(line) <= columns for line in shown)
    assert all(line.isprintable() for line in shown), (
        "no terminal obeys what somebody has named his pod"
    )


@given(st.lists(users, min_size=30, max_size=40).map(tuple), st.integers(0, 60))
def test_rows_that_do_not_fit_are_counted(there: tuple[TopUser, ...], first: int) -> None:
    top = Top(1.0, (), there, ())
    view = View("mpsd top", Sort.MEMORY, 0).moved(first, top)
    shown = "\n".join(CODES.sub("", line) for line in lines(top, view, os.terminal_size((200, 24))))
    found = re.search(r"users (\d+) to (\d+) of (\d+)", shown)
    assert found
    assert int(found[1]) == min(first, len(there) - 1) + 1
    assert int(found[3]) == len(there)
