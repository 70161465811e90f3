"""A Kubernetes of this machine's own with its GPUs: control plane and kubelet of
tests/e2e/kube/up.sh, containerd, NVIDIA's container runtime.

What is not as on a node of a cluster (README.md) is seen here. Whatever ends the tests, `stop`
leaves no process, mount or cgroup of it behind.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tests.e2e.machine import mps_processes
from tests.e2e.waiting import eventually
from tests.e2e_gpu import image

_KUBE = Path(__file__).parents[1] / "e2e" / "kube"
_LOCK_S = 3600.0
_LOCK = Path("/tmp/mpsd-e2e.lock")  # with-cluster.sh's: a machine has room for one node
_KUBELET, _RUN, _HOSTS = Path("/var/lib/kubelet"), Path("/run/mpsd"), Path("/etc/hosts")
_CGROUPS = Path("/sys/fs/cgroup")
_API = "10.244.255.1"  # of the service `kubernetes`, and the node's own address
_MARK = "# mpsd e2e"
_NVIDIA = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook")
_PROGRAMS = (
    "etcd",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "kubectl",
    "tini-static",
)
_ALIAS_OF_LO = b"lo:mpsd"
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914  # linux/sockios.h

# A network plugin for machines that have none: a pod gets a network of its own, with nothing in it.
_NO_NETWORK = """#!/bin/sh
version=$(tr -d '\\n' | sed 's/.*"cniVersion" *: *"\\([^"]*\\)".*/\\1/')
case ${0##*/} in
loopback) address=127.0.0.1/8 ;;
*) address=10.244.254.2/32 ;;
esac
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}' ;;
ADD)
  cat <<JSON
{"cniVersion": "$version", "interfaces": [{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}],
 "ips": [{"version": "4", "address": "$address", "interface": 0}]}
JSON
  ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Rig:
    """programs: a folder of Kubernetes' programs. state: of this run. simulated: the GPUs are.
    begun: what runs."""

    programs: Path
    state: Path
    simulated: bool
    begun: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def start(self) -> None:
        began = time.monotonic()

        def say(what: str) -> None:
            print(f"rig: {what} after {time.monotonic() - began:.1f} s", flush=True)

        archive = self.state / "mpsd.tar"
        making = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e_gpu.image", str(archive)], cwd=_KUBE.parents[2]
        )
        try:
            self._sign()
            self._route_api()
            self._up("start", "control-plane", within_s=150.0)
            say("control plane")
            self._begin(
                "service",
                sys.executable,
                str(_KUBE / "forward.py"),
                _API,
                "443",
                "127.0.0.1",
                str(self._port),
            )
            if not self.simulated:
                self._describe_gpus()
            self._configure_containerd()
            self._begin("containerd", "containerd", "-c", "containerd.toml")
            eventually(lambda: self._ctr("version").returncode == 0, "containerd", within_s=30.0)
            say("containerd")
            assert making.wait(timeout=180) == 0, "no image of mpsd"
            say(f"an image of {archive.stat().st_size >> 20} MiB")
        finally:
            making.kill()
        self._up("import", str(archive), within_s=180.0)
        scheduler = self.state / "scheduler.tar"
        written = [
            str(scheduler),
            self.scheduler_image,
            "kube-scheduler",
            str(self.programs / "kube-scheduler"),
        ]
        subprocess.run(
            [sys.executable, str(_KUBE / "program_image.py"), *written], check=True, timeout=60
        )
        self._up("import", str(scheduler), within_s=120.0)
        archive.unlink()
        scheduler.unlink()
        say("images")
        self._configure_kubelet()
        self._up("kubelet", "start")
        ready = ("kubectl", "wait", "--for=condition=Ready", "node/node1", "--timeout=0")
        eventually(lambda: self._run(*ready).returncode == 0, "the node", within_s=60.0)
        say("node")

    @property
    def scheduler_image(self) -> str:
        return f"local/kube-scheduler:{self._version}"

    @property
    def _version(self) -> str:
        return self._run(str(self.programs / "kubelet"), "--version").stdout.split()[-1].lstrip("v")

    @property
    def _port(self) -> int:
        return 16443 + int(os.environ.get("E2E_PORTS", "0"))

    def logs(self) -> str:
        found = []
        for log in sorted(self.state.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-12:]
            found.append("\n".join([f"--- {log.name}", *(line[:300] for line in lines)]))
        return "\n".join(found)

    def _run(self, *command: str, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            command,
            cwd=self.state,
            env=environment,
            capture_output=True,
            text=True,
            timeout=within_s,
        )

    def _up(self, *words: str, within_s: float = 60.0) -> None:
        done = self._run(
            str(_KUBE / "up.sh"), str(self.programs), str(self.state), *words, within_s=within_s
        )
        assert done.returncode == 0, f"up.sh {' '.join(words)}: {done.stdout}{done.stderr}"

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run("ctr", "-a", str(self.state / "containerd.sock"), "-n", "k8s.io", *words)

    def _begin(self, name: str, *command: str) -> None:
        with (self.state / f"{name}.log").open("a") as log:
            self.begun[name] = subprocess.Popen(
                command,
                cwd=self.state,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _sign(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        (self.state / "sa.key").write_bytes(key)

    def _route_api(self) -> None:
        _loopback_address(_API)
        hosts = _HOSTS.read_text()
        if _MARK not in hosts:
            with _HOSTS.open("a") as file:
                file.write(f"{_API} node1 {_MARK}\n")

    def _describe_gpus(self) -> None:
        (self.state / "cdi").mkdir()
        options = os.environ.get("MPSD_E2E_CTK", "").split()
        described = self.state / "cdi" / "nvidia.yaml"
        hook = f"--nvidia-cdi-hook-path={shutil.which('nvidia-cdi-hook')}"
        done = self._run("nvidia-ctk", "cdi", "generate", f"--output={described}", hook, *options)
        assert done.returncode == 0, f"nvidia-ctk cdi generate: {done.stderr}"
        programs = [
            line.strip() for line in described.read_text().splitlines() if "mps-control" in line
        ]
        assert programs, f"nvidia-ctk found no nvidia-cuda-mps-control: {done.stderr}"
        configuration = self.state / "nvidia" / "nvidia-container-runtime" / "config.toml"
        configuration.parent.mkdir(parents=True)
        configuration.write_text(
            "disable-require = true\n"
            f'[nvidia-container-runtime]\nmode = "cdi"\nruntimes = ["{shutil.which("runc")}"]\n'
            '[nvidia-container-runtime.modes.cdi]\ndefault-kind = "nvidia.com/gpu"\n'
            f'spec-dirs = ["{self.state}/cdi"]\n'
        )
        runtime = self.state / "nvidia-runtime"
        program = shutil.which("nvidia-container-runtime")
        runtime.write_text(f'#!/bin/sh\nXDG_CONFIG_HOME={self.state}/nvidia exec {program} "$@"\n')
        runtime.chmod(0o755)

    def _configure_containerd(self) -> None:
        plugins, networks = self.state / "cni-plugins", self.state / "cni"
        for folder in (plugins, networks):
            folder.mkdir()
        for name in ("loopback", "none"):
            (plugins / name).write_text(_NO_NETWORK)
            (plugins / name).chmod(0o755)
        network = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}
        (networks / "10-none.conflist").write_text(json.dumps(network))
        runtime = "runc" if self.simulated else str(self.state / "nvidia-runtime")
        (self.state / "containerd.toml").write_text(f"""version = 3
root = "{self.state}/containerd/root"
state = "{self.state}/containerd/state"
[grpc]
  address = "{self.state}/containerd.sock"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{self._snapshotter()}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{image.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {str(not _may_lower_oom_score()).lower()}
  enable_cdi = true
  cdi_spec_dirs = ["{self.state}/cdi"]
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "gpu"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpu]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpu.options]
        BinaryName = "{runtime}"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{networks}"
""")

    def _snapshotter(self) -> str:
        find = f"cd {self.state}; {_snapshotter_of_up_sh()}\nsnapshotter"
        return self._run("bash", "-c", find).stdout.strip()

    def _configure_kubelet(self) -> None:
        fields = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False,
            "readOnlyPort": 0,
            "clusterDNS": [_API],  # nobody answers there; without one each pod has a warning
            "evictionHard": {"memory.available": "100Mi"},
            "containerRuntimeEndpoint": f"unix://{self.state}/containerd.sock",
        }
        (self.state / "kubelet.yaml").write_text(json.dumps(fields))

    def stop(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError, AssertionError):
            self._up("kubelet", "stop")
            for task in self._ctr("tasks", "ls", "-q").stdout.split():
                self._ctr("tasks", "rm", "-f", task)
        for begun in self.begun.values():
            begun.terminate()
            try:
                begun.wait(timeout=10)
            except subprocess.TimeoutExpired:
                begun.kill()
                begun.wait()
        _kill(_shims(self.state))
        _kill(mps_processes())
        with contextlib.suppress(subprocess.TimeoutExpired, OSError, AssertionError):
            self._up("stop")
        for mount in _mounts_below(self.state, _KUBELET):
            subprocess.run(["umount", "-l", mount], capture_output=True)
        for folder in (*_CGROUPS.glob("**/kubepods*"), _CGROUPS / "mpsd"):
            for cgroup in sorted(
                folder.glob("**/"), key=lambda each: len(each.parts), reverse=True
            ):
                with contextlib.suppress(OSError):
                    cgroup.rmdir()
        for namespace in Path("/run/netns").glob("cni-*"):
            subprocess.run(["umount", "-l", str(namespace)], capture_output=True)
            namespace.unlink(missing_ok=True)
        _loopback_address("")
        kept = [line for line in _HOSTS.read_text().splitlines(keepends=True) if _MARK not in line]
        _HOSTS.write_text("".join(kept))
        for folder in (_KUBELET, _RUN, self.state):
            shutil.rmtree(folder, ignore_errors=True)

    def left_behind(self) -> list[str]:
        processes = [f"process {pid}" for pid in (*_shims(self.state), *mps_processes())]
        return processes + [
            str(path) for path in (_KUBELET, _RUN, self.state, _CGROUPS / "mpsd") if path.exists()
        ]


def missing_programs(programs: Path, *, simulated: bool) -> list[str]:
    of_kubernetes = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")
    missing = [
        f"{programs}/{name}" for name in of_kubernetes if not os.access(programs / name, os.X_OK)
    ]
    return missing + [
        name for name in (*_PROGRAMS, *(() if simulated else _NVIDIA)) if not shutil.which(name)
    ]


@contextlib.contextmanager
def started(programs: Path, *, simulated: bool) -> Iterator[Rig]:
    """The only node of this machine, for as long as the tests run; Ctrl-C and SIGTERM end it like
    their end."""
    with _LOCK.open("w") as lock:
        _wait_for(lock)
        used = [str(path) for path in (_RUN, _KUBELET) if path.exists() and any(path.iterdir())]
        assert not used, (
            f"{' and '.join(used)} are there: mpsd or a kubelet runs on this machine, or did;"
            " remove them"
        )
        state = Path(f"/tmp/mpsd-e2e-gpu.{os.getpid()}")
        state.mkdir(mode=0o711)
        rig = Rig(programs, state, simulated)
        os.environ |= {"MPSD_E2E_STATE": str(state), "MPSD_E2E_PROGRAMS": str(programs)}
        signal.signal(signal.SIGTERM, _as_ctrl_c)
        try:
            try:
                rig.start()
            except Exception as failed:
                failed.add_note(rig.logs())
                raise
            yield rig
        finally:
            rig.stop()
            print(f"rig: stopped, left behind: {rig.left_behind() or 'nothing'}", flush=True)


def _wait_for(lock: IO[str]) -> None:
    print(f"rig: one node a machine: {_LOCK}", flush=True)

    def is_ours() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    eventually(is_ours, f"the lock {_LOCK}", within_s=_LOCK_S)


def _as_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def _snapshotter_of_up_sh() -> str:
    text = (_KUBE / "up.sh").read_text()
    begin = text.index("snapshotter() {")
    return text[begin : text.index("\n}", begin) + 2]


def _may_lower_oom_score() -> bool:
    """Whether root here has CAP_SYS_RESOURCE (24, linux/capability.h)."""
    (effective,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff")
    ]
    return bool(int(effective.split()[1], 16) >> 24 & 1)


def _loopback_address(address: str) -> None:
    """Gives it to lo beside its own, or takes it away where it is empty; a machine may lack the
    program `ip`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:

        def ask(request: int, value: bytes) -> None:
            fcntl.ioctl(any_socket, request, struct.pack("16s16s8x", _ALIAS_OF_LO, value))

        def packed(text: str) -> bytes:
            return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))

        if address:
            ask(_SIOCSIFADDR, packed(address))
            ask(_SIOCSIFNETMASK, packed("255.255.255.255"))
        else:
            with contextlib.suppress(OSError):
                ask(_SIOCSIFFLAGS, struct.pack("h14x", 0))


def _shims(state: Path) -> list[int]:
    address, found = f"{state}/containerd.sock", []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and "containerd-shim-runc-v2" in words[0] and address in words:
                found.append(process.pid)
    return found


def _kill(pids: Sequence[int]) -> None:
    """Until they are gone, for 10 s at most."""
    killed = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            killed.append(psutil.Process(pid))
            killed[-1].kill()
    psutil.wait_procs(killed, timeout=10)


def _mounts_below(*folders: Path) -> list[str]:
    found = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted(
        (mount for mount in found if any(Path(mount).is_relative_to(each) for each in folders)),
        reverse=True,
    )
