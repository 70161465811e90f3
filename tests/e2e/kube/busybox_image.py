"""Writes a busybox image as a docker archive: `busybox_image.py FILE.tar`.

Its default command sleeps until it is told to stop, so it serves as the pause image too.
"""

import io
import sys
import tarfile
from pathlib import Path

from docker_archive import add, special, write

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


def _layer() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        for folder in ("bin", "etc", "tmp", "dev", "proc", "sys"):
            special(layer, folder, tarfile.DIRTYPE)
        add(layer, "bin/busybox", Path("/bin/busybox").read_bytes(), mode=0o755)
        for applet in _APPLETS:
            special(layer, f"bin/{applet}", tarfile.SYMTYPE, "busybox")
        add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    return written.getvalue()


if __name__ == "__main__":
    write(Path(sys.argv[1]), "local/busybox:1", _layer(), _SLEEPS, {"PATH": "/bin"})
