"""`mpsd doctor` where what is around mpsd is broken: the first line of its answer names it, and
what to do."""

from pathlib import Path

from tests.whole.machine.asking_doctor import asked, first_line, found, note, write
from tests.whole.machine.asking_doctor import host as host
from tests.whole.machine.machine import Machine


def test_no_uvm_device(served: Machine, host: Path) -> None:
    (host / "dev/nvidia-uvm").unlink()
    assert first_line(served, "--root", host).startswith(
        "/dev/nvidia-uvm is missing; CUDA requires it"
    )


def test_a_launcher_that_is_gone_or_whose_python_is(served: Machine, host: Path) -> None:
    (host / "opt/python").unlink()
    expected = (
        "/usr/local/bin/mpsd-runtime, with which docker starts containers, needs /opt/python, which"
        " is gone; "
    )
    assert first_line(served, "--root", host) == expected + "`mpsd install docker` writes it again"
    (host / "usr/local/bin/mpsd-runtime").unlink()
    assert first_line(served, "--root", host).startswith(
        "/usr/local/bin/mpsd-runtime is missing, and docker would"
    )


def test_no_container_toolkit(served: Machine, host: Path) -> None:
    (host / "usr/bin/nvidia-container-runtime").rename(host / "usr/bin/runc")
    assert first_line(served, "--root", host).startswith(
        "nvidia-container-runtime is not installed, and containers of"
    )


def test_no_folder_for_device_plugins(served: Machine, host: Path) -> None:
    (host / "var/lib/kubelet/device-plugins").rename(host / "var/lib/kubelet/pods")
    expected = (
        f"{host}/var/lib/kubelet/device-plugins is missing: kubelet takes no device plugin, so pods"
        " get no share"
    )
    assert first_line(served, "--root", host).startswith(expected)


def test_selinux(served: Machine, host: Path) -> None:
    """NVIDIA/k8s-device-plugin#1105: "lsetxattr /mps/nvidia.com/gpu/pipe: permission denied"."""
    enforce = write(host / "sys/fs/selinux/enforce", "1")
    expected = (
        f"SELinux is enforcing, and {served.folder_of().client} has the type (none), which confined"
        " containers"
    )
    assert first_line(served, "--root", host).startswith(expected)
    enforce.write_text("0")
    assert found(served, "--root", host) == []


def test_the_default_pipe_directory(served: Machine, host: Path) -> None:
    """aws/amazon-ecs-ami#771: it leaks into every GPU container."""
    (host / "tmp/nvidia-mps").mkdir(parents=True)
    assert note(served, "--root", host).startswith(
        "/tmp/nvidia-mps exists: some runtimes mount it into every"
    )


def test_a_root_that_is_no_folder_is_a_wrong_question(served: Machine) -> None:
    answer = asked(served, "--root", "/nonexistent")
    assert (answer.exit_code(), answer.output) == (2, "")
    assert "--root is /nonexistent: is no folder that exists" in answer.errors


def test_help_teaches(served: Machine) -> None:
    said = asked(served, "--help").output
    assert "Exits with 0 when nothing was found but notes" in said
