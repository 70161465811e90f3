"""Further processes of a container, and its end."""

import json
import os
import subprocess
import time

import msgspec
import pytest

from mpsd.grants.rules.messages import ExecAnswer, HostContainerName
from tests.containers.runtime.ground import Ended, Ground
from tests.containers.runtime.mpsd_answers import Answers, answering
from tests.containers.runtime.test_create import ASK, granted

NOW = f"{ASK}/environment"
OVER = f"{ASK}/over"


def _exec(ground: Ground, container: str = "c1", **process: object) -> Ended:
    file = ground.folder / "process.json"
    file.write_text(
        json.dumps({"args": ["sh"], "env": ["A=b", "CUDA_MPS_PIPE_DIRECTORY=/mine"]} | process)
    )
    file.chmod(0o640)
    return ground.call("--root", str(ground.root), "exec", "--process", str(file), container)


def _environment(ground: Ground) -> list[str]:
    heard = ground.heard
    assert heard
    process = json.loads(str(heard["process"]))
    assert process["args"] == ["sh"]
    entries: list[str] = process["env"]
    return entries


def test_a_further_process_gets_what_holds_now(container: Ground) -> None:
    now = ExecAnswer(
        {"CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/client", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    )
    with answering(
        container.run_directory, Answers({NOW: (200, msgspec.to_builtins(now))})
    ) as mpsd:
        assert _exec(container).code == 0
    assert _environment(container) == [
        "A=b",
        *(f"{name}={value}" for name, value in now.environment.items()),
    ]
    assert msgspec.convert(mpsd.asked[0].body, HostContainerName, strict=True) == HostContainerName(
        str(container.root), "c1"
    )
    assert container.events[-1]["event"] == "exec"


@pytest.mark.parametrize(
    "answer", [None, (404, {"reasons": ["no grant"], "for_ever": True}), (500, None), (200, [])]
)
def test_where_mpsd_does_not_say_the_container_keeps_what_it_began_with(
    container: Ground, answer: tuple[int, object] | None
) -> None:
    if answer is None:
        assert _exec(container).code == 0
    else:
        with answering(container.run_directory, Answers({NOW: answer})):
            assert _exec(container).code == 0
    assert set(_environment(container)) == {
        "A=b",
        "CUDA_MPS_PIPE_DIRECTORY=/run/mpsd/client",
        "NVIDIA_VISIBLE_DEVICES=GPU-7",
    }


def test_a_bundle_of_another_container_by_now_is_no_source_of_limits(container: Ground) -> None:
    with answering(container.run_directory, Answers({ASK: granted(container)})):
        assert container.create(container="c2").code == 0
    (container.folder / "next.json").unlink()
    ended = _exec(container)
    assert ended.code == 1
    assert "start it with `mpsd up`" in ended.said
    assert container.heard is None


def test_a_container_without_a_grant_is_not_touched(ground: Ground) -> None:
    ground.write("A=b")
    ground.hold("c1")
    with answering(ground.run_directory, Answers()) as mpsd:
        for name in ("c1", "nobody", "..", "../root/c1"):
            assert _exec(ground, name).code == 0
            assert "CUDA_MPS_PIPE_DIRECTORY=/mine" in _environment(ground)
    assert mpsd.asked == []
    assert ground.events == []


def test_crun_names_the_bundle_elsewhere(container: Ground) -> None:
    (container.root / "c1" / "state.json").unlink()
    (container.root / "c1" / "status").write_text(
        json.dumps({"pid": 1, "bundle": str(container.bundle)})
    )
    assert _exec(container).code == 0
    assert "NVIDIA_VISIBLE_DEVICES=GPU-7" in _environment(container)


def test_a_process_file_that_is_no_file_is_refused(container: Ground) -> None:
    fifo = container.folder / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, container.folder / "missing", container.folder):
        ended = container.call("--root", str(container.root), "exec", "-p", str(path), "c1")
        assert ended.code == 1
        assert "Traceback" not in ended.said
    assert container.heard is None


def test_exec_without_a_file_is_handed_on(container: Ground) -> None:
    ended = container.call("--root", str(container.root), "exec", "-t", "c1", "env", "-q", "x")
    assert ended.code == 0
    assert container.heard
    assert container.heard["argv"][3:] == ["exec", "-t", "c1", "env", "-q", "x"]


def test_the_hook_of_the_bundle_tells_mpsd_of_the_end(container: Ground) -> None:
    (hook,) = container.edited["hooks"]["poststop"]
    with answering(container.run_directory, Answers({OVER: (200, {})})) as mpsd:
        state = json.dumps({"ociVersion": "1.0.2", "id": "c1", "status": "stopped", "bundle": "/b"})
        ended = subprocess.run(
            hook["args"], executable=hook["path"], input=state.encode(), timeout=20, check=False
        )
    assert ended.returncode == 0
    assert [asked.url for asked in mpsd.asked] == [OVER]
    assert msgspec.convert(mpsd.asked[0].body, HostContainerName, strict=True) == HostContainerName(
        str(container.root), "c1"
    )
    assert container.events[-1]["event"] == "over"
    assert "reasons" not in container.events[-1]


@pytest.mark.parametrize(
    "state", [b"", b"{", b"[]", b'{"id": 5}', b"[" * 100_000, b" " * 2_000_000, b'{"id": "c1"}']
)
def test_the_hook_never_fails(ground: Ground, state: bytes) -> None:
    ended = subprocess.run(
        [ground.program, "--root", "/r", "over"], input=state, timeout=20, check=False
    )
    assert ended.returncode == 0
    assert ground.events[-1]["reasons"]


def test_the_hook_does_not_wait_for_ever(ground: Ground) -> None:
    hook = subprocess.Popen([ground.program, "over"], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while hook.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert hook.returncode == 0
    finally:
        hook.kill()
        hook.communicate(timeout=10)
