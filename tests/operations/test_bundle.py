"""What of a part is in a bundle, and what the index says of it."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.node_status import ClientStatus, NodeStatus, without_arguments
from mpsd.operations.bundle.rules.contents import BundlePart, IndexEntry, cut, index, log_kept, missing_part


@given(st.text(max_size=400), st.integers(0, 300))
def test_a_part_is_never_longer_than_it_may_be_and_says_what_is_left_out(text: str, most_bytes: int) -> None:
    whole = text.encode(errors="replace")
    data, left_out = cut(text, most_bytes)
    assert len(data) <= most_bytes
    assert (left_out == 0) == (len(whole) <= most_bytes)
    if not left_out:
        assert data == whole
    elif most_bytes > 60:
        said, _newline, end = data.partition(b"\n")
        assert said == b"[%d bytes before this are left out]" % left_out
        assert whole.endswith(end)
        assert len(end) + left_out == len(whole)


def test_a_log_keeps_its_end_in_whole_lines() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    lines = cut(text, 100)[0].splitlines()
    assert lines[1:] == [b"line %d" % number for number in range(1000)][-len(lines) + 1 :]


def test_no_way_to_a_part_that_takes_what_others_wrote_takes_a_secret() -> None:
    assert "hunter2" not in log_kept('command="x hunter2"')
    assert "hunter2" not in missing_part("a", "b", "cannot read postgres://x:hunter2@y").missing


def test_the_index_names_what_is_there_what_was_cut_and_what_could_not_be_had() -> None:
    entries = [
        IndexEntry(BundlePart("a.txt", "some text", "x"), 1),
        IndexEntry(BundlePart("b.log", "a log", "{}"), 5, left_out=7),
    ]
    told = index("node n", "1.0", "today", [*entries, IndexEntry(missing_part("c.json", "numbers", "no right"), 0)])
    assert told.startswith("Support bundle of node n, made by mpsd 1.0 at today\n")
    assert "\na.txt: some text\n" in told
    assert "\nb.log: a log (its last 5 bytes; 7 before them are left out)\n" in told
    assert told.endswith("Not here: 1\nc.json: numbers: no right\n")


def test_a_reason_is_one_line_of_the_index_and_never_none() -> None:
    assert missing_part("a", "b", "it failed:\nno data\n").missing == "it failed: no data"
    assert missing_part("a", "b", "").missing


def test_commands_lose_their_arguments() -> None:
    client = ClientStatus(1, "GPU-0", 1, True, None, "python3 x.py hunter2")
    status = without_arguments(NodeStatus(0.0, "580", (), (), (), (client,), (), ()))
    assert status.clients is not None
    assert status.clients[0].command == "python3 [arguments redacted]"
