"""OCI bundles whose programs are this machine's own: its /usr and its Python, read-only, and
nothing to be pulled.

One rule: what a bundle is made of is `runc spec`'s word but for the program, its variables and what
it is mounted from.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpsd

RUNC = "runc"
PATH = "/opt:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOME = Path(mpsd.__file__).parents[1]
_SIM_CUDA = (
    "import sys; sys.path[:0] = [{home!r}]; from mpsd.simulator.cuda_client import main;"
    " sys.exit(main())"
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What an engine may be told instead of the folder. environment: of the container's process,
    PATH included."""

    folder: Path
    environment: Mapping[str, str]
    command: tuple[str, ...]

    @property
    def rootfs(self) -> Path:
        return self.folder / "rootfs"

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return found

    def rewrite(self, config: Mapping[str, Any]) -> None:
        (self.folder / "config.json").write_text(json.dumps(config))


def why_not() -> str:
    """What keeps containers from running on this machine; empty where nothing does."""
    if os.geteuid() != 0:
        return "needs root: run `make check-host` as root"
    if shutil.which(RUNC) is None:
        return "needs runc: apt-get install runc"
    if not any(Path("/sys/fs/cgroup").iterdir()):
        return "needs cgroups: mount them at /sys/fs/cgroup"
    return ""


def read_only_folders() -> tuple[str, ...]:
    """What of this machine is in every container, at the same place."""
    python = sysconfig.get_config_var("prefix")
    return ("/usr", *([] if python.startswith("/usr") else [python]), str(_HOME))


def make_rootfs(rootfs: Path) -> None:
    """The root of a container, into which `read_only_folders` are to be mounted; sim-cuda is on its
    PATH."""
    for folder in ("dev", "etc", "opt", "proc", "root", "run", "sys", "tmp", "usr"):
        (rootfs / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if (here := Path("/", name)).is_symlink():
            (rootfs / name).symlink_to(here.readlink())
    for folder in read_only_folders():
        (rootfs / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (rootfs / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    python = os.path.realpath(sys.executable)
    program = rootfs / "opt" / "sim-cuda"
    script = shlex.quote(_SIM_CUDA.format(home=str(_HOME)))
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -S -P -c {script} "$@"\n')
    program.chmod(0o755)


def make_bundle(
    folder: Path,
    cgroup: str,
    environment: Mapping[str, str],
    command: Sequence[str],
    *,
    host_ipc: bool = False,
) -> Bundle:
    """A bundle in a folder that is not there yet."""
    folder.mkdir()
    make_rootfs(folder / "rootfs")
    subprocess.run([RUNC, "spec", "--bundle", str(folder)], check=True, timeout=30)
    bundle = Bundle(folder, {"PATH": PATH} | dict(environment), tuple(command))
    config = bundle.config
    config["process"] |= {
        "terminal": False,
        "args": list(command),
        "env": [f"{name}={value}" for name, value in bundle.environment.items()],
    }
    config["root"] = {"path": "rootfs", "readonly": False}
    config["linux"]["cgroupsPath"] = cgroup
    if host_ipc:
        kept = [one for one in config["linux"]["namespaces"] if one["type"] != "ipc"]
        config["linux"]["namespaces"] = kept
    config["mounts"] += [
        {"destination": one, "type": "bind", "source": one, "options": ["rbind", "ro"]}
        for one in read_only_folders()
    ]
    bundle.rewrite(config)
    return bundle
