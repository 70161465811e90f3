"""A Kubernetes that cannot be tested with is refused in one sentence, before anything is installed
or started."""

import os
import subprocess
from pathlib import Path

import pytest

_WITH_CLUSTER = Path(__file__).parent / "with-cluster.sh"
_PROGRAMS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")
# The first bytes of a program for a processor that nobody has (e_machine 0xfefe).
_FOREIGN = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xfe\xfe" + bytes(44)


def _programs(folder: Path, content: bytes, names: tuple[str, ...] = _PROGRAMS) -> Path:
    for name in names:
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
    return folder


def _refusal(**environment: str) -> str:
    """The one line that it says."""
    done = subprocess.run(
        [str(_WITH_CLUSTER), "true"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_FOREIGN, f"take the programs for {os.uname().machine}"),
        (b"#!/bin/sh\necho Kubernetes v1.29.3\n", "Kubernetes 1.29.3"),
        (b"#!/bin/sh\necho something else\n", "something else"),
    ],
)
def test_programs_that_do_not_run_here_or_are_of_an_unknown_version_are_named(
    tmp_path: Path, content: bytes, said: str
) -> None:
    line = _refusal(KUBE_PROGRAMS=str(_programs(tmp_path, content)))
    assert line.startswith(f"KUBE_PROGRAMS={tmp_path}: ")
    assert said in line


def test_a_folder_that_lacks_programs_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    (_programs(tmp_path, b"") / "kubelet").unlink()
    assert "lacks kubelet" in _refusal(KUBE_PROGRAMS=str(tmp_path))


def test_an_empty_name_is_no_folder() -> None:
    assert "KUBE_PROGRAMS is empty" in _refusal(KUBE_PROGRAMS="")


_CONTAINERD = ("containerd", "ctr", "containerd-shim-runc-v2")


@pytest.fixture
def modern(tmp_path: Path) -> str:
    """A folder of programs of Kubernetes 1.36.2."""
    (tmp_path / "programs").mkdir()
    return str(_programs(tmp_path / "programs", b"#!/bin/sh\necho Kubernetes v1.36.2\n"))


def test_a_containerd_that_does_not_run_here_is_refused(tmp_path: Path, modern: str) -> None:
    _programs(tmp_path, _FOREIGN, _CONTAINERD)
    assert f"CONTAINERD={tmp_path}: no containerd" in _refusal(
        KUBE_PROGRAMS=modern, CONTAINERD=str(tmp_path)
    )
    (tmp_path / "ctr").unlink()
    assert "lacks ctr" in _refusal(KUBE_PROGRAMS=modern, CONTAINERD=str(tmp_path))


def test_a_containerd_that_cannot_be_fetched_is_refused_after_the_programs(
    tmp_path: Path, modern: str
) -> None:
    _programs(tmp_path, b"#!/bin/sh\nexit 1\n", ("apt-get",))
    nothing = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    assert "CONTAINERD=sid: not fetched" in _refusal(
        KUBE_PROGRAMS=modern, CONTAINERD="sid", **nothing
    )
    assert "KUBE_PROGRAMS" in _refusal(KUBE_PROGRAMS=str(tmp_path), CONTAINERD="sid", **nothing)
