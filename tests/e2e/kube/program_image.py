"""Writes an image of one static program as a docker archive: `program_image.py FILE.tar TAG NAME
PROGRAM`.

The program is /usr/local/bin/NAME there, as in the images of Kubernetes.
"""

import io
import sys
import tarfile
from pathlib import Path

from docker_archive import add, special, write


def _layer(name: str, program: Path) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        for folder in ("etc", "tmp", "dev", "proc", "sys", "usr", "usr/local", "usr/local/bin"):
            special(layer, folder, tarfile.DIRTYPE)
        add(layer, f"usr/local/bin/{name}", program.read_bytes(), mode=0o755)
    return written.getvalue()


if __name__ == "__main__":
    file, tag, name, program = sys.argv[1:]
    write(Path(file), tag, _layer(name, Path(program)), [name], {"PATH": "/usr/local/bin"})
