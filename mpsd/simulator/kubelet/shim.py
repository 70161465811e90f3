"""The program between the simulated kubelet and one container: it outlives kubelet, as containerd's
does.

    python -m mpsd.simulator.kubelet.shim FOLDER

Its orders are in FOLDER/spec.json and its state in FOLDER/state.json, so that a kubelet that
starts again reads where the container stands.

A container sees the machine's files with a /run and a /dev of its own, in which its mounts and
devices appear. Where this process may not mount, variables that hold a path of a mount are given
the host's path instead; nothing else tells the difference. Unlike a real one it sees the machine's
processes and its network.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mpsd.simulator.process_status import process_start_ticks

# -- the files that a container sees: the machine's, with a /run and a /dev of its own
# Nothing is made on the machine; a place for a mount is made only in what belongs to the container.

# Of mount(2) and unshare(2); Python has neither before 3.12.
_RDONLY = 1
_REMOUNT = 1 << 5
_BIND = 1 << 12
_REC = 1 << 14
_PRIVATE = 1 << 18
_NEW_MOUNTS = 0x20000

_OWN = {"dev", "run"}
_USUAL_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_USUAL_FOLDERS = ("pts", "shm")
_USUAL_LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}

_libc = ctypes.CDLL(None, use_errno=True)


class CannotMount(Exception):
    """The container's files cannot be put together."""


def own_mounts() -> bool:
    """Whether this process has mounts of its own from now on; it may not have them where it is not
    root."""
    if _libc.unshare(_NEW_MOUNTS) != 0:
        return False
    _mount("none", "/", _REC | _PRIVATE)
    return True


def enter_root(
    root: Path, mounts: Iterable[Mapping[str, Any]], devices: Iterable[Mapping[str, str]]
) -> None:
    """Goes into the container's files for good. root: an empty folder. mounts, devices: `source`,
    `inside` and more."""
    _mount("tmpfs", str(root), 0, "tmpfs")
    for entry in os.scandir("/"):
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            place.mkdir()
            if entry.name not in _OWN:
                _mount(entry.path, str(place), _BIND | _REC)
    _fill_dev(root / "dev")
    # A path inside means what it means inside, links included: so the sources are held open, and
    # found again by /proc.
    wanted = [(each, _open(each["source"])) for each in mounts]
    nodes = [(Path(each["inside"]), _open(each["source"])) for each in devices]
    os.chroot(root)
    os.chdir("/")
    for each, source in wanted:
        _put(source, Path(each["inside"]), read_only=bool(each.get("read_only")))
    for inside, source in nodes:
        # a node of the machine's own files that went since the container was created stays away
        if inside.exists() or not _is_machines(inside):
            _put(source, inside, read_only=False)


def _fill_dev(dev: Path) -> None:
    for name in (*_USUAL_DEVICES, *_USUAL_FOLDERS):
        if Path("/dev", name).exists():
            _make_place(dev / name, is_folder=name in _USUAL_FOLDERS)
            _mount(f"/dev/{name}", str(dev / name), _BIND | _REC)
    for name, target in _USUAL_LINKS.items():
        (dev / name).symlink_to(f"/proc/self/{target}")


def _open(path: str) -> int:
    return os.open(path, os.O_PATH)


def _put(source: int, inside: Path, *, read_only: bool) -> None:
    """Makes what is held open appear inside, in the root that this process is in."""
    held = f"/proc/self/fd/{source}"
    if not inside.exists():
        _make_ours(inside, is_folder=Path(held).is_dir())
    _mount(held, str(inside), _BIND | _REC)
    if read_only:
        _mount("none", str(inside), _REMOUNT | _BIND | _RDONLY)
    os.close(source)


def _is_machines(inside: Path) -> bool:
    """Whether what is not there would have to be made in the machine's files."""
    above = next(parent for parent in inside.parents if parent.exists())
    return above.stat().st_dev != Path("/").stat().st_dev


def _make_ours(inside: Path, *, is_folder: bool) -> None:
    if _is_machines(inside):
        raise CannotMount(f"there is no {inside} to mount on, and its folder is the machine's")
    inside.parent.mkdir(parents=True, exist_ok=True)
    _make_place(inside, is_folder=is_folder)


def _make_place(place: Path, *, is_folder: bool) -> None:
    if is_folder:
        place.mkdir()
    else:
        place.touch()


def _mount(source: str, target: str, flags: int, kind: str | None = None) -> None:
    if (
        _libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None)
        != 0
    ):
        raise CannotMount(f"cannot mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


_LOOK_EVERY_S = 2
_SIGNALLED = 128

Spec = Mapping[str, Any]


def main() -> int:
    folder = Path(sys.argv[1])
    try:
        return _run(folder, json.loads((folder / "spec.json").read_text()))
    except Exception as error:
        if folder.is_dir():
            _say(folder, {"failed": f"{type(error).__name__}: {error}"})
        raise


def _run(folder: Path, spec: Spec) -> int:
    os.setsid()
    os.closerange(3, 1024)  # what kubelet had open
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 1)
    os.dup2(1, 2)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child, failure = _start(spec)
    if failure:
        _say(folder, {"failed": failure})
        return 1
    known = {
        "pid": child,
        "shim": {"pid": os.getpid(), "start_ticks": process_start_ticks(os.getpid())},
        "started": time.time(),
    }
    _say(folder, known)
    code = _wait(child, folder)
    _kill_the_rest(child, spec)
    if folder.is_dir():
        _say(folder, {**known, "exit_code": code, "finished": time.time()})
    return 0


def _say(folder: Path, state: Mapping[str, object]) -> None:
    made = folder / "state.json.new"
    made.write_text(json.dumps(state))
    made.rename(folder / "state.json")


def _start(spec: Spec) -> tuple[int, str]:
    """The container's first process, and why it did not become its command, empty where it did."""
    reading, writing = os.pipe()  # closed by exec
    child = os.fork()
    if child == 0:
        _become_container(spec, writing)
    os.close(writing)
    with os.fdopen(reading) as words:
        failure = words.read()
    if failure:
        os.waitpid(child, 0)
    return child, failure


def _become_container(spec: Spec, failure: int) -> NoReturn:
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        if spec["cgroup"]:
            Path(spec["cgroup"], "cgroup.procs").write_text("0")
        environment = _enter(spec)
        if spec["uid"] is not None:
            os.setgroups([])
            os.setgid(spec["uid"])
            os.setuid(spec["uid"])
        os.execvpe(spec["command"][0], spec["command"], environment)
    except (OSError, CannotMount) as error:
        os.write(failure, f"{spec['command'][0]}: {error}".encode())
    finally:
        os._exit(127)


def _enter(spec: Spec) -> dict[str, str]:
    """Goes into the container's files; its environment."""
    environment: dict[str, str] = spec["environment"]
    if own_mounts():
        enter_root(Path(spec["root"]), spec["mounts"], spec["devices"])
        return environment
    return {name: _on_host(value, spec["mounts"]) for name, value in environment.items()}


def _on_host(value: str, mounts: list[Mapping[str, str]]) -> str:
    for mount in mounts:
        if value == mount["inside"] or value.startswith(f"{mount['inside']}/"):
            return mount["source"] + value[len(mount["inside"]) :]
    return value


def _wait(child: int, folder: Path) -> int:
    """The exit code; the container is killed when its folder goes, since then nothing is left to
    ask for it."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNALLED - code
        if not folder.is_dir():
            os.kill(child, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_EVERY_S)


def _kill_the_rest(child: int, spec: Spec) -> None:
    """A container ends with its first process."""
    if spec["cgroup"]:
        procs = Path(spec["cgroup"], "cgroup.procs")
        while procs.exists() and (left := procs.read_text().split()):
            for pid in left:
                _kill(int(pid))
            time.sleep(0.005)  # until the kernel has let go of them
    else:
        _kill(-child)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
