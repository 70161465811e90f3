"""`create` and `run`: what reaches the next runtime, and what is asked of mpsd; real programs and a
real socket."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from mpsd.grants.rules.messages import ContainerAnswer, HostContainerRequest, Refusal
from mpsd.model.grants import DeviceNode, HostMount
from tests.containers.runtime.ground import Ground, names
from tests.containers.runtime.mpsd_answers import Answers, answering
from tests.world.unread import unread

ASK = "/v1/containers"
SIX = ("ALIYUN_COM_GPU_MEM_CONTAINER=6", "NVIDIA_VISIBLE_DEVICES=0")


NOTHING: dict[str, object] = {"grant": "g", "environment": {}, "mounts": [], "devices": []}


def granted(ground: Ground, **changes: object) -> tuple[int, object]:
    """As `mpsd up` answers: its own dataclass, encoded as it encodes it."""
    answer = ContainerAnswer(
        "g7",
        {"CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/client", "NVIDIA_VISIBLE_DEVICES": "GPU-7"},
        (HostMount(str(ground.folder), "/run/mpsd/client", read_only=True),),
        (DeviceNode("/dev/null", "/run/mpsd/gate", "r"),),
        ("WEIGHT is not what cGPU makes of it",),
    )
    return 201, msgspec.to_builtins(answer) | changes


def test_a_bundle_that_asks_for_nothing_stays_as_it_was_and_nobody_is_asked(ground: Ground) -> None:
    before = ground.write("NVIDIA_VISIBLE_DEVICES=all", "ALIYUN_COM_GPU_OOM_SCRIPT=/x")
    ended = ground.create("--pid-file", "p")
    assert (ended.code, ended.said) == (0, "")
    assert ground.heard
    assert ground.heard["config"].encode() == before
    assert names(ground.bundle) == {"config.json"}
    assert ground.events == []


def test_what_is_handed_on_is_what_came(ground: Ground) -> None:
    ground.write()
    reading, writing = os.pipe()
    environment = {"PATH": "/bin:/usr/bin", "LISTEN_FDS": "1", "X": "a\nb"}
    arguments = ["--root", str(ground.root), "--log", "l", "--debug", "run", "-d"]
    arguments += ["--bundle", str(ground.bundle), "c1"]
    try:
        ended = ground.call(*arguments, pass_fds=(reading,), env=environment)
    finally:
        os.close(reading)
        os.close(writing)
    heard = ground.heard
    assert heard
    assert ended.code == 0
    assert heard["pid"] == ended.pid
    assert heard["argv"][1:] == arguments
    assert heard["environ"].items() >= environment.items()
    of_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert heard["environ"].keys() - environment.keys() <= of_shell
    assert reading in heard["descriptors"]


def test_a_grant_is_written_into_the_bundle(ground: Ground) -> None:
    ground.write(
        *SIX, "CUDA_MPS_PIPE_DIRECTORY=/mine", mounts=[{"destination": "/run", "type": "tmpfs"}]
    )
    ground.config.chmod(0o640)
    with answering(ground.run_directory, Answers({ASK: granted(ground)})) as mpsd:
        ended = ground.create()
    assert ended.code == 0
    assert ended.said == "mpsd-runtime: WEIGHT is not what cGPU makes of it\n"
    config = ground.edited
    assert ground.heard
    assert json.loads(ground.heard["config"]) == config
    assert config["process"]["env"] == [
        "PATH=/bin",
        "ALIYUN_COM_GPU_MEM_CONTAINER=6",
        "CUDA_MPS_PIPE_DIRECTORY=/run/mpsd/client",
        "NVIDIA_VISIBLE_DEVICES=GPU-7",
    ]
    assert config["x"] == {"kept": [1.5]}
    assert [mount["destination"] for mount in config["mounts"]] == ["/run", "/run/mpsd/client"]
    assert config["mounts"][1]["options"] == ["bind", "rprivate", "nosuid", "nodev", "ro"]
    null = {"type": "c", "major": 1, "minor": 3}
    assert config["linux"]["devices"][0].items() >= (null | {"path": "/run/mpsd/gate"}).items()
    assert config["linux"]["resources"]["devices"] == [null | {"allow": True, "access": "r"}]
    (hook,) = config["hooks"]["poststop"]
    assert hook["path"] == hook["args"][0] == str(ground.program)
    assert hook["args"][-3:] == ["--root", str(ground.root), "over"]
    assert stat.S_IMODE(ground.config.stat().st_mode) == 0o640
    assert names(ground.bundle) == {"config.json", "mpsd-runtime.json"}
    (asked,) = mpsd.asked
    six = dict(entry.split("=") for entry in SIX)
    assert msgspec.convert(asked.body, HostContainerRequest, strict=True) == HostContainerRequest(
        str(ground.root),
        "c1",
        "",
        six,
        "",
        (),
        host_ipc=True,
        runtime=str(ground.following),
        host_root=True,
    )
    assert [event["event"] for event in ground.events] == ["asked", "granted"]
    assert ground.events[1]["grant"] == "g7"
    assert stat.S_IMODE(ground.log.stat().st_mode) == 0o640


def test_everything_that_is_asked_is_told(ground: Ground) -> None:
    fields = {"linux": {"namespaces": [{"type": "ipc"}]}, "annotations": {"nerdctl/name": "train"}}
    ground.write("EGPU=x=y", "ALIYUN_COM_GPU_OOM_SCRIPT=/s", "A=b", **fields)
    config = ground.edited
    config["process"]["capabilities"] = {"bounding": ["CAP_KILL"], "effective": ["CAP_SYS_ADMIN"]}
    config["process"]["user"] = {"uid": 1000, "gid": 1000}
    ground.config.write_text(json.dumps(config))
    with answering(ground.run_directory, Answers({ASK: (204, None)})) as mpsd:
        ground.create()
    asks = msgspec.convert(mpsd.asked[0].body, HostContainerRequest, strict=True)
    assert asks == HostContainerRequest(
        str(ground.root),
        "c1",
        "train",
        {"EGPU": "x=y"},
        "/s",
        ("CAP_KILL",),
        False,
        str(ground.following),
        False,
    )


@pytest.mark.parametrize("path", ["/proc/self/ns/ipc", "/proc/thread-self/ns/ipc"])
def test_a_namespace_that_is_ours_by_path_is_the_machines(ground: Ground, path: str) -> None:
    ground.write(*SIX, linux={"namespaces": [{"type": "ipc", "path": path}]})
    with answering(ground.run_directory, Answers({ASK: (204, None)})) as mpsd:
        ground.create()
    assert mpsd.asked[0].body["host_ipc"] is True


def test_nothing_asked_after_all_leaves_the_bundle_byte_for_byte(ground: Ground) -> None:
    before = ground.write("AMP_VGPU_ENABLE=0")
    inode = ground.config.stat().st_ino
    with answering(ground.run_directory, Answers({ASK: (204, None)})):
        assert ground.create().code == 0
    assert ground.config.read_bytes() == before
    assert ground.config.stat().st_ino == inode
    assert names(ground.bundle) == {"config.json"}
    assert [event["event"] for event in ground.events] == ["asked", "off"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_refusal_reaches_the_user_and_the_engine(ground: Ground, form: str) -> None:
    before = ground.write(*SIX)
    refusal = Refusal(("GPU 0 has 3 GiB left; ask for less", 'a "quoted" one'), for_ever=True)
    errors = ground.folder / "log.json"
    with answering(ground.run_directory, Answers({ASK: (409, msgspec.to_builtins(refusal))})):
        ended = ground.call(
            *("--log", str(errors), "--log-format", form, "create", "-b", str(ground.bundle), "c1")
        )
    assert ended.code == 1
    assert [
        line.removeprefix("mpsd-runtime: container c1: ") for line in ended.said.splitlines()
    ] == [*refusal.reasons]
    assert ground.heard is None
    assert ground.config.read_bytes() == before
    (line,) = errors.read_text().splitlines()
    if form == "json":
        entry = json.loads(line)
        assert entry["level"] == "error"
        assert all(reason in entry["msg"] for reason in refusal.reasons)
    else:
        assert line.startswith('time="20')
        assert ' level=error msg="mpsd-runtime: container c1: GPU 0 has 3 GiB left' in line
    assert ground.events[-1]["event"] == "refused"
    assert ground.events[-1]["reasons"] == [*refusal.reasons]


@pytest.mark.parametrize(
    "answer",
    [
        (201, {"grant": "g"}),
        (201, NOTHING | {"environment": {"A=B": "c"}}),
        (201, NOTHING | {"mounts": [{"source": "x", "inside": "/x"}]}),
        (201, NOTHING | {"devices": [{"source": "/etc", "inside": "/x", "access": "r"}]}),
        (201, NOTHING | {"devices": [{"source": "/dev/null", "inside": "/x", "access": "a"}]}),
        (201, []),
        (200, {}),
        (500, "no"),
    ],
)
def test_an_answer_that_cannot_be_carried_out_changes_nothing(
    ground: Ground, answer: tuple[int, object]
) -> None:
    before = ground.write(*SIX)
    with answering(ground.run_directory, Answers({ASK: answer})):
        ended = ground.create()
    assert ended.code == 1
    assert "Traceback" not in ended.said
    assert ground.config.read_bytes() == before
    assert ground.heard is None


def test_a_bundle_that_asks_no_more_loses_all_of_its_grant(ground: Ground) -> None:
    ground.write(*SIX)
    answers = Answers({ASK: granted(ground)})
    with answering(ground.run_directory, answers):
        ground.create()
        answers.by_url[ASK] = (204, None)
        assert ground.create().code == 0
    config = ground.edited
    assert sorted(config["process"]["env"]) == sorted(["PATH=/bin", *SIX])
    assert config["mounts"] == config["hooks"]["poststop"] == config["linux"]["devices"] == []
    assert names(ground.bundle) == {"config.json"}


def test_one_that_is_killed_at_any_moment_leaves_nothing_behind(ground: Ground) -> None:
    before = ground.write(*SIX)
    argv = [ground.program, "--root", ground.root, "create", "-b", ground.bundle, "c1"]
    with answering(ground.run_directory, Answers({ASK: granted(ground)})) as mpsd:
        assert ground.create().code == 0
        wanted = ground.edited
        ground.config.write_bytes(before)
        for turn in range(20):
            asked = len(mpsd.asked)
            killed = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 20
            while len(mpsd.asked) == asked and time.monotonic() < deadline:
                time.sleep(0.0002)
            time.sleep(turn * 0.0003)  # not a wait: where it is killed is to differ
            killed.kill()
            killed.wait(10)
            assert ground.edited in (json.loads(before), wanted)
        assert ground.create().code == 0
    assert ground.edited == wanted
    assert names(ground.bundle) == {"config.json", "mpsd-runtime.json"}


def test_a_log_that_cannot_be_written_stops_nothing(ground: Ground) -> None:
    ground.write(*SIX)
    ground.log.parent.write_text("a file where the folder should be")
    with answering(ground.run_directory, Answers({ASK: granted(ground, messages=[])})):
        ended = ground.create()
    assert ended.code == 0
    assert ended.said.count("\n") == 1
    assert "cannot be written" in ended.said


def test_a_next_runtime_that_cannot_be_started_is_126(ground: Ground) -> None:
    text = ground.folder / "text"
    text.write_text("no program")
    text.chmod(0o755)
    assert ground.call("--next", str(text), "state", "c1").code == 126


@pytest.mark.parametrize("name", ["runc", "crun"])
def test_the_root_is_the_next_runtimes_own_where_none_is_given(ground: Ground, name: str) -> None:
    ground.write(*SIX)
    own = ground.folder / name
    own.symlink_to(ground.folder / "next-runtime")
    environment = {"PATH": "/bin", "XDG_RUNTIME_DIR": "/run/user/7"}
    with answering(ground.run_directory, Answers({ASK: (204, None)})) as mpsd:
        ground.call("--next", str(own), "create", "-b", str(ground.bundle), "c1", env=environment)
        ground.call("--root", "r", "--next", str(own), "run", "c1", cwd=ground.bundle)
    roots = [asked.body["root"] for asked in mpsd.asked]
    assert roots == [
        f"/run/user/7/{name}" if os.geteuid() else f"/run/{name}",
        f"{ground.bundle}/r",
    ]


def test_help_teaches_and_goes_on_to_the_next_runtimes(ground: Ground, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho the other: $@\n")
    other.chmod(0o755)
    said = ground.call("--next", str(other), "--help").said
    assert "--run-dir DIR" in said
    assert f"(now: {ground.run_directory})" in said
    assert said.endswith("the other: --help\n")
    assert "the other" not in ground.call("--next", str(other), "--help-mpsd").said
    assert (
        ground.call("--next", str(other), "create", "--help").said == "the other: create --help\n"
    )


def test_a_warning_that_nobody_reads_is_given_up() -> None:
    with unread() as stderr:
        code = "from mpsd.containers.runtime.log import warn; warn('its log cannot be written')"
        done = subprocess.run([sys.executable, "-c", code], stderr=stderr, timeout=60, check=False)
    assert done.returncode == 0


def test_a_long_warning_arrives_whole() -> None:
    code = "from mpsd.containers.runtime.log import warn; warn(100_000 * 'x')"
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=60, check=True
    )
    assert done.stderr == b"mpsd-runtime: " + 100_000 * b"x" + b"\n"
