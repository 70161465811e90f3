"""A frame of `top` fits the terminal, whatever its size and whatever is in it."""

import os
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mpsd.status.rules.top import Sort, Top, TopGpu, TopUser
from mpsd.status.top_show import View, lines

amounts = st.none() | st.integers(0, 200_000)
names = st.text(max_size=60) | st.just("default/train-7xk2p") | st.just("日本語" * 20)
gpus = st.builds(
    TopGpu,
    st.just(""),
    st.just("GPU-1"),
    names,
    names,
    names,
    amounts,
    amounts,
    amounts,
    st.none() | st.integers(0, 200),
    st.none() | st.integers(0, 100),
)
users = st.builds(
    TopUser,
    st.sampled_from(["", "gpu-a1"]),
    names,
    st.just("GPU-1"),
    names,
    amounts,
    amounts,
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 48),
    st.booleans(),
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
