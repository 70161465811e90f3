"""This machine's pip configuration, for a build that must ask the same indexes: `pip_here.py FILE`.

Writes FILE, a pip.conf with what the machine's files and PIP_* variables say together, and prints
the folders that it names (wheels, indexes as file://…), one a line, for the builder to mount. A CA
is the builder's own business.
"""

import configparser
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_ABOUT_INDEXES = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "no-index",
    "default-timeout",
)


def configured(listed: str) -> dict[str, list[str]]:
    """The settings about indexes in what `pip config list` prints; a variable of the environment
    beats a file."""
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        key, equals, value = line.partition("=")
        place, _dot, name = key.rpartition(".")
        if not equals or name not in _ABOUT_INDEXES or place not in {"global", "install", ":env:"}:
            continue
        values = " ".join(shlex.split(value)).split()
        kept = found.get(name, [])
        found[name] = values if place == ":env:" or not kept else kept
    return found


def folders(settings: Mapping[str, Iterable[str]]) -> list[Path]:
    """The folders of this machine that the settings name: each once, the outermost only."""
    named = {
        Path(value.removeprefix("file://"))
        for values in settings.values()
        for value in values
        if "/" in value
    }
    here = {path.resolve() for path in named if path.is_absolute() and path.is_dir()}
    # an index's pages link to files beside its own folder
    roots = {path.parent if path.name == "simple" else path for path in here}
    return sorted(path for path in roots if not roots & {*path.parents})


def main(target: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    settings = configured(listed)
    written = configparser.RawConfigParser()
    written["global"] = {name: "\n".join(values) for name, values in settings.items()}
    with target.open("w") as file:
        written.write(file)
    for folder in folders(settings):
        print(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
