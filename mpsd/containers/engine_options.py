"""What `mpsd install` and `mpsd uninstall` share: their options, and the paths that come of them.

One rule: --root stands for /, so what is written into a file never begins with it.
"""

from pathlib import Path
from typing import Annotated

import typer

from mpsd.containers import engine_files
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine
from mpsd.model.problem import InvalidInput, Problem, printable, shown

_LONGEST = 4096
EngineName = Annotated[Engine, typer.Argument(metavar="ENGINE", help="docker, containerd or podman.")]
To = Annotated[str, typer.Option("--to", metavar="PATH", help="The launcher.")]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The engine's configuration: /etc/docker/daemon.json, /etc/containerd/config.toml or"
        " /etc/containers/containers.conf.d/mpsd.conf.",
        show_default=False,
    ),
]
Root = Annotated[str, typer.Option("--root", metavar="DIR", help="A folder that stands for /, such as an image's.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show every step and difference, and change nothing.")]


class Places:
    """The files of one engine below a root. launcher: as it is written into files."""

    def __init__(self, engine: Engine, to: str, config: str | None, root: str) -> None:
        """InvalidInput where a path cannot be used."""
        _check("--to", to)
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            message, remedy = "is no folder that is there", "make it, or name another"
            problem = Problem("setting", "--root", printable(root, _LONGEST), message, remedy)
            raise InvalidInput("settings", [problem])
        self.launcher = to
        self._config = config or CONFIGURATION[engine]
        if config:
            _check("--config", config)

    def find_launcher(self) -> engine_files.Found:
        """InvalidInput where it is a link: another could be put behind it."""
        found = engine_files.find(self.here(self.launcher), self.root)
        if found.linked_from:
            message = f"is a link to {found.path}"
            problem = Problem("launcher-taken", "the file", "", message, "remove the link")
            raise InvalidInput(self.launcher, [problem])
        return found

    def find_config(self) -> engine_files.Found:
        return engine_files.find(self.here(self._config), self.root)

    def here(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _check(option: str, path: str) -> None:
    if not path.startswith("/") or path.endswith("/") or ".." in path.split("/") or not path.isprintable():
        message = "is no path from / on"
        problem = Problem("setting", option, shown(path), message, f"write it whole, such as {LAUNCHER}")
        raise InvalidInput("settings", [problem])
