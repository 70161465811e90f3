"""Bundles that were made to deceive: refused or harmless, never a traceback, never a container
without its limits."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.containers.runtime.ground import Ground
from tests.containers.runtime.mpsd_answers import Answers, answering
from tests.containers.runtime.test_create import ASK, SIX, granted


def _huge(config: Path) -> None:
    with config.open("wb") as file:
        file.truncate(100 * 1024**2)


def _link(config: Path) -> None:
    there = config.with_name("there")
    there.write_text("{}")
    config.symlink_to(there)


def _fifo(config: Path) -> None:
    os.mkfifo(config)


def _nested(config: Path) -> None:
    config.write_text('{"process":' + "[" * 100_000 + "]" * 100_000 + "}")


def _nested_at_last(config: Path) -> None:
    config.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def _text(text: str | bytes) -> Callable[[Path], object]:
    return lambda config: config.write_bytes(text.encode() if isinstance(text, str) else text)


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "100 MB": _huge,
    "a link": _link,
    "a fifo": _fifo,
    "a directory": Path.mkdir,
    "nested 100k deep": _nested,
    "objects nested 100k deep": _nested_at_last,
    "missing": lambda config: None,
    "empty": _text(""),
    "cut": _text('{"process": {"env": ["A=b"'),
    "two values": _text("{} {}"),
    "a list": _text("[]"),
    "NaN": _text('{"x": NaN}'),
    "a number of 10k digits": _text('{"x": ' + "1" * 10_000 + "}"),
    "no JSON": _text(b"\xff\xfe\x00"),
    "a process that is a text": _text('{"process": "x"}'),
    "an environment that is an object": _text('{"process": {"env": {"A": "b"}}}'),
    "an entry that is a number": _text('{"process": {"env": [1]}}'),
    "a NUL": _text('{"process": {"env": ["A=b\\u0000EGPU=1"]}}'),
    "a field in another case": _text('{"process": {}, "Process": {"env": ["EGPU=1"]}}'),
    "a field that Go folds": _text('{"proceſs": {"env": ["EGPU=1"]}}'),
}


@pytest.mark.parametrize("made", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_config_that_cannot_be_read_as_the_next_runtime_reads_it_is_refused(
    ground: Ground, made: Callable[[Path], object]
) -> None:
    made(ground.config)
    ended = ground.create()
    assert ended.code == 1
    assert ended.said.startswith("mpsd-runtime: container c1: ")
    assert ended.said.count("\n") == 1
    assert ground.heard is None


@pytest.mark.parametrize(
    "entries",
    [
        (*SIX, "ALIYUN_COM_GPU_MEM_CONTAINER=7"),
        (*SIX, "NVIDIA_VISIBLE_DEVICES=all"),
        ("EGPU=\ud800",),
    ],
)
def test_a_variable_that_two_read_differently_is_refused(
    ground: Ground, entries: tuple[str, ...]
) -> None:
    ground.write(*entries)
    with answering(ground.run_directory, Answers({ASK: granted(ground)})) as mpsd:
        ended = ground.create()
    assert ended.code == 1
    assert mpsd.asked == []
    assert "the variable " in ended.said


def test_newlines_repeats_and_bytes_that_are_no_utf8_are_harmless(ground: Ground) -> None:
    ground.write(*SIX, SIX[0], "X=a\nEGPU=1", "Y=\udc80", "=", "nothing")
    ground.config.write_bytes(ground.config.read_bytes().replace(b'"x"', b'"\xff"'))
    with answering(ground.run_directory, Answers({ASK: granted(ground)})) as mpsd:
        assert ground.create().code == 0
    assert mpsd.asked[0].body["environment"] == dict(entry.split("=") for entry in SIX)
    kept = ground.edited["process"]["env"]
    assert {"X=a\nEGPU=1", "Y=\udc80", "=", "nothing"} <= set(kept)


@pytest.mark.parametrize(
    "inside",
    [
        "/run/mpsd/client",
        "/run/mpsd",
        "/run/mpsd/client/control",
        "/run//mpsd/../mpsd/client/",
        "run/mpsd",
        "/var/run/mpsd/client",
        "/../run/./mpsd/",
    ],
)
def test_a_mount_over_mpsds_place_is_refused(ground: Ground, inside: str) -> None:
    before = ground.write(*SIX, mounts=[{"destination": inside, "type": "bind", "source": "/tmp"}])
    with answering(ground.run_directory, Answers({ASK: granted(ground)})):
        ended = ground.create()
    assert ended.code == 1
    assert "hides /run/mpsd/client" in ended.said
    assert ground.config.read_bytes() == before


@pytest.mark.parametrize("inside", ["/run", "/", "/run/mpsd2", "/run/mpsd/other", "/mnt/run/mpsd"])
def test_a_mount_that_lies_below_mpsds_or_beside_it_is_kept(ground: Ground, inside: str) -> None:
    mount = {"destination": inside, "type": "tmpfs", "source": "tmpfs"}
    ground.write(*SIX, mounts=[mount])
    with answering(ground.run_directory, Answers({ASK: granted(ground)})):
        assert ground.create().code == 0
    mounts = ground.edited["mounts"]
    assert mounts[0] == mount
    assert mounts[-1]["destination"] == "/run/mpsd/client"


def test_another_device_at_the_gates_place_is_refused_and_the_same_one_is_not_made_twice(
    ground: Ground,
) -> None:
    device = {"path": "/run/mpsd/gate", "type": "c", "major": 1, "minor": 5}
    ground.write(*SIX, linux={"devices": [device]})
    with answering(ground.run_directory, Answers({ASK: granted(ground)})):
        assert ground.create().code == 1
        ground.write(*SIX, linux={"devices": [device | {"minor": 3}]})
        assert ground.create().code == 0
        assert len(ground.edited["linux"]["devices"]) == 1
        assert ground.create().code == 0
    assert len(ground.edited["linux"]["devices"]) == 1


def test_a_file_left_by_one_that_was_killed_is_no_hindrance(ground: Ground) -> None:
    ground.write(*SIX)
    (ground.bundle / ".config.json.mpsd").symlink_to(ground.folder / "elsewhere")
    with answering(ground.run_directory, Answers({ASK: granted(ground)})):
        assert ground.create().code == 0
    assert not (ground.folder / "elsewhere").exists()
    assert not ground.config.is_symlink()


def test_a_record_of_a_stranger_is_refused(ground: Ground) -> None:
    ground.write(*SIX)
    (ground.bundle / "mpsd-runtime.json").write_text(json.dumps({"added": {"lists": 5}}))
    with answering(ground.run_directory, Answers({ASK: granted(ground)})):
        ended = ground.create()
    assert ended.code == 1
    assert "mpsd-runtime.json" in ended.said
