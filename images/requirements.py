"""Prints what pip must install for some extras of this project: `requirements.py EXTRA…`, in the
project's folder.

For a layer of the image that stays the same while only mpsd itself changes.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
needed = {*project["dependencies"], *(need for extra in sys.argv[1:] for need in extras[extra])}
print("\n".join(sorted(needed)))
