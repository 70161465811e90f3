"""The files that a container of the simulated kubelet sees: the machine's, with a /run and a /dev of its own.

One rule: nothing is made on the machine; a place for a mount is made only in what belongs to the container.
"""

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Of mount(2) and unshare(2); Python has neither before 3.12.
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
_NEW_MOUNTS = 0x20000

_OWN = {"dev", "run"}
_USUAL_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_USUAL_FOLDERS = ("pts", "shm")
_USUAL_LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}

_libc = ctypes.CDLL(None, use_errno=True)


class CannotMount(Exception):
    """The container's files cannot be put together."""


def own_mounts() -> bool:
    """Whether this process has mounts of its own from now on; it may not have them where it is not root."""
    if _libc.unshare(_NEW_MOUNTS) != 0:
        return False
    _mount("none", "/", _REC | _PRIVATE)
    return True


def enter_root(root: Path, mounts: Iterable[Mapping[str, Any]], devices: Iterable[Mapping[str, str]]) -> None:
    """Goes into the container's files for good. root: an empty folder. mounts, devices: `host`, `inside`, and so on."""
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
    # A path inside means what it means inside, links included: so the sources are held open, and found again by /proc.
    wanted = [*((each, _open(each["host"])) for each in mounts), *((each, _open(each["host"])) for each in devices)]
    os.chroot(root)
    os.chdir("/")
    for each, source in wanted:
        _put(source, Path(each["inside"]), read_only=bool(each.get("read_only")))


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


def _make_ours(inside: Path, *, is_folder: bool) -> None:
    above = next(parent for parent in inside.parents if parent.exists())
    if above.stat().st_dev != Path("/").stat().st_dev:
        raise CannotMount(f"there is no {inside} to mount on, and {above} is the machine's")
    inside.parent.mkdir(parents=True, exist_ok=True)
    _make_place(inside, is_folder=is_folder)


def _make_place(place: Path, *, is_folder: bool) -> None:
    if is_folder:
        place.mkdir()
    else:
        place.touch()


def _mount(source: str, target: str, flags: int, kind: str | None = None) -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None) != 0:
        raise CannotMount(f"cannot mount {source} on {target}: {os.strerror(ctypes.get_errno())}")
