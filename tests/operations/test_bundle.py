"""What a bundle takes: listed fields. A secret is not in it, wherever it stands."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.node_report import ClientReport, NodeReport
from mpsd.model.problem import InvalidInput, program_of
from mpsd.model.redaction import without_arguments
from mpsd.operations.bundle.archive import bundle_to
from mpsd.operations.bundle.rules.contents import (
    BundlePart,
    cut,
    daemon_log_kept,
    events_kept,
    faults_kept,
    index,
    log_kept,
    missing_part,
    settings_kept,
)
from mpsd.platform.limits_files import read_policy

PEM = "-----BEGIN PRIVATE KEY-----\nhid3denhid3den\n-----END PRIVATE KEY-----"
JOURNAL = "2026-11-22T20:00:00+0000 host mpsd[12]: "
# Each has `hid3den` in it, which is what must go.
FORMS = [
    "hid3den",
    "password=hid3den",
    "postgres://me:hid3den@db.example/x",
    "mysql -u root -phid3den db",
    PEM,
]
forms = pytest.mark.parametrize("text", FORMS)


@forms
def test_a_secret_in_a_line_of_a_log_is_not_in_it(text: str) -> None:
    known = {"event": "granted", "command": f"a.out {text}", "gpu": "gpu0"}
    other = {"event": "granted", "api_key": text, "text": text, "exception": f"ValueError: {text}"}
    unit = f"2026-11-22T20:00:00+0000 host systemd[1]: mpsd.service:3: Invalid assignment: {text}"
    for log in (text, json.dumps(known), json.dumps(other), f"{JOURNAL}{text}", unit):
        assert "hid3den" not in log_kept(log)


@forms
def test_a_secret_in_a_line_of_the_daemon_is_not_in_it(text: str) -> None:
    line = "[2026-11-21 01:47:08.933 Control   550] "
    assert "hid3den" not in daemon_log_kept(f"{line}client {text}\n{text}\n{line}Cmd:{text}\n")


@forms
def test_a_secret_in_a_file_of_limits_is_not_in_what_is_wrong(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_policy({"version": "v1", "note": text}, "policy.yaml")
    assert "hid3den" not in faults_kept(raised.value)
    assert "note: field-unknown" in faults_kept(raised.value)


@given(st.dictionaries(st.text(max_size=12), st.just("hid3den")))
def test_only_listed_fields_of_a_line_are_in_it(fields: dict[str, str]) -> None:
    kept = json.loads(
        log_kept(json.dumps(fields | {"note": {"gpu": "hid3den"}, "event": "granted"}))
    )
    assert kept.pop("event") == "granted"
    assert "note" not in kept
    assert set(kept) <= set(fields)


def test_lines_of_mpsds_own_logs_keep_what_is_listed() -> None:
    line = '{"event": "granted", "gpu": "gpu0", "memory_mib": 7168, "reason": "it is free"}'
    assert log_kept(line) == f"{line}\n"
    assert log_kept(f"{JOURNAL}{line}\n") == f"{JOURNAL}{line}\n"
    unit = (
        f"{JOURNAL.replace('mpsd[12]', 'systemd[1]')}mpsd.service: Failed with result 'signal'.\n"
    )
    assert log_kept(unit) == unit
    assert log_kept("a\nb\n") == "[2 lines are not of a known form and left out]\n"


def test_a_traceback_keeps_its_places_and_the_name_of_the_error() -> None:
    places = 'Traceback (most recent call last):\n  File "/x/mpsd/cli/up.py", line 7, in up\n'
    left_out = "[1 lines are not of a known form and left out]\n"
    assert (
        log_kept(f"{places}    run(secret)\nOSError: hid3den\n") == f"{places}OSError\n{left_out}"
    )


def test_the_daemons_log_keeps_its_events_with_time_and_pid() -> None:
    when, failed = "2026-11-21 01:47:08.933", "Server encountered a fatal exception"
    text = (
        f"[{when} Control   550] Starting new server 551 for user 0\n[{when} Server   551]"
        f" {failed}\n"
    )
    assert daemon_log_kept(text) == f"{when} server starting: 551\n{when} fatal exception\n"


def test_of_variables_mpsds_own_are_in_it() -> None:
    environment = [
        {"name": "NOTE", "value": "hid3den"},
        {"name": "MPSD_RUN_DIR", "value": "/run/mpsd"},
    ]
    assert settings_kept(environment) == {"MPSD_RUN_DIR": "/run/mpsd"}


def test_events_are_of_agents_or_of_kubernetes_on_mpsds_objects() -> None:
    event = {"reason": "MPSDomainFailed", "message": "gpu0 is wedged", "note": "hid3den"}
    own = {"involvedObject": {"kind": "Pod", "namespace": "mpsd-system", "name": "mpsd-agent-x"}}
    taken = [
        event | {"source": {"component": "mpsd-agent"}},
        event | own | {"source": {"component": "kubelet"}},
        event | own | {"source": {"component": "somebody"}},
        event | {"source": {"component": "kubelet"}},
        event,
    ]
    kept = events_kept(taken)
    assert [one["by"] for one in kept] == ["mpsd-agent", "kubelet"]
    assert kept[1]["of"]["name"] == "mpsd-agent-x"
    assert "hid3den" not in json.dumps(kept)


def test_commands_lose_their_arguments() -> None:
    client = ClientReport(pid=1, gpu="GPU-0", command="python3 x.py hunter2")
    status = without_arguments(NodeReport(clients=(client,)))
    assert status.clients is not None
    assert status.clients[0].command == "python3 [arguments redacted]"
    assert program_of("TOKEN=hid3den ./train") == "[redacted] [arguments redacted]"
    assert program_of("https://me:hid3den@git.example") == "[redacted]"


@pytest.mark.parametrize("unit", ['{"a":', "[20", "Error: ", "/run/"])
def test_a_text_made_to_be_slow_is_not(unit: str) -> None:
    text = unit * (60_000 // len(unit))
    assert isinstance(log_kept(text), str)
    assert isinstance(daemon_log_kept(text), str)


# -- parts and index


@given(st.text(max_size=400), st.integers(0, 300))
def test_a_part_is_never_longer_than_it_may_be(text: str, most_bytes: int) -> None:
    whole = text.encode(errors="replace")
    part = cut(BundlePart("a.log", "a log", text), most_bytes)
    data = part.text.encode(errors="replace")
    assert len(data) <= most_bytes or data == whole
    assert whole.endswith(data)
    assert ("its last" in part.about) == (len(whole) > most_bytes)


def test_a_log_keeps_its_end_in_whole_lines() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    lines = cut(BundlePart("a.log", "a log", text), 100).text.splitlines()
    assert lines == [f"line {number}" for number in range(1000)][-len(lines) :]


def test_the_index_names_what_is_there_and_what_could_not_be_had() -> None:
    missing = missing_part("c.json", "numbers", "cannot read\npostgres://x:hunter2@y\n")
    told = index("Support bundle", [BundlePart("a.txt", "some text", "x"), missing])
    assert "\na.txt: some text\n" in told
    assert told.endswith("Not here: 1\nc.json: numbers: cannot read postgres://y\n")
    assert missing_part("a", "b", "").missing


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is not a plain file"),
        ("none/out.tar.gz", "cannot be written: No such file or directory"),
        ("a" * 254, "cannot be written: File name too long"),  # another name until it is whole
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_gathered(
    tmp_path: Path, name: str, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why), bundle_to(str(tmp_path / name), "mpsd", "it"):
        pytest.fail("something was gathered")
    assert list(tmp_path.iterdir()) == []
