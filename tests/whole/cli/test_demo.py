"""`mpsd demo`: what it tells is what must happen, and nothing of it is left, however it ends."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

from mpsd.simulator import own_mpsd
from tests.whole.machine.machine import MPSD

Step = dict[str, Any]
MAY_MAKE_CGROUPS = any(
    os.access(f"/sys/fs/cgroup/{top}/cgroup.procs", os.W_OK) for top in (".", "unified", "pids")
)

# In the order in which they are told. A user who may make no cgroups is told one more.
_STEPS = [
    *("cluster", "gpu", "gpu", "offered"),
    *("refused-by-admission", "admitted", "played"),
    *("allocated", "limits", "allocated", "limits", "side-by-side", "status"),
    *("out-of-memory", "given-back", "refused", "event"),
    *("without-agent", "agent-back", "unnoticed"),
    *("complete", "ledger", "stopped", "clean"),
]


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [MPSD, "demo", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def nothing_is_left(folder: str) -> bool:
    return not Path(folder).exists() and not own_mpsd.cgroups(Path(folder).name)


def test_a_job_goes_the_whole_way_in_a_simulated_cluster() -> None:
    with start() as demo:
        output, errors = demo.communicate()
    assert (demo.returncode, errors) == (0, "")
    steps: list[Step] = [json.loads(line) for line in output.splitlines()]
    assert [step["step"] for step in steps if step["step"] != "no-cgroups"] == _STEPS
    assert MAY_MAKE_CGROUPS is not any(step["step"] == "no-cgroups" for step in steps)
    told = {step["step"]: step for step in steps}
    assert "spec.template.spec.hostIPC" in told["refused-by-admission"]["reason"]
    sample, second = (step for step in steps if step["step"] == "limits")
    assert (sample["granted_mib"], sample["gpu"], sample["sms"]) == (7168, "gpu0", 56)
    assert (second["granted_mib"], second["gpu"], second["sms"]) == (4096, "gpu0", 14)
    assert told["status"]["mpsnode"]["GRANTED"] == "11/46Gi"
    assert told["out-of-memory"]["error"] == "2:CUDA_ERROR_OUT_OF_MEMORY"
    assert "no single GPU here has" in told["event"]["event"]
    assert all(number > 0 for number in told["without-agent"]["launches"].values())
    assert set(told["ledger"]["granted_mib"].values()) == {0}
    assert nothing_is_left(told["cluster"]["folder"])


def test_ctrl_c_in_the_middle_leaves_nothing() -> None:
    with start() as demo:
        assert demo.stdout
        folder = json.loads(demo.stdout.readline())["folder"]
        for line in demo.stdout:
            if json.loads(line)["step"] == "limits":
                break
        if MAY_MAKE_CGROUPS:
            assert any(
                (cgroup / "cgroup.procs").read_text()
                for cgroup in own_mpsd.cgroups(Path(folder).name)
            )
        started = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)  # of somebody impatient
        _rest, errors = demo.communicate()
    assert demo.returncode == 128 + signal.SIGINT, errors
    assert errors == "mpsd demo: stopped; everything that it had started is removed\n"
    assert len(started) > 10  # programs, daemons, servers, the container and its shim
    assert not [process for process in started if process.is_running()]
    assert nothing_is_left(folder)


def test_a_kept_cluster_has_incidents_to_create_and_ctrl_c_removes_it() -> None:
    with start("--keep") as demo:
        assert demo.stdout
        kept: Step = {}
        for line in demo.stdout:
            step = json.loads(line)
            kept |= step if step["step"] == "kept" else {}
            if step["step"] == "break":
                break
        assert Path(kept["kubeconfig"]).exists()
        incidents = {path.stem for path in Path(kept["incidents"]).glob("*.yaml")}
        assert incidents == {"fault", "over-limit", "lifted-limit", "too-large", "shares"}
        assert psutil.pid_exists(kept["daemon_pid"])
        demo.send_signal(signal.SIGINT)
        _rest, errors = demo.communicate()
    assert (demo.returncode, errors) == (0, "")
    assert nothing_is_left(str(Path(kept["kubeconfig"]).parents[1]))
