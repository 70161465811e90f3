"""The engines that people have: a containerd of one's own with ctr, a dockerd on it, and podman,
each with its folders.

One rule: an engine is configured as `mpsd install` or its manual has it, and mpsd-runtime is the
runtime of every container; nothing of this machine's own engines is touched.
"""

import os
import re
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.host.bundle import PATH, make_rootfs, read_only_folders
from tests.host.container import Ended, ended
from tests.host.host import Host, mounts_below, remove_cgroup
from tests.whole.machine.machine import SOON_S, eventually

_REMEDY = (
    "tests/host/programs.sh fetches it; put the folders that it prints on PATH, as `make"
    " check-host` does"
)
_TRIPLET = "x86_64-linux-gnu"
_CRUN_STATES = Path("/run/crun")
# crun refuses a machine that has cgroup v1 and beside it a v2 hierarchy that controls nothing; so
# it does not see that.
_CRUN = """#!/bin/sh
export LD_LIBRARY_PATH={libraries}
exec unshare --mount --propagation private sh -c '
    ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
    exec {program} "$@"' crun "$@"
"""


class Engine(ABC):
    """What may be run under a name. host: whose mpsd-runtime it uses."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._folder = host.folder / name
        self._folder.mkdir()
        self._environment = host.environment
        self._running: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def run(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        """In the foreground and removed at its end."""

    @abstractmethod
    def detach(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        """In the background."""

    @abstractmethod
    def exec(self, name: str, *command: str) -> Ended:
        """A further process of a container."""

    @abstractmethod
    def kill(self, name: str) -> Ended:
        """With SIGKILL."""

    @abstractmethod
    def exit_code(self, name: str) -> int:
        """Of one that has ended, waiting for that."""

    @abstractmethod
    def remove(self, name: str) -> Ended:
        """Whatever it is doing."""

    @abstractmethod
    def stop(self) -> None:
        """With everything that it started."""

    def destroy(self) -> None:
        """Leaves nothing behind, whatever the test did."""
        for process in reversed(self._running):
            _end(process)
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for place in reversed(mounts_below(self._folder)):
            subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(self._folder)

    def _begin(self, *argv: str | Path) -> None:
        """A daemon, in a session of its own."""
        with (self._folder / f"{Path(argv[0]).name}.log").open("ab") as said:
            process = subprocess.Popen(
                [str(word) for word in argv],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._running.append(process)

    def _left(self) -> list[int]:
        """The pids of the programs whose command line names a folder of this engine: daemons,
        shims, monitors."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self._folder).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def until_nothing_runs(self) -> None:
        eventually(lambda: not self._left(), "nothing of the engine runs")


class Containerd(Engine):
    """containerd without its Kubernetes part; `ctr run --runc-binary`."""

    def __init__(self, host: Host) -> None:
        containerd, self._ctr = _found("containerd"), _found("ctr")
        super().__init__(host, "ctr")
        self.socket = self._folder / "s"
        self._rootfs = self._folder / "rootfs"
        make_rootfs(self._rootfs)
        config = self._folder / "config.toml"
        config.write_text(
            f'version = 2\nroot = "{self._folder}/root"\nstate = "{self._folder}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\n  address = "{self.socket}"\n'
        )
        self._begin(containerd, "--config", config)
        eventually(lambda: self.ctr("version").code == 0, "containerd serves")

    def ctr(self, *words: str | Path) -> Ended:
        return ended([self._ctr, "--address", self.socket, *words], self._environment)

    def run(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        return self.ctr("run", "--rm", *self._options(environment), self._rootfs, name, *command)

    def detach(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        return self.ctr(
            "run", "--detach", *self._options(environment), self._rootfs, name, *command
        )

    def exec(self, name: str, *command: str) -> Ended:
        return self.ctr("tasks", "exec", "--exec-id", "further", name, *command)

    def kill(self, name: str) -> Ended:
        return self.ctr("tasks", "kill", "--signal", "SIGKILL", name)

    def exit_code(self, name: str) -> int:
        def is_stopped() -> bool:
            lines = [line.split() for line in self.ctr("tasks", "list").output.splitlines()]
            return any(words[0] == name and words[-1] == "STOPPED" for words in lines)

        eventually(is_stopped, f"{name} has ended")
        said = self.ctr("tasks", "delete", name).errors
        found = re.search(r"non-zero exit code ([0-9]+)", said)
        return int(found[1]) if found else 0

    def remove(self, name: str) -> Ended:
        self.ctr("tasks", "delete", "--force", name)
        return self.ctr("containers", "delete", name)

    def stop(self) -> None:
        for namespace in self.ctr("namespaces", "list", "--quiet").output.split():
            for name in self.ctr(
                "--namespace", namespace, "tasks", "list", "--quiet"
            ).output.split():
                self.ctr("--namespace", namespace, "tasks", "delete", "--force", name)
        for process in self._running:
            _end(process)
        self.until_nothing_runs()
        remove_cgroup(f"{self._host.cgroup}-ctr")

    def _options(self, environment: Mapping[str, str]) -> list[str]:
        options = [
            "--runc-binary",
            str(self._host.launcher),
            "--runc-root",
            str(self._folder / "runc"),
        ]
        options += ["--cgroup", f"{self._host.cgroup}-ctr", "--rootfs"]
        for name, value in ({"PATH": PATH} | dict(environment)).items():
            options += ["--env", f"{name}={value}"]
        for folder in read_only_folders():
            options += ["--mount", f"type=bind,src={folder},dst={folder},options=rbind:ro"]
        return options


class Docker(Engine):
    """dockerd 20.10 on a containerd of its own; `docker run --runtime=mpsd`."""

    def __init__(self, host: Host) -> None:
        self._dockerd = _found("dockerd")
        self._docker = _found("docker")
        self.containerd = Containerd(host)
        super().__init__(host, "docker")
        self._socket = self._folder / "s"
        daemon = [
            self._dockerd,
            "--data-root",
            self._folder / "data",
            "--exec-root",
            self._folder / "exec",
        ]
        daemon += ["--host", self.address, "--pidfile", self._folder / "pid"]
        daemon += ["--containerd", self.containerd.socket, "--config-file", self._configured()]
        self._begin(*daemon)
        eventually(lambda: self.docker("version").code == 0, "dockerd serves")
        self._import_image()

    def _configured(self) -> Path:
        config = self._folder / "daemon.json"
        config.write_text(
            f'{{"runtimes": {{"mpsd": {{"path": "{self._host.launcher}"}}}}, "iptables": false,'
            ' "ip6tables": false, "bridge": "none", "storage-driver": "vfs", "cgroup-parent":'
            f' "{self._host.cgroup}-docker"}}'
        )
        return config

    def _import_image(self) -> None:
        rootfs = self._folder / "rootfs"
        make_rootfs(rootfs)
        archive = shutil.make_archive(str(self._folder / "image"), "tar", rootfs)
        imported = self.docker("import", archive, "local/cuda:1")
        assert imported.code == 0, imported

    @property
    def address(self) -> str:
        """As DOCKER_HOST has it."""
        return f"unix://{self._socket}"

    def docker(self, *words: str | Path) -> Ended:
        return ended([self._docker, "--host", self.address, *words], self._environment)

    def run(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        return self.docker("run", "--rm", *self._options(environment, name), *command)

    def detach(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        return self.docker("run", "--detach", *self._options(environment, name), *command)

    def exec(self, name: str, *command: str) -> Ended:
        return self.docker("exec", name, *command)

    def kill(self, name: str) -> Ended:
        return self.docker("kill", name)

    def exit_code(self, name: str) -> int:
        return int(self.docker("wait", name).output)

    def remove(self, name: str) -> Ended:
        return self.docker("rm", "--force", name)

    def stop(self) -> None:
        for name in self.docker("ps", "--all", "--quiet").output.split():
            self.remove(name)
        for process in self._running:
            _end(process)
        self.until_nothing_runs()
        self.containerd.stop()
        remove_cgroup(f"{self._host.cgroup}-docker")

    def destroy(self) -> None:
        super().destroy()
        self.containerd.destroy()

    def _options(self, environment: Mapping[str, str], name: str) -> list[str]:
        options = [
            "--runtime=mpsd",
            "--network=none",
            "--name",
            name,
            *_variables({"PATH": PATH} | dict(environment)),
        ]
        return [*options, *_volumes(), "local/cuda:1"]


class Podman(Engine):
    """podman 4.3 with runc; `podman --runtime mpsd-runtime run --rootfs`."""

    def __init__(self, host: Host, next_runtime: str = "") -> None:
        """next_runtime: which mpsd-runtime hands on to; empty for runc, by its path, as conmon
        keeps no PATH."""
        self._podman, conmon = _found("podman"), _found("conmon")
        super().__init__(host, "podman")
        launcher = host.write_launcher("mpsd-runtime-podman", next_runtime or _found("runc"))
        self._rootfs = self._folder / "rootfs"
        make_rootfs(self._rootfs)
        config = self._folder / "containers.conf"
        config.write_text(
            # A machine's own bounds may be lower than podman's usual ones, which runc cannot raise
            # then.
            '[containers]\ndefault_ulimits = ["nofile=1024:1024",'
            f' "nproc=4096:4096"]\n[engine]\nconmon_path = ["{conmon}"]\ncgroup_manager ='
            ' "cgroupfs"\nevents_logger = "file"\nlock_type = "file"\nruntime ='
            f' "mpsd"\n[engine.runtimes]\nmpsd = ["{launcher}"]\n'
        )
        self._environment = host.environment | {
            "CONTAINERS_CONF": str(config),
            "LD_LIBRARY_PATH": libraries_of(self._podman),
        }

    def podman(self, *words: str | Path) -> Ended:
        own = [*("--root", self._folder / "root"), *("--runroot", self._folder / "runroot")]
        own += [*("--tmpdir", self._folder / "tmp"), *("--storage-driver", "vfs")]
        return ended([self._podman, *own, *words], self._environment)

    def run(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        return self.podman("run", "--rm", *self._options(environment, name), *command)

    def detach(self, environment: Mapping[str, str], *command: str, name: str) -> Ended:
        return self.podman("run", "--detach", *self._options(environment, name), *command)

    def exec(self, name: str, *command: str) -> Ended:
        return self.podman("exec", name, *command)

    def kill(self, name: str) -> Ended:
        return self.podman("kill", "--signal", "KILL", name)

    def exit_code(self, name: str) -> int:
        return int(self.podman("wait", name).output)

    def remove(self, name: str) -> Ended:
        return self.podman("rm", "--force", "--time=0", name)

    def stop(self) -> None:
        for name in self.podman("ps", "--all", "--quiet").output.split():
            self.remove(name)
        self.until_nothing_runs()
        remove_cgroup(f"{self._host.cgroup}-podman")

    def _options(self, environment: Mapping[str, str], name: str) -> list[str]:
        options = [
            "--network=none",
            "--name",
            name,
            "--cgroup-parent",
            f"{self._host.cgroup}-podman",
        ]
        variables = _variables({"PATH": PATH} | dict(environment))
        return [*options, *variables, *_volumes(), "--rootfs", str(self._rootfs)]


class PodmanOnCrun(Podman):
    """podman with crun 1.8, which it takes where both are installed."""

    def __init__(self, host: Host) -> None:
        program = _found("crun")
        wrapper = host.folder / "crun"
        wrapper.write_text(_CRUN.format(program=program, libraries=libraries_of(program)))
        wrapper.chmod(0o755)
        self._states_were_there = _CRUN_STATES.exists()
        super().__init__(host, str(wrapper))

    def destroy(self) -> None:
        super().destroy()
        if not self._states_were_there and _CRUN_STATES.exists():
            _CRUN_STATES.rmdir()


def _variables(environment: Mapping[str, str]) -> list[str]:
    return [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]


def _volumes() -> list[str]:
    return [
        word for folder in read_only_folders() for word in ("--volume", f"{folder}:{folder}:ro")
    ]


def _found(program: str) -> str:
    """Where it is; skips the test where it is nowhere."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}: {_REMEDY}")
    return found


def libraries_of(program: str) -> str:
    """Where its libraries are: beside it, where programs.sh has unpacked it."""
    return str(Path(program).parents[1] / "lib" / _TRIPLET)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SOON_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
