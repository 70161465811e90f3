"""Writes a busybox image as a docker archive: `busybox_image.py FILE.tar`.

Its default command sleeps until it is told to stop, so it serves as the pause image too.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

_APPLETS = [
    "sh",
    "sleep",
    "env",
    "cat",
    "ls",
    "mount",
    "ps",
    "id",
    "chroot",
    "kill",
    "ln",
    "mkdir",
    "grep",
    "nc",
    "wget",
]
_SLEEPS = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]


def _add(tar: tarfile.TarFile, name: str, data: bytes = b"", *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _special(tar: tarfile.TarFile, name: str, kind: bytes, target: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, 0o755
    tar.addfile(entry)


def _layer() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        for folder in ("bin", "etc", "tmp", "dev", "proc", "sys"):
            _special(layer, folder, tarfile.DIRTYPE)
        _add(layer, "bin/busybox", Path("/bin/busybox").read_bytes(), mode=0o755)
        for applet in _APPLETS:
            _special(layer, f"bin/{applet}", tarfile.SYMTYPE, "busybox")
        _add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    return written.getvalue()


def write(path: Path, tag: str = "local/busybox:1") -> None:
    layer = _layer()
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest]},
        "config": {"Cmd": _SLEEPS, "Env": ["PATH=/bin"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as image:
        _add(image, "config.json", json.dumps(config).encode())
        _add(image, "layer.tar", layer)
        _add(image, "manifest.json", json.dumps(manifest).encode())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
