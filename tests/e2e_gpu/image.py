"""Images made of this machine's own files, where none can be built or pulled: mpsd's, and that of a
pod's sandbox.

With what images/Dockerfile puts there, on this machine's Python, its shared libraries but for the
driver's, and a few of its programs.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement

from tests.e2e.kube.docker_archive import add, special

MPSD, PAUSE = "localhost/mpsd:e2e-gpu", "localhost/pause:e2e-gpu"
_TOP = Path(__file__).parents[2]
_EXTRAS = ("agent", "scheduler", "webhook")
_PROGRAMS = ("sh", "env", "cat", "ls", "sleep", "kill", "ldconfig", "ldconfig.real")
# As of images/Dockerfile on a base whose PATH is Debian's.
_OWN, _DEBIAN = (
    "/opt/mpsd/bin",
    ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
)
_PATH = (_OWN, *_DEBIAN, "/usr/local/nvidia/bin")
_FOLDERS = ("dev", "etc/mpsd/limits", "host/sys/fs/cgroup", "proc", "run/mpsd", "sys")
_FOR_ALL = ("tmp", "var/tmp")
# NVIDIA's, and one that is large
_DRIVERS = re.compile(r"lib(nvidia|cuda|nvcuvid|nvoptix|GLX_nvidia|EGL_nvidia|LLVM)")
_LARGEST_LIBRARY = 64 * 1024**2
_NOT_NEEDED = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
}
_SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def write(file: Path) -> None:
    """A docker archive of both images, which have the same layer."""
    layer = file.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        _Layer(tar).fill()
    with layer.open("rb") as read:
        digest = sha256()
        while part := read.read(1 << 22):
            digest.update(part)
    entries = {
        MPSD: ["/opt/mpsd/init/tini", "-s", "--", "mpsd"],
        PAUSE: ["/opt/mpsd/init/tini", "--", "sleep", "infinity"],
    }
    with tarfile.open(file, "w") as tar:
        manifest = []
        for tag, entry in entries.items():
            config = f"{tag.partition('/')[2].partition(':')[0]}.json"
            add(tar, config, json.dumps(_config(entry, f"sha256:{digest.hexdigest()}")).encode())
            manifest.append({"Config": config, "RepoTags": [tag], "Layers": ["layer.tar"]})
        tar.add(layer, "layer.tar")
        add(tar, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _config(entry: list[str], layer: str) -> dict[str, object]:
    environment = [
        f"PATH={':'.join(_PATH)}",
        "PYTHONUNBUFFERED=1",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]
    return {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "config": {"Entrypoint": entry, "Env": environment},
    }


class _Layer:
    """Each path once, below where it really is: /bin and /lib are links on most machines."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar, self._there = tar, set[str]()

    def fill(self) -> None:
        for folder in _FOLDERS:
            special(self._tar, folder, tarfile.DIRTYPE)
        for folder in _FOR_ALL:
            special(self._tar, folder, tarfile.DIRTYPE, mode=0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            self._put(Path("/", name)) if Path("/", name).is_symlink() else None
        self._write(
            "etc/passwd",
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n",
        )
        self._write("etc/group", b"root:x:0:\nnobody:x:65534:\n")
        for name in _PROGRAMS:
            if program := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"):
                self.add(Path(program))
        for library in _libraries():
            self.add(library)
        python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
        for file in (python, *_linked_to(python)):
            self.add(file)
        self._tree(Path(sysconfig.get_path("stdlib")))
        self._venv(python)

    def add(self, path: Path) -> None:
        """A file, with what it is a link to."""
        path = Path(os.path.realpath(path.parent), path.name)
        self._put(path)
        if path.is_symlink():
            self.add(path.parent / path.readlink())

    def _put(self, path: Path, name: str = "") -> None:
        name = name or str(path).lstrip("/")
        if name not in self._there and (path.exists() or path.is_symlink()):
            self._there.add(name)
            self._tar.add(path, name, recursive=False, filter=_owned_by_root)

    def _write(self, name: str, data: bytes, *, mode: int = 0o644) -> None:
        add(self._tar, name, data, mode=mode)

    def _tree(self, folder: Path, to: str = "") -> None:
        for path in sorted(folder.rglob("*")):
            below = path.relative_to(folder)
            if not _NOT_NEEDED & {*below.parts} and not path.is_dir():
                self._put(path, f"{to}/{below}" if to else "")

    def _venv(self, python: Path) -> None:
        """/opt/mpsd: mpsd of this checkout, and what it needs from wherever this Python has it."""
        tini = shutil.which("tini-static")
        assert tini, "tini-static is not on PATH (Debian: the package tini)"
        self._put(Path(tini).resolve(), "opt/mpsd/init/tini")
        self._write(
            "opt/mpsd/pyvenv.cfg",
            f"home = {python.parent}\ninclude-system-site-packages = false\n".encode(),
        )
        for name in ("python", "python3"):
            special(self._tar, f"opt/mpsd/bin/{name}", tarfile.SYMTYPE, str(python))
        start = (
            "#!/opt/mpsd/bin/python\nimport sys\nfrom mpsd.cli.main import main\nsys.exit(main())\n"
        )
        self._write("opt/mpsd/bin/mpsd", start.encode(), mode=0o755)
        site = f"opt/mpsd/{_SITE}"
        project = tomllib.loads((_TOP / "pyproject.toml").read_text())
        for folder in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
            self._tree(_TOP / folder, f"{site}/{folder}")
        for folder, to in project["tool"]["hatch"]["build"]["targets"]["wheel"][
            "force-include"
        ].items():
            self._tree(_TOP / folder, f"{site}/{to}")
        for name, where in _needed(project["project"]):
            self._put(where, f"{site}/{name}")


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _libraries() -> Iterator[Path]:
    """Of the system, but for the driver's, which NVIDIA's runtime brings, and for very large
    ones."""
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin") or "ldconfig"
    said = subprocess.run([ldconfig, "-p"], check=True, capture_output=True, text=True).stdout
    for line in said.splitlines()[1:]:
        path = Path(line.rpartition(" => ")[2])
        real = Path(os.path.realpath(path))
        of_the_system = str(real).startswith(("/usr/lib", "/lib")) and not _DRIVERS.match(path.name)
        if of_the_system and real.is_file() and real.stat().st_size < _LARGEST_LIBRARY:
            yield path
    yield Path("/lib64/ld-linux-x86-64.so.2")


def _linked_to(program: Path) -> Iterator[Path]:
    """The libraries of a program, which may be its own: a Python of pyenv has libpython beside
    it."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    for path in re.findall(r" => (/\S+)", said):
        yield Path(path)


def _needed(project: dict[str, object]) -> Iterator[tuple[str, Path]]:
    """The files of all that mpsd's roles need, by their names below site-packages. What this Python
    does not have is left out, which is said on standard error."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    named = project["dependencies"]
    assert isinstance(named, list)
    left = [
        Requirement(text)
        for text in (*named, *(text for extra in _EXTRAS for text in extras[extra]))
    ]
    seen: set[str] = set()
    while left:
        wanted = left.pop()
        name = wanted.name.lower().replace("_", "-")
        if name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"image: {wanted} is not installed, and left out", file=sys.stderr)
            continue
        assert found.files is not None, f"{name} has no list of its files"
        for file in found.files:
            if not {"..", "__pycache__"} & {*file.parts}:
                yield str(file), Path(str(found.locate_file(file)))
        left += [Requirement(text) for text in found.requires or ()]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
