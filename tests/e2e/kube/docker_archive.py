"""Writes images as docker archives, file by file: for machines that can pull none.

One rule: an image is one layer.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def special(
    tar: tarfile.TarFile, name: str, kind: bytes, target: str = "", *, mode: int = 0o755
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, mode
    tar.addfile(entry)


def write(
    path: Path, tag: str, layer: bytes, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest]},
        "config": {
            "Cmd": list(command),
            "Env": [f"{name}={value}" for name, value in environment.items()],
        },
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as image:
        add(image, "config.json", json.dumps(config).encode())
        add(image, "layer.tar", layer)
        add(image, "manifest.json", json.dumps(manifest).encode())
