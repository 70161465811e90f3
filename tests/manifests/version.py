"""Writes mpsd's version into the files that must repeat it: `python -m tests.manifests.version`.

It stands in mpsd/__init__.py, which is what to change before a release.
"""

import re
from pathlib import Path

import mpsd

TOP = Path(__file__).parents[2]
_FOLDER = r"(mpsd[:-])\d+\.\d+\.\d+"
# What stands before it in each: group 1.
PLACES = {
    "images/Dockerfile": r"(?m)^(ARG VERSION=)\S+",
    "manifests/chart/Chart.yaml": r"(?m)^((?:appV|v)ersion: )\S+",
    "manifests/install.yaml": _FOLDER,
    "README.md": r"(Version |mpsd:)\d+\.\d+\.\d+",
    "docs/hosts.md": _FOLDER,
    "docs/install.md": _FOLDER,
    "docs/quick-start.md": _FOLDER,
}


def with_version(place: str, version: str = mpsd.__version__) -> str:
    text, changed = re.subn(PLACES[place], rf"\g<1>{version}", (TOP / place).read_text())
    if not changed:
        raise ValueError(f"{place} says no version where {PLACES[place]} has it")
    return text


if __name__ == "__main__":
    for one in PLACES:
        (TOP / one).write_text(with_version(one))
