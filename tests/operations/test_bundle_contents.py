"""What a bundle takes: what is known to be harmless. A secret is not in it, wherever it stands and in whatever form."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.node_status import program_of
from mpsd.model.problem import InvalidInput
from mpsd.operations.bundle.rules.contents import (
    LEFT_OUT,
    arguments_kept,
    daemon_log_kept,
    engine_kept,
    environment_kept,
    faults_kept,
    log_kept,
    mpsnode_kept,
    object_kept,
)
from mpsd.platform.limits_files import read_policy

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.hid3den-c2lnbmF0dXJl"
PEM = "-----BEGIN PRIVATE KEY-----\nhid3denhid3den\n-----END PRIVATE KEY-----"

# Each has `hid3den` in it, which is what must go.
FORMS = [
    "password=hid3den",
    "Authorization: Bearer hid3den",
    "postgres://me:hid3den@db.example/x",
    "https://x.example/?X-Amz-Signature=hid3den",
    "the password for user bob is hid3den.",
    "mysql -u root -phid3den db",
    "docker login -p hid3den registry.example",
    "--password hid3den",
    "<password>hid3den</password>",
    "ENV WANDB_API_KEY hid3den",
    "hid3den",
    JWT,
    PEM,
]
forms = pytest.mark.parametrize("text", FORMS)


@forms
def test_a_secret_in_an_argument_is_not_in_it(text: str) -> None:
    assert "hid3den" not in program_of(f"python3 train.py {text}")
    assert "hid3den" not in json.dumps(arguments_kept(["agent", f"--token={text}", "--password", text, text]))


def test_a_command_keeps_its_program_alone() -> None:
    assert program_of("python3 train.py --lr 1") == "python3 [arguments redacted]"
    assert program_of("nvidia-cuda-mps-server") == "nvidia-cuda-mps-server"
    assert program_of("TOKEN=hid3den ./train") == "[redacted] [arguments redacted]"
    assert program_of("https://me:hid3den@git.example") == "[redacted]"


@forms
def test_a_secret_in_a_variable_is_not_in_it_but_its_name(text: str) -> None:
    kept = environment_kept([{"name": "NOTE", "value": text}, {"name": "MPSD_RUN_DIR", "value": "/run/mpsd"}])
    assert kept == [{"name": "NOTE", "value": LEFT_OUT}, {"name": "MPSD_RUN_DIR", "value": "/run/mpsd"}]


@forms
def test_a_secret_in_a_line_of_a_log_is_not_in_it(text: str) -> None:
    known = json.dumps({"event": "granted", "command": f"a.out {text}", "gpu": "gpu0"})
    other = json.dumps({"event": "granted", "api_key": text, "text": text, "exception": f"ValueError: {text}"})
    environment = json.dumps({"event": "asked", "environment": {"NOTE": text, "NVIDIA_VISIBLE_DEVICES": "0"}})
    for log in (text, known, other, environment, f"2026-11-22T20:00:00+0000 host mpsd[12]: {text}"):
        for kept in (log_kept(log), log_kept(f"{known}\n{log}\n{known}")):
            assert "hid3den" not in kept
    unit = f"2026-11-22T20:00:00+0000 host systemd[1]: mpsd.service:3: Invalid assignment, ignoring: {text}"
    assert "hid3den" not in log_kept(unit)


@forms
def test_a_secret_in_a_line_of_the_daemon_is_not_in_it(text: str) -> None:
    assert "hid3den" not in daemon_log_kept(f"[2026-11-21 01:47:08.933 Control   550] client {text}\n{text}\n")


@forms
def test_a_secret_in_a_configuration_is_not_in_it(text: str) -> None:
    runtimes = {"mpsd": {"path": "/usr/local/bin/mpsd-runtime", "runtimeArgs": [text]}}
    value = {"runtimes": runtimes, "proxies": {"token": text}, "registry": {text: {"auth": text}}, "log": text}
    assert engine_kept(value) == {"runtimes": {"mpsd": {"path": "/usr/local/bin/mpsd-runtime"}}}
    assert engine_kept(text) == LEFT_OUT


@forms
def test_a_secret_in_a_file_of_limits_is_not_in_what_is_wrong_with_it(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_policy({"version": "v1", "note": text}, "policy.yaml")
    assert "hid3den" not in faults_kept(raised.value)
    assert "note: field-unknown" in faults_kept(raised.value)


@forms
def test_a_secret_in_an_object_is_not_in_it(text: str) -> None:
    container = {
        "name": "agent",
        "image": "registry.example/mpsd:1",
        "env": [{"name": "NOTE", "value": text}],
        "args": ["agent", f"--token={text}"],
        "command": ["sh", "-c", text],
        "lifecycle": {"postStart": {"exec": {"command": [text]}}},
        "resources": {"limits": {"cpu": "500m", "note": text}},
    }
    labels = {"example.com/note": text, "app.kubernetes.io/name": "mpsd-agent"}
    thing = {
        "kind": "Pod",
        "metadata": {"name": "a", "labels": labels, "annotations": {"note": text}, "managedFields": [text]},
        "spec": {"containers": [container], "nodeName": "gpu-a1"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "message": text}], "message": text},
        "data": {"note": text},
        "message": text,
    }
    kept = object_kept([thing])
    assert "hid3den" not in json.dumps(kept)
    assert kept[0]["metadata"] == {"name": "a", "labels": {"app.kubernetes.io/name": "mpsd-agent"}, "annotations": {}}
    assert kept[0]["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}
    assert kept[0]["spec"]["containers"][0]["args"] == ["agent", "--token"]
    assert "hid3den" not in json.dumps(mpsnode_kept({"metadata": thing["metadata"], "spec": {}, "status": {}}))


_NAMES = st.sampled_from(["name2", "password", "token", "note", "x", "args", "env", "annotations", "spec", "metadata"])


@given(
    st.recursive(
        st.just("hid3den"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, min_size=1, max_size=3),
    ).map(lambda value: {"spec": {"other": value, "args": value, "env": value, "annotations": value}})
)
def test_a_secret_is_in_no_field_that_is_not_known_however_deep(value: Any) -> None:
    assert "hid3den" not in json.dumps(object_kept(value))


def test_what_is_said_by_who_is_known_stays() -> None:
    event = {"type": "Warning", "reason": "MPSDomainFailed", "message": "gpu0 is wedged"}
    assert object_kept(event | {"source": {"component": "mpsd-agent"}})["message"] == "gpu0 is wedged"
    assert "message" not in object_kept(event | {"source": {"component": "somebody"}})
    assert "message" not in object_kept(event)


def test_lines_of_mpsds_own_logs_keep_what_is_known() -> None:
    line = '{"event": "granted", "gpu": "gpu0", "memory_mib": 7168, "reason": "it is free", "level": "info"}'
    prefix = "2026-11-22T20:00:00+0000 host mpsd[12]: "
    assert log_kept(line) == f"{line}\n"
    assert log_kept(f"{prefix}{line}\n") == f"{prefix}{line}\n"
    unit = "2026-11-22T20:00:00+0000 host systemd[1]: mpsd.service: Main process exited, code=killed, status=9/KILL\n"
    assert log_kept(unit) == unit
    assert log_kept("a\nb\n") == "[2 lines are not of a known form and left out]\n"


def test_a_traceback_keeps_its_places_and_the_name_of_the_error() -> None:
    places = 'Traceback (most recent call last):\n  File "/x/mpsd/cli/up.py", line 7, in up\n'
    assert log_kept(f"{places}    run(secret)\nOSError: hid3den\n") == (
        f"{places}OSError\n[1 lines are not of a known form and left out]\n"
    )


def test_every_message_of_a_daemon_that_was_recorded_stays() -> None:
    lost: set[str] = set()
    for transcript in sorted(Path("tests/data/transcripts").glob("*.txt")):
        for line in transcript.read_text(errors="replace").splitlines():
            if line.startswith("[20") and "] " in line and LEFT_OUT in daemon_log_kept(line):
                lost.add(line)
    assert lost == set()


@pytest.mark.parametrize("unit", ['{"a":', "--", "= ", "[20", "Error: ", "Traceback", "a.", "/run/", "kubernetes.io/"])
def test_a_text_made_to_be_slow_is_not(unit: str) -> None:
    text = unit * (60_000 // len(unit))
    assert isinstance(log_kept(text), str)
    assert isinstance(daemon_log_kept(text), str)
    assert isinstance(object_kept({"labels": {text: text}, "args": [text], "limits": {"x": text}}), dict)
